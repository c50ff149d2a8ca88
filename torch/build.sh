#!/usr/bin/env bash
# Builds the PyTorch operator with g++ (and nvcc) alone: no CMake, nothing fetched.
#
#   torch/build.sh [OUTDIR] [--arch "90a 120a"] [--library libonelane_attention.so]
#
# OUTDIR (build/torch) gets onelane_attention_torch.so, the operators, and with it libonelane_attention.so: the one that
# is given, or one made here: for the CPU its slow oracle, for CUDA the kernels for ARCH (default: the
# present GPU's; without GPU and --arch, or without nvcc, no CUDA). The two belong side by side, in any folder. PYTHON
# (python3) is asked where PyTorch's headers and libraries are; 2.10 or newer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
out=$root/build/torch
arch=
library=
while (($#)); do
  case $1 in
    --arch) arch=$2; shift ;;
    --library) library=$2; shift ;;
    -*) sed -n '2,10s/^# \?//p' "$0" >&2; exit 2 ;;
    *) out=$1 ;;
  esac
  shift
done
mkdir -p "$out/obj"
out=$(cd "$out" && pwd)
cxx=${CXX:-g++}
python=${PYTHON:-python3}
torch=$(cd / && "$python" -c '
import os, sys
try:
    import torch
except ImportError:
    sys.exit("build.sh: no PyTorch in %s; name the right one in PYTHON" % sys.executable)
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    sys.exit("build.sh: PyTorch %s is too old for the stable ABI used here; 2.10 or newer" % torch.__version__)
print(os.path.dirname(torch.__file__))')

compile() {  # compile SOURCE COMMAND...: to $out/obj, unless it is up to date
  local source=$1 object=$out/obj/${1//\//+}.o each
  shift
  object=${object/"${root//\//+}+"/}
  objects+=("$object")
  if [[ -e ${object%.o}.d && $(cat "${object%.o}.command" 2>/dev/null) == "$*" ]]; then
    local stale=
    for each in $(sed -e 's/^[^:]*://' -e 's/\\$//' "${object%.o}.d"); do
      [[ $object -nt $each ]] || stale=yes
    done
    [[ -n $stale ]] || return 0
  fi
  "$@" -MMD -MF "${object%.o}.d" -c "$source" -o "$object" 2>&1 | { grep -v 'C7519\|^$' || true; }
  echo "$*" >"${object%.o}.command"
}

if [[ -z $library ]]; then
  nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  if [[ -z $arch ]]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ') || true
    [[ -z $arch ]] || ((arch < 90)) || arch+=a
  fi
  library=$out/libonelane_attention.so
  objects=()
  link=(-static-libstdc++ -static-libgcc -Wl,-soname,libonelane_attention.so -Wl,--exclude-libs,ALL
        -Wl,-z,nodelete -Wl,-z,defs)
  include=(-I"$root/src" -I"$root/include")
  host=("$cxx" -std=c++20 -O2 -Wall -Wextra -ffp-contract=off -fPIC -fvisibility=hidden "${include[@]}")
  sources=("$root"/src/kernels/attention/{api,plan,reference,validate}.cc "$root"/src/base/check.cc
           "$root"/src/numerics/{formats,quantize,records}.cc "$here"/src/run_oracle.cc)
  if [[ -n $arch && -x $nvcc ]]; then
    cuda=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
    device=("$nvcc" -std=c++20 -O3 -lineinfo "${include[@]}" -Xcompiler -fPIC,-ffp-contract=off,-fvisibility=hidden)
    gencode=()
    for each in $arch; do gencode+=("-gencode=arch=compute_$each,code=sm_$each"); done
    for source in "$root"/src/cuda/attention/{cluster,combine,run,wide}.cu; do
      # Hopper's instructions alone (src/cuda/CMakeLists.txt says the same).
      if [[ $source == */cluster.cu || $source == */wide.cu ]]; then
        compile "$source" "${device[@]}" -gencode=arch=compute_90a,code=sm_90a
      else
        compile "$source" "${device[@]}" "${gencode[@]}"
      fi
    done
    link+=(-L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread)
    echo "build.sh: CUDA kernels for $arch"
  else
    sources+=("$root"/src/kernels/attention/no_cuda.cc)
    why="no nvcc"
    [[ ! -x $nvcc ]] || why="no GPU here; name one with --arch, for instance 90a"
    echo "build.sh: built without CUDA: $why"
  fi
  for source in "${sources[@]}"; do compile "$source" "${host[@]}"; done
  echo '{ global: onelane_attention_*; local: *; };' >"$out/obj/library.map"
  "$cxx" -shared -o "$library" "${objects[@]}" -Wl,--version-script="$out/obj/library.map" "${link[@]}"
elif [[ ! $library -ef $out/libonelane_attention.so ]]; then
  cp "$library" "$out/libonelane_attention.so"
fi

objects=()
for source in "$here"/src/{inputs,operator}.cc; do
  # Against the ABI of 2.10: newer versions keep it.
  compile "$source" "$cxx" -std=c++20 -O2 -Wall -Wextra -fPIC -fvisibility=hidden -fmacro-prefix-map="$root"/= \
    -DTORCH_TARGET_VERSION=0x020a000000000000 -I"$root/include" -isystem "$torch/include"
done
# libstdc++ is shared with PyTorch: exceptions cross. libtorch names libtorch_cuda where there is one.
"$cxx" -shared -o "$out/onelane_attention_torch.so" "${objects[@]}" -L"$out" -lonelane_attention -L"$torch/lib" \
  -Wl,--no-as-needed -ltorch -ltorch_cpu -Wl,--as-needed -Wl,-rpath,'$ORIGIN' -Wl,-z,nodelete -Wl,-z,defs \
  -Wl,--unresolved-symbols=ignore-in-shared-libs
echo "build.sh: $out/onelane_attention_torch.so ($(du -ch "$out"/*.so | tail -n 1 | cut -f 1) with its library)"
