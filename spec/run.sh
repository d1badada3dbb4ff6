#!/bin/bash
# Checks the models of the safety kernel (docs/spec.md): every base has no error and is searched to
# the end, every mutant is caught, every automaton accepts the bases and rejects the mutants.
#
#   bash spec/run.sh [--jobs N] [--only TEXT]      TEXT: only cases whose name contains it
#
# Writes to build/spec only (KVFERRY_SPEC_BUILD=DIR: there). Exit: 0 all as it must be, 1 some case
# is not, 2 it can't be run (SPIN, a C compiler or Python is missing, or cases.txt is wrong).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${KVFERRY_SPEC_BUILD:-$here/../build/spec}
python=${KVFERRY_PYTHON:-/usr/bin/python3}
command -v "$python" >/dev/null || python=python3

for tool in spin gcc "$python"; do
  if ! command -v "$tool" >/dev/null; then
    echo "spec/run.sh: $tool is missing; install it with: tools/setup/packages.sh spec" >&2
    exit 2
  fi
done

mkdir -p "$build"
export PYTHONDONTWRITEBYTECODE=1
exec "$python" "$here/check.py" --spin spin --cc gcc --build "$(cd "$build" && pwd)" "$@"
