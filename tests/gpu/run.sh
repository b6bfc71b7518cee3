#!/usr/bin/env bash
# tests/gpu/run.sh [FOLDER]: all GPU tests on this machine, a few minutes; a short table last.
#
# FOLDER holds warpweave_gpu_tests (default build/release/tests/gpu), and the warpweave executable, in itself or as the
# build has it, two folders up. Writes tests/gpu/record.json: GPU, date, counts and the hash of the code that was tested.
# Exit status 0 when all passed.
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=$(cd "${1:-build/release/tests/gpu}" && pwd)
warpweave=$bin/warpweave
[ -x "$warpweave" ] || warpweave=$bin/../../warpweave
log=$(mktemp -d)
export WARPWEAVE_CACHE_DIR=${WARPWEAVE_CACHE_DIR:-$log/cache}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
[ -n "$capability" ] || { echo "tests/gpu/run.sh: no NVIDIA GPU"; exit 77; }

"$bin/warpweave_gpu_tests" --compile "sm_$capability" || exit 1
"$bin/warpweave_gpu_tests" > "$log/tests" 2>&1
status=$?
count() { sed -n "s/^\[  $1  \] \([0-9]*\) tests*[,.].*/\1/p" "$log/tests" | head -1; }
passed=$(count PASSED) failed=$(count FAILED)

sanitizer=not-run
if command -v compute-sanitizer >/dev/null; then
  sanitizer=clean
  few=
  for name in seed_block masked_causal everything patches long_columns head_dim_24; do
    for plan in composed long resident split; do few+=":*/${name}_${plan}_*"; done
  done
  for tool in memcheck racecheck; do
    timeout 120 compute-sanitizer --tool $tool "$bin/warpweave_gpu_tests" --gtest_filter="${few#:}" > "$log/$tool" 2>&1 &
  done
  wait
  for tool in memcheck racecheck; do
    summary=$(grep -E "ERROR SUMMARY|RACECHECK SUMMARY" "$log/$tool")
    echo "$tool: ${summary:-no summary}"
    # racecheck also lists hazards that it judges harmless, as warnings.
    case "$summary" in
      *"SUMMARY: 0 errors"*|*"(0 errors"*) ;;
      *) sanitizer="$tool failed"; status=1 ;;
    esac
  done
fi
"$warpweave" bench --suite gpu --precision bf16 --plan auto,composed --seconds 0.1 || status=1
"$warpweave" bench --suite gpu --precision fp32 --only seed,pair512,msa768 --seconds 0.1 || status=1

cat > tests/gpu/record.json <<END
{
  "gpu": "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)",
  "driver": "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)",
  "date": "$(date -u +%Y-%m-%d)",
  "passed": ${passed:-0},
  "failed": ${failed:-0},
  "sanitizer": "$sanitizer",
  "hash": "$(tests/gpu/hash.sh)"
}
END
grep -E "^\[  FAILED  \]" "$log/tests" | sort -u | head -40
grep -E "^worst of|kernel cache, " "$log/tests"
echo "GPU tests: ${passed:-0} passed, ${failed:-0} failed; compute-sanitizer $sanitizer"
exit $status
