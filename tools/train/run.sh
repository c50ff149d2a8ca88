#!/bin/sh
# Trains, exports and reports one mini model: run.sh NAME [trainer.py options]
#   tools/train/run.sh mini-v41 --minutes 16 --data build/train/data --out build/train/mini-v41
# Continues from OUT/checkpoint.pt if there is one. Compiled kernels are cached under build/, so a second run starts faster.
set -eu
cd "$(dirname "$0")/../.."
name=${1:?usage: tools/train/run.sh NAME [options]}
shift
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$PWD/build/inductor}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$PWD/build/triton}"
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" tools/train/trainer.py --model "models/$name" --data build/train/data --out "build/train/$name" "$@"
