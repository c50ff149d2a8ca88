#!/usr/bin/env bash
# Proves and measures on the GPU of this machine, in one command: the attention library (builds, checks, replays, runs the
# sanitizers, plants faults, measures), then the engine's stages and everything above them.
#
#   tools/gpu/run.sh [--out DIR] [--arch 90a] [--bin DIR] [--build DIR] [--quick]
#                    [--only build,check,torch,replay,plants,sanitizers,bench,stages,engine,step]
#
# --bin takes programs that tools/gpu/build.sh made elsewhere; --build a CMake build of the project (build/release), for
# stages, engine and step, which are left out where there is none. Logs and receipts go to DIR (build/gpu); the table at
# the end says what passed. Exit status 1 if anything failed. The attention library needs a CUDA 13 toolkit to build and a
# driver to run, nothing else; the step torch is for a python3 with PyTorch 2.10 or newer. It reads the card's clocks and
# changes nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/build/gpu
arch=
bin=
build=$root/build/release
only=build,check,torch,replay,plants,sanitizers,bench,stages,engine,step
quick=
while (($#)); do
  case $1 in
    --out) out=$2; shift ;;
    --arch) arch=$2; shift ;;
    --bin) bin=$2; shift ;;
    --build) build=$2; shift ;;
    --only) only=$2; shift ;;
    --quick) quick=--quick ;;
    *) sed -n '2,14s/^# \?//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
wants() { [[ ,$only, == *,$1,* ]]; }

table=()
failed=0
note() {  # note NAME VERDICT SECONDS WORDS
  table+=("$(printf '%-34s %-8s %5s s  %s' "$1" "$2" "$3" "${4:0:90}")")
  [[ $2 == ok || $2 == caught || $2 == "not run" ]] || failed=1
}
step() {  # step NAME SECONDS COMMAND...: its output to a log, its verdict to the table
  local name=$1 limit=$2 begin=$SECONDS log=$out/${1//[ =]/-}.log verdict=ok
  shift 2
  echo "run.sh: $name"
  timeout "$limit" "$@" >"$log" 2>&1 || verdict=FAIL
  note "$name" "$verdict" $((SECONDS - begin)) "$(tail -n 1 "$log")"
  [[ $verdict == ok ]] || tail -n 12 "$log"
}
fault() {  # fault FAULT SENTENCE: the replay must fail, and say this
  local name="plant $1" begin=$SECONDS log=$out/plant-$1.log verdict=MISSED
  timeout 120 "$bin/onelane-attention-replay" --steps 24 --plant "$1" >"$log" 2>&1 || verdict=caught
  [[ $verdict == caught ]] && ! grep -qE "$2" "$log" && verdict="WRONG"
  note "$name" "$verdict" $((SECONDS - begin)) "$(tail -n 1 "$log")"
}

if [[ -z $bin ]]; then
  bin=$out
  if wants build; then step build 1200 "$root/tools/gpu/build.sh" "$bin" ${arch:+"$arch"}; fi
fi
if wants check || wants replay || wants plants || wants sanitizers || wants bench; then
  [[ -x $bin/attention_check ]] || { echo "run.sh: no programs in $bin" >&2; exit 1; }
fi
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv >"$out/gpu.csv" 2>&1 || true

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)

sanitize() {  # sanitize NAME TOOL PROGRAM...
  if [[ -z $sanitizer || ! -x $3 ]]; then
    note "$1" "not run" 0 "compute-sanitizer or $3 was not found"
    return
  fi
  step "$1" 240 "$sanitizer" --tool "$2" --error-exitcode 9 --print-limit 20 "${@:3}"
}

if wants check; then step check 300 "$bin/attention_check" $quick; fi
if wants torch; then
  fits='import pytest, torch; raise SystemExit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10))'
  if (cd / && python3 -c "$fits" 2>/dev/null); then
    operator=$bin/torch/onelane_attention_torch.so
    if [[ ! -e $operator ]]; then
      operator=$out/torch/onelane_attention_torch.so
      step "torch, build" 600 "$root/torch/build.sh" "$out/torch" ${arch:+--arch "$arch"}
    fi
    step torch 300 env ONELANE_ATTENTION_TORCH="$operator" python3 -m pytest -q -p no:cacheprovider "$root/torch"
  else
    note torch "not run" 0 "python3 has no PyTorch 2.10 and pytest"
  fi
fi
if wants replay; then
  if [[ -n $quick ]]; then step replay 300 "$bin/onelane-attention-replay" --steps 60; else step replay 300 "$bin/onelane-attention-replay"; fi
fi
if wants plants; then
  for operand in q out lse window.indices window.lengths; do fault "row-past-end=$operand" 'illegal|launch failure|FAIL: step'; done
  fault stale-plan 'FAIL: step'
  fault unzeroed-counter 'its counter was not zero'
fi
if wants sanitizers; then
  for tool in memcheck racecheck initcheck synccheck; do
    sanitize "sanitizer $tool" "$tool" "$bin/onelane-attention-replay" --sanitizer
  done
  sanitize "sanitizer memcheck, all formats" memcheck "$bin/attention_check" --quick --no-fence --filter formats
fi
if wants bench; then
  step bench 300 "$bin/attention_bench" --baseline "$root/bench/attention/flashmla_h200.csv" --json "$out/attention_bench.json"
  cat "$out/bench.log"
fi

tests() {  # tests NAME SECONDS PROGRAM FILTER: a GoogleTest program on the GPU
  local program=$build/tests/$3
  if [[ ! -x $program ]]; then
    note "$1" "not run" 0 "$program is not there"
    return
  fi
  step "$1" "$2" "$program" --gtest_brief=1 --gtest_filter="$4"
}
export ONELANE_PLUGIN_DIR=$build/src/cli
if wants stages; then
  tests "stages" 300 kernels/kernels_test '*cuda*'
  tests "stages, random models" 300 kernels/kernels_stage_test '*cuda*'
fi
if wants engine; then
  tests "engine, GPU against CPU" 300 engine/engine_test '*TheGpu*:*Recorded*'
  export ONELANE_TEST_BACKEND=cuda
  tests "model" 300 model/model_test '*Invariance*:*Mini*:*TrueShapes*'
  tests "cache" 300 cache/cache_test '*PrefixCacheHits*:*SlotState*'
  tests "engine" 300 engine/engine_test '*'
  tests "api" 300 api/api_test '*'
  export ONELANE_FENCE=1
  tests "engine, fenced" 600 engine/engine_test '*SameTokens*:*Ahead*'
  unset ONELANE_FENCE ONELANE_TEST_BACKEND
  for model in mini-v41 mini-v4; do  # a step as it is, recorded, repeated
    for tool in memcheck initcheck racecheck; do
      sanitize "$tool $model" "$tool" "$build/src/cli/onelane" generate -m "$root/models/$model" --backend cuda -p "The river was" --max-tokens 12
    done
  done
  grep -hE "tokens differ|steady steps|steps ahead" "$out"/engine*.log || true
fi
if wants step; then
  onelane=$build/src/cli/onelane
  if [[ -x $onelane ]]; then
    for family in v4 v41; do
      step "bench step $family" 600 "$onelane" bench step --synthetic $family --layers 0 --backend cuda --rows 1,6 \
        --context 2K,128K --accept 3 --json "$out/step-$family.json"
      cat "$out/bench-step-$family.log"
    done
    step "bench prompt" 600 "$onelane" bench step --synthetic v4 --layers 8 --backend cuda --rows "" \
      --prefill 8192 --chunk 8192 --repeats 3 --json "$out/step-v4-prefill.json"
    cat "$out/bench-prompt.log"
  else
    note "bench step" "not run" 0 "$onelane is not there"
  fi
fi

echo
printf '%s\n' "${table[@]}"
((failed == 0)) && echo "run.sh: all passed, logs in $out" || echo "run.sh: FAILED, logs in $out"
exit $failed
