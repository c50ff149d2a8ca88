// The lightning indexer and its two-level selection (spec/model.md 3.4, 3.5).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/reference/stages.h"
#include "kernels/reference/vector_ops.h"
#include "numerics/formats.h"

namespace onelane::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kBlock = 32;

using IndexVector = std::array<float, kIndexDim>;

// One row's query heads after RoPE, Hadamard and fp4.
std::vector<IndexVector> quantised_queries(const IndexArgs& args, std::vector<bf16> qi, int position) {
  const RopeAngles angles = rope_angles(*args.rope, position);
  std::vector<IndexVector> queries(args.heads);
  for (int h = 0; h < args.heads; ++h) {
    bf16* head = qi.data() + offset(h, kIndexDim);
    rope_tail(head, kIndexDim, angles);
    if (args.hadamard) hadamard(head);
    std::array<std::byte, record_bytes(RecordFormat::kIndexMxfp4)> bytes;
    const RecordBlock record{bytes.data(), RecordFormat::kIndexMxfp4, 1};
    store_record(record, 0, head);
    load_record(record, 0, queries[h].data());
  }
  return queries;
}

// S of one key. The order of the float sums is part of the contract; inside a block of 32 every sum is exact.
float score(const std::vector<IndexVector>& queries, const float* weights, const IndexVector& key) {
  float sum = 0;
  for (size_t h = 0; h < queries.size(); ++h) {
    float dot = 0;
    for (int block = 0; block < kIndexDim; block += kBlock) {
      double part = 0;
      for (int i = block; i < block + kBlock; ++i) part += static_cast<double>(queries[h][i]) * key[i];
      dot += static_cast<float>(part);
    }
    // A NaN passes: `dot < 0` is false.
    sum += (dot < 0 ? 0.0f : dot) * weights[h];
  }
  return std::isnan(sum) ? -kInfinity : sum;
}

// Numbers of the `count` best scores, ties to the lower number, ascending.
std::vector<int> best(const std::vector<float>& scores, int count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), count));
  std::sort(order.begin(), order.end());
  return order;
}

void publish_candidates(const IndexArgs& args, const std::vector<float>& scores, uint32_t* bits) {
  const int visible = static_cast<int>(scores.size());
  const int blocks = (visible + args.block_size - 1) / args.block_size;
  ONELANE_CHECK(blocks <= 32 * args.candidate_words, "the candidate bits of a row are too few");
  std::fill_n(bits, args.candidate_words, 0u);
  if (visible == 0) return;
  std::vector<float> block_scores(blocks, -kInfinity);
  for (int j = 0; j < visible; ++j) {
    float& block = block_scores[j / args.block_size];
    block = std::max(block, scores[j]);
  }
  block_scores.back() = kInfinity;  // the newest block always stays
  for (const int block : best(block_scores, args.topk_blocks)) {
    if (block_scores[block] > -kInfinity) bits[block / 32] |= 1u << (block % 32);
  }
}

void apply_candidates(const IndexArgs& args, const uint32_t* bits, std::vector<float>& scores) {
  for (size_t j = 0; j < scores.size(); ++j) {
    const size_t block = j / args.block_size;
    ONELANE_CHECK(block < 32 * static_cast<size_t>(args.candidate_words), "the candidate bits of a row are too few");
    if ((bits[block / 32] >> (block % 32) & 1u) == 0) scores[j] = -kInfinity;
  }
}

}  // namespace

void index(const StepRows& rows, const IndexArgs& args) {
  const auto head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * args.heads));
  std::vector<float> weights(args.heads);
  IndexVector key;

  for (int row = 0; row < rows.count; ++row) {
    const int position = rows.position[row];
    const int slot = rows.runs[rows.run_of[row]].slot;
    const bf16* qi = args.queries + offset(row, args.heads * kIndexDim);
    const std::vector<IndexVector> queries =
        quantised_queries(args, {qi, qi + offset(args.heads, kIndexDim)}, position);
    for (int h = 0; h < args.heads; ++h) {
      weights[h] = round_bf16(bf16_to_float(args.head_weights[offset(row, args.heads) + h]) * head_scale);
    }
    std::vector<float> scores((position + 1) / args.ratio);
    for (size_t j = 0; j < scores.size(); ++j) {
      const EntryPlace place = entry_place(rows, args.keys, slot, static_cast<int>(j));
      load_record(place.block, place.index, key.data());
      scores[j] = score(queries, weights.data(), key);
    }
    uint32_t* bits = args.candidates == nullptr ? nullptr : args.candidates + offset(row, args.candidate_words);
    if (args.mode == IndexArgs::Candidates::kPublish) publish_candidates(args, scores, bits);
    if (args.mode == IndexArgs::Candidates::kApply) apply_candidates(args, bits, scores);
    const std::vector<int> picked = best(scores, args.topk);
    int32_t* picks = args.picks + offset(row, args.topk);
    std::fill_n(picks, args.topk, -1);
    std::copy(picked.begin(), picked.end(), picks);
  }
}

}  // namespace onelane::reference
