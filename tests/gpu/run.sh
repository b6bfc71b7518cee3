#!/usr/bin/env bash
# tests/gpu/run.sh [FOLDER]: all GPU tests on this machine in some minutes at most; a short table last.
#
# FOLDER holds warpweave_gpu_tests (default build/release/tests/gpu), and long_gpu_tests, resident_gpu_tests, split_gpu_tests and the
# warpweave executable, in itself or where the build has them. Tests run in several processes at a time, each part under
# a time limit, all of them together under WARPWEAVE_GPU_TESTS_SECONDS (240); what is timed runs alone, last.
# Writes tests/gpu/record.json after every stage: GPU, date, counts, how each part ended, and the hash of the code that was
# tested. Exit status 0 when all passed.
set -uo pipefail
cd "$(dirname "$0")/../.."
bin=$(cd "${1:-build/release/tests/gpu}" && pwd) || exit 2
find_program() {
  local path
  for path in "$bin/$1" "$bin/../$2/$1" "$bin/../../$1"; do
    [ -x "$path" ] && { echo "$path"; return; }
  done
}
warpweave=$(find_program warpweave .)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
[ -n "$capability" ] || { echo "tests/gpu/run.sh: no NVIDIA GPU"; exit 77; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
log=${WARPWEAVE_GPU_TESTS_LOG:-$(mktemp -d)}
mkdir -p "$log/parts"
export WARPWEAVE_CACHE_DIR=${WARPWEAVE_CACHE_DIR:-$log/cache}
deadline=${WARPWEAVE_GPU_TESTS_SECONDS:-240}
last=60 # seconds of them that are kept for what runs alone
cores=$(nproc)

# part NAME SECONDS COMMAND...: its output goes to $log/NAME, how it ended to $log/parts/NAME.
part() {
  local name=$1 limit=$2 left=$((deadline - last - SECONDS)) begin=$SECONDS status
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 1 ]; then
    echo "no time left" > "$log/parts/$name"
    return 1
  fi
  timeout -k 5 "$limit" "$@" > "$log/$name" 2>&1
  status=$?
  case $status in
    0) echo passed ;;
    124 | 137) echo "stopped after $limit s" ;;
    *) echo "failed with status $status" ;;
  esac > "$log/parts/$name"
  echo "$name: $(cat "$log/parts/$name"), $((SECONDS - begin)) s"
  return $status
}

# shards NAME COUNT SECONDS COMMAND...: the tests of a program divided among so many processes, each a part.
shards() {
  local name=$1 count=$2 limit=$3 i
  shift 3
  for ((i = 0; i < count; ++i)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i part "$name.$i" "$limit" "$@" &
  done
}

count() { cat "$log"/tests.* "$log"/alone "$log"/long "$log"/resident "$log"/split 2>/dev/null | grep -cE "$1"; }
all_passed() { ! grep -hvxE 'passed|not installed' "$log"/parts/* | grep -q .; }

record() { # STATUS
  local hash
  hash=$("$bin/warpweave_gpu_tests" --hash)
  {
    echo "{"
    echo "  \"gpu\": \"$gpu\","
    echo "  \"driver\": \"$driver\","
    echo "  \"date\": \"$(date -u +%Y-%m-%d)\","
    echo "  \"status\": \"$1\","
    echo "  \"passed\": $(count '^\[       OK \]'),"
    echo "  \"failed\": $(count '^\[  FAILED  \].* ms\)$'),"
    echo "  \"seconds\": $SECONDS,"
    echo "  \"parts\": {"
    (cd "$log/parts" && for name in *; do echo "    \"$name\": \"$(cat "$name")\","; done) | sed '$ s/,$//'
    echo "  },"
    echo "  \"hash\": \"$hash\""
    echo "}"
  } > "$log/record" && cp "$log/record" tests/gpu/record.json
}

part compile 120 "$bin/warpweave_gpu_tests" --compile "sm_$capability"
record unfinished

alone='GpuErrors.OutOfMemory:*GpuPrepare*' # takes all memory; is timed
shards tests $((cores > 8 ? 8 : cores)) 150 "$bin/warpweave_gpu_tests" --gtest_filter="-$alone"
for name in long resident split; do
  program=$(find_program ${name}_gpu_tests $name)
  [ -n "$program" ] && part $name 150 "$program" &
done
if command -v compute-sanitizer >/dev/null; then
  few=
  for name in seed_block masked_causal everything patches long_columns head_dim_24; do
    for plan in composed long resident split; do few+=":*/${name}_${plan}_*"; done
  done
  for tool in memcheck racecheck; do
    # racecheck also lists hazards that it judges harmless, as warnings.
    shards $tool 4 150 bash -c 'compute-sanitizer --tool "$0" "$@" | tee /dev/stderr | grep -E "ERROR SUMMARY|RACECHECK SUMMARY" |
      grep -E "SUMMARY: 0 errors|\(0 errors"' $tool "$bin/warpweave_gpu_tests" --gtest_filter="${few#:}"
    # Wide layers are no fixtures: their weights would be megabytes.
    wide=$(find_program long_gpu_tests long)
    [ -n "$wide" ] && part $tool-wide 150 bash -c 'compute-sanitizer --tool "$0" "$@" | tee /dev/stderr |
      grep -E "ERROR SUMMARY|RACECHECK SUMMARY|PASSED" | grep -cE "SUMMARY: 0 errors|\(0 errors|PASSED.* 1 test" | grep -qx 2' \
      $tool "$wide" --gtest_filter=WideLayers.FewProblems &
  done
else
  echo "not installed" > "$log/parts/sanitizer"
fi
wait
record unfinished

last=0
part alone 60 "$bin/warpweave_gpu_tests" --gtest_filter="$alone"
if [ -n "$warpweave" ]; then
  # Every plan, also where it declines some layers, by the command line; results are checked before they are timed.
  for precision in fp32 tf32 bf16 fp16; do
    part plans-$precision 30 bash -c 'for case in axial_block:3,40,24 denoiser:1,64,96 msa:1,20,70; do
      "$0" bench --config configs/${case%:*}.yaml --shape ${case#*:} --precision $1 --plan all --seconds 0.01 || exit 1
      done' "$warpweave" $precision &
  done
  wait
  # A plan that cannot do it is refused by name.
  part strict 10 bash -c '"$0" bench --config configs/axial_block.yaml --shape 1,8,8 --precision fp32 --plan resident --strict
    [ $? = 3 ]' "$warpweave"
  part bench-bf16 60 "$warpweave" bench --suite gpu --precision bf16 --plan auto,composed --seconds 0.1
  part bench-fp32 30 "$warpweave" bench --suite gpu --precision fp32 --only seed,pair512,msa768 --seconds 0.1
  cat "$log/bench-bf16" "$log/bench-fp32" 2>/dev/null
else
  echo "no warpweave executable" > "$log/parts/plans"
fi

all_passed && record passed || record failed
grep -hE "^\[  FAILED  \]" "$log"/tests.* "$log/alone" "$log/long" "$log/resident" "$log/split" 2>/dev/null | sort -u | head -40
# The worst of each plan and precision over all processes.
grep -hE "^worst of" "$log"/tests.* 2>/dev/null | sed -E 's/ +([0-9]+) cases: /|\1|/' |
  awk -F '|' '{ n[$1] += $2; if (!($1 in worst) || $3 + 0 > worst[$1] + 0) worst[$1] = $3 }
    END { for (name in n) printf "%-32s %3d cases: %s\n", name, n[name], worst[name] }' | sort
grep -hE "kernel cache, " "$log/alone" 2>/dev/null
echo "GPU tests: $(count '^\[       OK \]') passed, $(count '^\[  FAILED  \].* ms\)$') failed, $SECONDS s; logs in $log"
all_passed
