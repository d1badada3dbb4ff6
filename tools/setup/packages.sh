#!/bin/bash
# Installs the Debian 12 packages of the given groups, when some are missing.
#
#   tools/setup/packages.sh GROUP...      groups are the files in tools/setup/packages/
#
# Nothing missing: no apt call, no network, no rights needed. Something missing: as root calls
# apt-get, else through sudo when that asks no password, else prints the line to run and exits 2.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/packages
if [ $# -eq 0 ]; then
  echo "usage: packages.sh GROUP...   groups: $(cd "$folder" && echo *.txt | sed 's/\.txt//g')" >&2
  exit 2
fi

wanted=()
for group in "$@"; do
  if [ ! -f "$folder/$group.txt" ]; then
    echo "packages.sh: no group '$group'; groups: $(cd "$folder" && echo *.txt | sed 's/\.txt//g')" >&2
    exit 2
  fi
  while read -r name _; do
    case $name in '' | '#'*) ;; *) wanted+=("$name") ;; esac
  done <"$folder/$group.txt"
done

if ! command -v dpkg-query >/dev/null; then
  echo "packages.sh: this is not a Debian system (no dpkg-query). Install the equivalents of:" >&2
  echo "  ${wanted[*]}" >&2
  exit 2
fi

# dpkg-query fails when it doesn't know a name at all, which only means that it is missing.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
  sed -n 's/^installed //p' || true)
missing=()
for name in "${wanted[@]}"; do
  grep -qxF -- "$name" <<<"$installed" || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

# --no-remove: Boost 1.74 and 1.81 development packages would silently replace each other.
install=(apt-get install --no-install-recommends --no-remove -y "${missing[@]}")
if [ "$(id -u)" -eq 0 ]; then
  as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n env)
else
  echo "packages.sh: ${#missing[@]} packages are missing and this user may not install them. Run:" >&2
  echo "  sudo apt-get update && sudo ${install[*]}" >&2
  exit 2
fi

echo "packages: installing ${missing[*]}" >&2
"${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update -q >&2
if ! "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${install[@]}" -q >&2; then
  echo "packages.sh: apt-get failed. If it wanted to remove packages (Boost 1.74 and 1.81 exclude" >&2
  echo "each other), remove those first; else repeat: ${install[*]}" >&2
  exit 1
fi
