// The parts of the indexer: queries, scores of all entries a row sees, the best of them. Scores are made only for rows
// that have a choice.
#pragma once

#include "cuda/stage.h"

namespace onelane::cuda {

// A row's queries in fp4, their codes as operands. Heads beyond the model's, up to whole eights, are zeros of weight 0.
struct IndexQueries {
  int heads = 0;              // a multiple of 8
  uint4* operands = nullptr;  // f16 [rows, heads / 8, blocks of 32 dims, lanes 4 (head % 8) + t, 8]: codes 8 t on
  uint8_t* scales = nullptr;  // e8m0 [rows, heads, 4], as encoded
  float* weights = nullptr;   // [rows, heads]
};

// What scoring and choosing need of IndexArgs, as kernel argument.
struct IndexChoice {
  PagedCache keys;
  int ratio = 0;
  int topk = 0;
  IndexArgs::Candidates mode = IndexArgs::Candidates::kNone;
  int topk_blocks = 0;
  int block_size = 0;
  uint32_t* candidates = nullptr;
  int candidate_words = 0;

  __device__ __forceinline__ int visible(int position) const { return (position + 1) / ratio; }
  // Whether a row that sees so many entries is scored.
  __device__ __forceinline__ bool is_scored(int entries) const {
    return entries > topk || mode == IndexArgs::Candidates::kPublish;
  }
  __device__ __forceinline__ bool is_candidate(int row, int entry) const {
    const int block = entry / block_size;
    return candidates[static_cast<int64_t>(row) * candidate_words + block / 32] >> (block % 32) & 1;
  }
};

// The scores of some consecutive rows of the step: values[(row - first_row) * stride + entry].
struct IndexScores {
  int first_row = 0;
  int rows = 0;
  int stride = 0;
  float* values = nullptr;

  __device__ __forceinline__ float* of_row(int row) const {
    return values + static_cast<int64_t>(row - first_row) * stride;
  }
};

// Scores of all entries that the rows see, if they are scored, to the bit as kernels.h says; -inf for NaN and for what
// is no candidate.
void score_entries(const Stage& stage, const IndexQueries& queries, const IndexChoice& choice,
                   const IndexScores& scores);

// Their picks [step rows, topk] and, where the layer publishes them, candidates. `block_keys`: scratch for that, [rows,
// ceil(stride / block_size)].
void select_entries(const Stage& stage, const IndexChoice& choice, const IndexScores& scores, uint32_t* block_keys,
                    int32_t* picks);

}  // namespace onelane::cuda
