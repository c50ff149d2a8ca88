#!/usr/bin/env bash
# Builds the attention library's GPU programs with nvcc and g++ alone: no CMake, no Debian library, nothing fetched.
#
#   tools/gpu/build.sh OUTDIR [ARCH]
#
# OUTDIR gets attention_check, onelane-attention-replay and attention_bench. They link the CUDA runtime and the C++
# standard library statically, so that they also run on a machine that has a driver and nothing else. ARCH is a compute
# capability, for instance 90a or 120a (several: "90a 120a"); left out, the present GPU's.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?usage: tools/gpu/build.sh OUTDIR [ARCH]}
mkdir -p "$out/obj"
out=$(cd "$out" && pwd)

nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $nvcc ]] || { echo "build.sh: no nvcc; set NVCC or put it on PATH" >&2; exit 1; }
cuda=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
cxx=${CXX:-g++}

arch=${2:-}
if [[ -z $arch ]]; then
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ') || true
  [[ -n $arch ]] || { echo "build.sh: no GPU to ask for its architecture; give one, for instance 90a" >&2; exit 1; }
  # From Hopper on the kernels use instructions of the very chip.
  ((arch >= 90)) && arch+=a
fi
gencode=()
for each in $arch; do gencode+=("-gencode=arch=compute_$each,code=sm_$each"); done

include=(-I"$root/src" -I"$root/include" -I"$root/tests" -I"$root/bench")
host=(-std=c++20 -O2 -g1 -Wall -Wextra -ffp-contract=off -fPIC "${include[@]}" -DONELANE_WITH_CUDA -DONELANE_WITHOUT_CPU
      -isystem "$cuda/include")
device=(-std=c++20 -O3 -lineinfo "${include[@]}" -DONELANE_WITH_CUDA -Xcompiler -fPIC,-ffp-contract=off)
link=(-static-libstdc++ -static-libgcc -L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread)

# The kernels first: they take longest.
library=("$root"/src/cuda/attention/{cluster,combine,run,wide}.cu
         "$root"/src/kernels/attention/{api,plan,reference,validate}.cc
         "$root"/src/numerics/{formats,quantize,records}.cc "$root"/src/base/check.cc)
support=("$root"/tests/attention/{inputs,operands,compare,backend}.cc "$root"/tests/attention/backend_cuda.cu)
check=("$root"/tests/attention/{attention_check,cases}.cc)
replay=("$root"/tests/attention/*replay*.cc)
bench=("$root"/bench/attention/*.cc "$root"/bench/attention/*.cu)

object() { local name=${1#"$root"/}; echo "$out/obj/${name//\//+}.o"; }
current() {  # Whether an object is newer than all it was made from, the flags included.
  local target=$1 each
  [[ -e $target && -e ${target%.o}.d && $target -nt $out/obj/flags ]] || return 1
  for each in $(sed -e 's/^[^:]*://' -e 's/\\$//' "${target%.o}.d"); do
    [[ $target -nt $each ]] || return 1
  done
}
compile() {
  local source=$1 target log
  target=$(object "$source")
  log=${target%.o}.log
  if current "$target"; then return; fi
  local command=("$cxx" "${host[@]}")
  [[ $source == *.cu ]] && command=("$nvcc" "${device[@]}" "${gencode[@]}")
  # Hopper's instructions alone; it is there whatever else is compiled for (src/cuda/CMakeLists.txt says the same).
  [[ $source == */cluster.cu || $source == */wide.cu ]] && command=("$nvcc" "${device[@]}" -gencode=arch=compute_90a,code=sm_90a)
  if "${command[@]}" -MMD -MF "${target%.o}.d" -c "$source" -o "$target" >"$log" 2>&1; then
    # ptxas explains what it did for wgmma at length; anything that spills or is wrong is shown.
    grep -v 'C7519\|^$' "$log" || true
  else
    rm -f "$target"
    cat "$log" >&2
    echo "build.sh: $source does not compile" >&2
    return 1
  fi
}

flags="$nvcc ${device[*]} ${gencode[*]} $cxx ${host[*]}"
[[ -e $out/obj/flags && $(cat "$out/obj/flags") == "$flags" ]] || echo "$flags" >"$out/obj/flags"

jobs=${JOBS:-$(nproc)}
running=0
failed=0
for source in "${library[@]}" "${support[@]}" "${check[@]}" "${replay[@]}" "${bench[@]}"; do
  [[ -e $source ]] || continue
  if ((running >= jobs)); then wait -n || failed=1; running=$((running - 1)); fi
  compile "$source" &
  running=$((running + 1))
done
while ((running > 0)); do wait -n || failed=1; running=$((running - 1)); done
((failed == 0)) || exit 1

program() {
  local name=$1 source objects=()
  shift
  for source in "$@"; do objects+=("$(object "$source")"); done
  "$cxx" -o "$out/$name" "${objects[@]}" "${link[@]}"
  echo "build.sh: $out/$name"
}
program attention_check "${check[@]}" "${support[@]}" "${library[@]}"
[[ -e ${replay[0]} ]] && program onelane-attention-replay "${replay[@]}" "${support[@]}" "${library[@]}"
program attention_bench "${bench[@]}" "$root"/tests/attention/inputs.cc "${library[@]}"
