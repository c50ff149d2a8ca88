#!/usr/bin/env bash
# Proves and measures the attention library on the GPU of this machine, in one command: builds, checks, replays, runs the
# sanitizers, plants faults, measures.
#
#   tools/gpu/run.sh [--out DIR] [--arch 90a] [--bin DIR] [--only build,check,torch,replay,plants,sanitizers,bench] [--quick]
#
# --bin takes programs that tools/gpu/build.sh made elsewhere. Logs and the receipt go to DIR (build/gpu); the table at
# the end says what passed. Exit status 1 if anything failed. Needs a CUDA 13 toolkit to build and a driver to run,
# nothing else; the step torch is for a python3 with PyTorch 2.10 or newer. It reads the card's clocks and changes nothing.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$root/build/gpu
arch=
bin=
only=build,check,torch,replay,plants,sanitizers,bench
quick=
while (($#)); do
  case $1 in
    --out) out=$2; shift ;;
    --arch) arch=$2; shift ;;
    --bin) bin=$2; shift ;;
    --only) only=$2; shift ;;
    --quick) quick=--quick ;;
    *) sed -n '2,10s/^# \?//p' "$0" >&2; exit 2 ;;
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
[[ -x $bin/attention_check ]] || { echo "run.sh: no programs in $bin" >&2; exit 1; }
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv >"$out/gpu.csv" 2>&1 || true

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
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  for tool in memcheck racecheck initcheck synccheck; do
    if [[ -z $sanitizer ]]; then
      note "sanitizer $tool" "not run" 0 "compute-sanitizer was not found"
      continue
    fi
    step "sanitizer $tool" 240 "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "$bin/onelane-attention-replay" --sanitizer
  done
  if [[ -n $sanitizer ]]; then
    step "sanitizer memcheck, all formats" 240 "$sanitizer" --tool memcheck --error-exitcode 9 --print-limit 20 \
      "$bin/attention_check" --quick --no-fence --filter formats
  fi
fi
if wants bench; then
  step bench 300 "$bin/attention_bench" --baseline "$root/bench/attention/flashmla_h200.csv" --json "$out/attention_bench.json"
  cat "$out/bench.log"
fi

echo
printf '%s\n' "${table[@]}"
((failed == 0)) && echo "run.sh: all passed, logs in $out" || echo "run.sh: FAILED, logs in $out"
exit $failed
