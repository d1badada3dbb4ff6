#!/bin/bash
# Formats the C++ files of the tree, or with --check only says which ones are not as they should be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=${CLANG_FORMAT:-clang-format-14} # Another release formats some lines differently.
case ${1:-} in
  '') options=(-i) ;;
  --check) options=(--dry-run -Werror --ferror-limit=1) ;;
  *) echo "usage: format.sh [--check]" >&2 && exit 2 ;;
esac
if ! command -v "$formatter" >/dev/null; then
  echo "format.sh: $formatter is missing; fix: tools/setup/packages.sh format" >&2
  exit 2
fi

folders=()
for folder in include src tests lab sim bench python examples; do
  [ ! -d "$folder" ] || folders+=("$folder")
done
if find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cc' \) -print0 |
  xargs -0 -r -n 16 -P "$(nproc)" "$formatter" --style=file "${options[@]}"; then
  [ ${#options[@]} -eq 1 ] || echo "format: all files are as they should be"
else
  echo "format: some files are not; fix: make format" >&2
  exit 1
fi
