#!/usr/bin/env bash
# hash.sh [--header]: the hash of the device code and of the host code that launches it, line comments and white space apart:
# what tests/gpu/record.json vouches for. As a C++ header it goes into warpweave_gpu_tests, so that a record names the code
# that was built and ran.
set -euo pipefail
cd "$(dirname "$0")/../.."
files() {
  if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard kernels engine/cuda
  else
    find kernels engine/cuda -type f -print0
  fi
}
hash=$(files | LC_ALL=C sort -z | while IFS= read -r -d '' file; do
  echo "$file"
  sed 's:\(^\|[[:space:]]\)//.*::' "$file" | tr -d '[:space:]'
  echo
done | sha256sum | cut -c1-32)
if [ "${1:-}" = --header ]; then
  echo "constexpr char kCodeHash[] = \"$hash\";"
else
  echo "$hash"
fi
