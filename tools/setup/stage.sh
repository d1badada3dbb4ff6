#!/bin/bash
# Runs a command as a named stage and says how long it took: stage.sh NAME COMMAND...
set -euo pipefail
name=$1
shift
SECONDS=0
if "$@"; then
  echo "== $name: $SECONDS s"
else
  status=$?
  echo "== $name: failed with exit code $status after $SECONDS s" >&2
  exit "$status"
fi
