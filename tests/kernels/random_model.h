// A small model with random weights that chains every stage, for comparing implementations, chunks and thread counts.
//
// Four layers of either generation cover every kind of layer: V4.1 window only with Engram, ratio 2 with an indexer,
// ratio 1 that publishes candidates, ratio 1 that reads entries and candidates of the layer before; V4 hash routing,
// ratio 4 with overlap and Hadamard, ratio 128 without indexer. Widths are odd where the contract lets them be.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/stage_support.h"

namespace onelane::testing {

// What a row got from every stage, in order; NaNs are all one NaN.
struct TraceItem {
  std::string stage;
  std::vector<std::byte> bytes;
};
using Trace = std::map<std::pair<int, int>, std::vector<TraceItem>>;  // by slot and position

struct ModelOptions {
  bool v41 = true;
  unsigned seed = 1;
  float embed_scale = 1;
  int topk = 2;           // experts per token, of 5
  bool normalise = true;  // expert weights
  int nan_token = -1;     // this token's embedding holds a NaN
};

// Caches of all sequences. Fresh memory is 0xff: what nobody wrote is a NaN.
struct ModelCaches {
  std::vector<Rings> rings;
  Rings draft_ring;
  std::vector<Pages> entries, keys;  // by layer
  std::vector<Buffer> states, index_states;
};

class RandomModel {
 public:
  static constexpr int kSlots = 3;
  static constexpr int kPagesPerSlot = 3;
  static constexpr int kVocab = 131;

  explicit RandomModel(const ModelOptions& options);
  ModelCaches make_caches() const;
  // The token of a sequence at a position.
  int32_t token(int slot, int position) const;
  // Runs one step; `step` must be Step(kSlots, kPagesPerSlot). Adds what every row got to `trace`, unless null.
  // `draft`: also runs the draft part with the step's rows as blocks, whose result depends on the whole run.
  void run(Kernels& kernels, ModelCaches& caches, Step& step, Trace* trace, bool draft = false) const;

 private:
  static constexpr int kHeads = 5;
  static constexpr int kGroups = 1;
  static constexpr int kOLora = 128;
  static constexpr int kExperts = 5;
  static constexpr int kIndexHeads = 6;
  static constexpr int kPicks = 20;
  static constexpr int kBlockSize = 8;
  static constexpr int kTopkBlocks = 4;
  static constexpr int kCandidateWords = 2;
  static constexpr int kColumns = 3;
  static constexpr int kEngramWidth = 32;
  static constexpr int kTableRows = 50;
  static constexpr int kRank = 21;
  static constexpr int kDraftBlock = 5;

  struct Expert {
    Weight w1, w2, w3;
    ExpertWeights weights() const { return {w1.matrix, w2.matrix, w3.matrix}; }
  };
  struct Mixing {
    Array<float> fn, base, scale;
    MixWeights weights() const { return {fn.data(), base.data(), scale.data()}; }
  };
  struct Pooler {
    Weight wkv, wgate;
    Array<float> ape;
    Array<bf16> norm;
    Compressor compressor;
  };
  struct Layer {
    int ratio = 0;
    int owner = -1;  // of the entries
    bool compresses = false;
    bool indexes = false;
    bool engram = false;
    bool hash = false;
    IndexArgs::Candidates mode = IndexArgs::Candidates::kNone;
    Mixing attn_mix, ffn_mix;
    Array<bf16> attn_norm, ffn_norm, q_norm, kv_norm;
    Weight wq_a, wq_b, wkv, wo_a, wo_b;
    Array<float> sink;
    Pooler main, index;
    Weight wk, index_wq_b, index_weights;
    Array<bf16> k_norm;
    Weight gate;
    Array<float> bias;
    Array<int64_t> tid2eid;
    std::vector<Expert> experts;
    std::vector<ExpertWeights> expert_weights;
    Expert shared;
  };
  struct Work;

  Weight fp8(int out, int in, bool activations = true);
  Weight fp4(int out, int in);
  Weight plain(int out, int in);
  Mixing mixing(int count);
  Pooler pooler(int ratio, int width);
  Expert expert(bool shared);
  Layer layer(int ratio, int owner);
  void attention(Kernels& kernels, ModelCaches& caches, const StepRows& rows, size_t number, Work& work) const;
  void feed_forward(Kernels& kernels, const StepRows& rows, const Layer& layer, Work& work) const;
  void draft(Kernels& kernels, ModelCaches& caches, const StepRows& rows, Work& work) const;

  ModelOptions options_;
  Random random_;
  int dim_, q_lora_, inter_, act_block_, fp8_block_;
  float eps_;
  Array<bf16> embed_, norm_;
  Weight head_;
  Mixing head_mix_;
  std::vector<Layer> layers_;
  Array<uint8_t> engram_table_, engram_scale_;
  Weight engram_wkv_;
  Array<bf16> engram_q_, engram_k_;
  Weight main_proj_;
  Array<bf16> main_norm_, markov_w1_;
  Weight markov_w2_, confidence_;
};

// The first difference between two traces, or an empty string.
std::string first_difference(const Trace& a, const Trace& b);

}  // namespace onelane::testing
