#!/usr/bin/env bash
# Installs a build into a folder of its own, builds the consumer project against it and runs it.
# usage: test.sh BUILD_DIRECTORY CMAKE SOURCE_DIRECTORY
set -euo pipefail
build=$1 cmake=$2 source=$3
prefix=$build/consumer/prefix
rm -rf "$build/consumer"
"$cmake" --install "$build" --prefix "$prefix" >/dev/null
"$cmake" -S "$source/tests/consumer" -B "$build/consumer/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_BUILD_TYPE=Debug >/dev/null
"$cmake" --build "$build/consumer/build" >/dev/null
# What is installed must do without the source tree: the configurations come from the prefix.
"$build/consumer/build/consumer" "$prefix/share/warpweave/configs/axial_block.yaml"
"$prefix/bin/warpweave" --version
