#!/bin/bash
# Builds a consumer against an installed kvferry in both ways that users have, and runs what came out.
#   consumers.sh FOLDER SOURCE COMPILER
# FOLDER/prefix is where kvferry is installed; FOLDER is for the builds.
set -euo pipefail
folder=$1 source=$2 compiler=$3
prefix=$folder/prefix

rm -rf "$folder/cmake" "$folder/pkg-config"
mkdir -p "$folder/pkg-config"
cmake -S "$source" -B "$folder/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix" -Dkvferry_ROOT="$prefix" >/dev/null
cmake --build "$folder/cmake" >/dev/null
echo "find_package: $("$folder/cmake/consumer")"

pc=$(find "$prefix" -name kvferry.pc)
read -ra flags <<<"$(PKG_CONFIG_PATH=${pc%/*} pkg-config --cflags --libs kvferry)"
"$compiler" -std=c++20 "$source/main.cc" "${flags[@]}" -o "$folder/pkg-config/consumer"
echo "pkg-config: $("$folder/pkg-config/consumer")"

# A prefix that is not there must not be found, or the above would prove nothing.
if cmake -S "$source" -B "$folder/without" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" >/dev/null 2>&1; then
  echo "kvferry was found without a prefix: is it installed on this machine?" >&2
  exit 1
fi
rm -rf "$folder/without"
