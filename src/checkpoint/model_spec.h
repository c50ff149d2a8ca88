// ModelSpec: what a model is, in numbers; the same shape for both generations of DeepSeek-V4-Flash.
//
// Everything below the parser works from this description alone: only config.cc knows the strings "deepseek_v4" and
// "deepseek_v41", and no code elsewhere asks for the generation when a field says what it needs to know. A spec that
// came out of parse_config is consistent (config.h lists what was checked); nothing here is checked again.
//
// Section numbers are of spec/model.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numerics/records.h"

namespace onelane {

// Head sizes are constants of the family (numerics/records.h); parse_config refuses others.
inline constexpr int kHyperMult = 4;  // copies of the residual stream

enum class Generation { kV4, kV41 };

// 3.2: kA is base rope.theta without scaling; kB is base rope.compress_theta with YaRN, and is used for everything in
// its layer (queries, window, compressed entries, indexer, inverse rotation).
enum class RopeTable { kA, kB };

// 2.3, 2.4: which `pre` collapses the stream before a sublayer. kOwnPre: the sublayer's own. kDelayedPre: the one that
// the sublayer before it produced, one-hot on copy 0 before layer 0 and before draft stage 0.
enum class HyperFlavour { kOwnPre, kDelayedPre };

// 6: what predicts tokens ahead of the model.
enum class DrafterKind {
  kNone,    // no mtp.* tensors
  kMtp,     // the V4 preview's single multi-token-prediction layer (6.1): known to the loader, not used for drafting
  kDspark,  // a block drafter of several stages (6.2)
};

// Mixture of experts of one block: w1, w3 [inter, hidden] and w2 [hidden, inter] per expert, MXFP4; one shared expert
// of the same shape in fp8.
struct MoeSpec {
  int n_experts = 0;      // E
  int topk = 0;           // k <= E
  int inter = 0;          // rows of w1 and w3
  float scaling = 1.0F;   // multiplies the (normalised) weights
  float norm_eps = 0.0F;  // added to the sum the weights are divided by: 1e-20 in V4.1, 0 in V4 (guard 0/0 there)
  bool normalise = true;  // divide the picked scores by their sum; false for top-1 in V4.1 (9.1)
  bool operator==(const MoeSpec&) const = default;
};

// One block: hyper-connection mixing, attention and MoE. Backbone layers and draft stages alike.
struct LayerSpec {
  int index = 0;       // layer L of layers.L.*, or stage S of mtp.S.*
  bool draft = false;  // a draft stage: names begin with mtp. and attention is 6.4's
  RopeTable rope = RopeTable::kA;

  // --- compressed KV ---
  int ratio = 0;         // tokens per compressed entry; 0 = sliding window only
  int kv_owner = -1;     // the layer whose compressed entries (and index keys) are read; == index for an owner
  int index_owner = -1;  // the layer whose picks are attended; == index for an indexer. With ratio > 0, -1 means that
                         // all visible entries are attended (V4, ratio 128)
  bool has_compressor = false;       // owns attn.compressor.{wkv,norm}: writes entries
  bool has_compressor_gate = false;  // compressor.wgate: softmax-weighted pooling over the group (ratio 1 has none)
  bool has_ape = false;              // compressor.ape [ratio, width]: position bias inside a group (V4)
  bool compressor_overlap = false;   // width 2*512: a group also pools the group before it (V4, ratio 4)
  bool has_index_keys = false;       // writes index keys: V4 by a second compressor, V4.1 by indexer.{wk,k_norm}
  bool has_indexer = false;          // owns indexer.{wq_b,weights_proj}: scores and picks
  bool candidate_source = false;     // its scores choose the candidate blocks; its own picks are not masked (3.5)
  bool candidate_masked = false;     // picks only inside the candidate source's blocks

  // --- the rest of the block ---
  bool hash_routing = false;  // experts from gate.tid2eid [vocab, topk] by token id instead of from the scores
  MoeSpec moe;
  bool engram = false;      // writes Engram into the stream before anything else (7.1)
  int64_t engram_rows = 0;  // rows of engram.embed: the sum of the layer's primes
  bool operator==(const LayerSpec&) const = default;
};

// Hyper-connections: how the copies of the residual stream are mixed around a sublayer (2.2).
struct HyperSpec {
  int mult = kHyperMult;
  int sinkhorn_iters = 0;  // counts the first softmax and column pass
  float eps = 0.0F;
  HyperFlavour flavour = HyperFlavour::kOwnPre;
  bool head_merge = false;  // hc_head_{fn,base,scale} collapse the last stream; otherwise the last FFN's pre does
  // Rows of hc_{attn,ffn}_fn: pre, post and the mult x mult matrix.
  int rows() const { return mult * (2 + mult); }
  bool operator==(const HyperSpec&) const = default;
};

struct RopeSpec {
  float theta = 0.0F;           // table A
  float compress_theta = 0.0F;  // table B
  float factor = 1.0F;          // YaRN, table B only; never an mscale
  float beta_fast = 0.0F;
  float beta_slow = 0.0F;
  int original_positions = 0;
  bool operator==(const RopeSpec&) const = default;
};

struct IndexerSpec {
  int heads = 0;
  int head_dim = kIndexDim;
  int topk = 0;           // entries attended per row
  bool hadamard = false;  // rotate queries and keys by Walsh-128 before fp4 (V4)
  bool operator==(const IndexerSpec&) const = default;
};

// Two-level selection (3.5, V4.1).
struct CandidateSpec {
  int source_layer = -1;  // -1: no candidate masking in this model
  int topk_blocks = 0;
  int block_size = 0;  // entries per block
  bool operator==(const CandidateSpec&) const = default;
};

struct EngramSpec {
  std::vector<int> layers;        // ascending; empty: no Engram in this model
  int max_ngram = 0;              // orders 2..max_ngram
  int heads = 0;                  // tables per order
  int head_dim = 0;               // values per table row
  int64_t vocab_size = 0;         // primes are sought from vocab_size - 1 upwards
  int pad_token_id = -1;          // the token whose compressed id fills history before the start
  int compressed_vocab_size = 0;  // distinct ids after the token map; part of every multiplier's derivation
  // Columns per token and layer, each one table row.
  int columns() const { return (max_ngram - 1) * heads; }
  // Width of the concatenated rows: K of engram.wkv.
  int width() const { return columns() * head_dim; }
  bool operator==(const EngramSpec&) const = default;
};

struct DsparkSpec {
  int block_size = 0;              // drafts per pass
  int noise_token_id = -1;         // fills the block after the anchor
  std::vector<int> target_layers;  // ascending; taps are concatenated in this order
  int markov_rank = 0;
  // V4.1 taps the stream entering a target layer (after its Engram write), V4 the stream leaving it (6.3).
  bool taps_are_inputs = false;
  bool operator==(const DsparkSpec&) const = default;
};

// Ids with a meaning of their own; -1 where the model has none.
struct TokenIds {
  int bos = -1;
  int eos = -1;
  int pad = -1;
  int image = -1;
  bool operator==(const TokenIds&) const = default;
};

// Sizes of the vision tower and aligner (7.3). Text runs without them; they are known so that their tensors can be
// accounted for.
struct VisionSpec {
  int layers = 0;  // 0: no vision_config
  int hidden = 0;
  int inter = 0;
  int patch_size = 0;
  int downsample = 0;
  bool operator==(const VisionSpec&) const = default;
};

struct ModelSpec {
  Generation generation = Generation::kV4;

  int vocab = 0;
  int hidden = 0;   // D
  int n_heads = 0;  // query heads; there is one KV head
  int head_dim = kHeadDim;
  int rope_dim = kRopeDim;
  int q_lora = 0;    // rank of the query projection
  int o_lora = 0;    // rows of wo_a per output group
  int o_groups = 0;  // n_heads / o_groups heads share one wo_a
  int window = 0;    // positions attended directly, the row's own included
  int max_positions = 0;
  float rms_eps = 0.0F;
  float swiglu_limit = 0.0F;  // up clamped to +-limit, gate from above only
  int weight_block = 0;       // edge of the square fp8 scale grid: 128 (V4), 32 (V4.1)
  int act_block = 0;          // activations are quantised per this many values along K; equals weight_block

  bool q_head_norm = false;        // weightless RMS norm per query head before RoPE (V4)
  bool router_image_bias = false;  // gate.bias_vl exists and is used for image tokens (V4.1)
  // 4.1: the trained quantisation of cached KV vectors. Index keys are kIndexMxfp4 in both generations.
  RecordFormat window_record = RecordFormat::kV4Fp8;
  RecordFormat compressed_record = RecordFormat::kV4Fp8;

  HyperSpec hyper;
  RopeSpec rope;
  IndexerSpec indexer;
  CandidateSpec candidate;
  EngramSpec engram;
  TokenIds tokens;

  DrafterKind drafter = DrafterKind::kNone;
  DsparkSpec dspark;  // meaningful for kDspark

  std::vector<LayerSpec> layers;
  std::vector<LayerSpec> draft_stages;

  VisionSpec vision;
  // Dotted paths of config keys that the parser does not know. A new key may carry a new meaning, so they are shown.
  std::vector<std::string> unknown_keys;

  // Slots of a sliding-window ring: rejected drafts must not overwrite live entries (4.4).
  int ring_slots() const { return window + (drafter == DrafterKind::kDspark ? dspark.block_size : 0) + 1; }
  // K of wo_a: the heads of one output group, concatenated.
  int group_width() const { return n_heads / o_groups * head_dim; }
  // Width of the concatenated DSpark taps: K of mtp.0.main_proj.
  int tap_width() const { return static_cast<int>(dspark.target_layers.size()) * hidden; }
  bool operator==(const ModelSpec&) const = default;
};

}  // namespace onelane
