// The full list of tensors that a model must have, and the check of a checkpoint against it.
//
// Nothing is loaded by "whatever is there": a missing, extra, mis-shaped or mis-typed tensor is refused by name. That
// is how a checkpoint nobody has seen yet is admitted or turned away (spec/model.md appendix B).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/model_spec.h"

namespace onelane {

// What a tensor is for; decides when a decode step reads it (footprint.h).
enum class TensorKind {
  kEmbedding,   // embed.weight: one row per token
  kHead,        // head.weight
  kNorm,        // RMS norm weights
  kHyper,       // hc_*
  kAttention,   // projections and sinks
  kCompressor,  // attn.compressor.*
  kIndexer,     // attn.indexer.*
  kRouter,      // gate weight and biases
  kHashRouter,  // gate.tid2eid: one row per token
  kExpert,      // routed experts: only the picked ones
  kSharedExpert,
  kEngramTable,   // engram.embed: a few rows per token
  kEngram,        // engram.{wkv,q_weight,k_weight}
  kDrafter,       // main_proj, confidence head, Markov output head; the V4 preview's e_proj and h_proj
  kDrafterTable,  // the Markov input table: one row per draft
  kVision,        // vision.*, aligner.*, image_*: not read by text
};
inline constexpr int kTensorKindCount = 16;

// "routed experts", "engram tables", ... for people.
std::string_view kind_name(TensorKind kind);

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  TensorKind kind = TensorKind::kNorm;
  int layer = -1;      // backbone layer or draft stage; -1 for the model's own
  bool draft = false;  // belongs to mtp.*

  int64_t bytes() const;
};

// Every tensor of the model, in layer order. The vision tower's names come from public descriptions of the checkpoint
// and from its byte total, not from spec/model.md, which only counts them.
std::vector<ExpectedTensor> expected_tensors(const ModelSpec& spec);

// S of the mtp.S.* names: one more than the largest, 0 without any. Refuses a gap and more than 8.
Result<int> count_draft_stages(const Checkpoint& checkpoint);

// All names present, none beyond them, every dtype and shape as expected. An Error lists the first ten of every kind of
// problem and the counts. The vision tensors may be absent as a whole, because text does not need them.
Result<void> check_inventory(const ModelSpec& spec, const Checkpoint& checkpoint);

struct ModelFiles {
  ModelSpec spec;
  Checkpoint checkpoint;
};

// DIR/config.json and the checkpoint beside it, checked against each other: the only way the engine opens a model.
Result<ModelFiles> open_model(const std::string& dir);

}  // namespace onelane
