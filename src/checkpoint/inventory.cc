#include "checkpoint/inventory.h"

#include <array>
#include <set>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kShown = 10;  // problems of one sort that a message lists

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Collects tensors; `layer` and `draft` are stamped on everything added.
class Builder {
 public:
  explicit Builder(const ModelSpec& spec) : spec_(spec) {}

  void enter(int layer, bool draft) {
    layer_ = layer;
    draft_ = draft;
  }

  void add(std::string name, DType dtype, std::vector<int64_t> shape, TensorKind kind) {
    out_.push_back({std::move(name), dtype, std::move(shape), kind, layer_, draft_});
  }
  void norm(const std::string& stem, int64_t width) { add(stem + ".weight", DType::kBF16, {width}, TensorKind::kNorm); }
  // fp8 on a square grid of scales.
  void fp8(const std::string& stem, int64_t rows, int64_t cols, TensorKind kind) {
    add(stem + ".weight", DType::kF8E4M3, {rows, cols}, kind);
    add(stem + ".scale", DType::kF8E8M0, {ceil_div(rows, spec_.weight_block), ceil_div(cols, spec_.weight_block)},
        kind);
  }
  // Packed fp4 with a scale per 32 values along K.
  void fp4(const std::string& stem, int64_t rows, int64_t cols, TensorKind kind) {
    add(stem + ".weight", DType::kI8, {rows, cols / 2}, kind);
    add(stem + ".scale", DType::kF8E8M0, {rows, cols / 32}, kind);
  }
  void bf16(const std::string& stem, int64_t rows, int64_t cols, TensorKind kind) {
    add(stem + ".weight", DType::kBF16, {rows, cols}, kind);
  }
  void hyper(const std::string& stem, int64_t rows, int64_t scales) {
    const int64_t width = int64_t{spec_.hyper.mult} * spec_.hidden;
    add(stem + "_fn", DType::kF32, {rows, width}, TensorKind::kHyper);
    add(stem + "_base", DType::kF32, {rows}, TensorKind::kHyper);
    add(stem + "_scale", DType::kF32, {scales}, TensorKind::kHyper);
  }

  void attention(const LayerSpec& layer, const std::string& prefix);
  void indexer(const LayerSpec& layer, const std::string& prefix);
  void compressor(const LayerSpec& layer, const std::string& prefix, int64_t head_dim, TensorKind kind);
  void ffn(const LayerSpec& layer, const std::string& prefix);
  void engram(const LayerSpec& layer, const std::string& prefix);
  void block(const LayerSpec& layer, const std::string& prefix);
  void drafter();
  void vision();

  std::vector<ExpectedTensor> take() { return std::move(out_); }

 private:
  const ModelSpec& spec_;
  std::vector<ExpectedTensor> out_;
  int layer_ = -1;
  bool draft_ = false;
};

void Builder::attention(const LayerSpec& layer, const std::string& prefix) {
  const int64_t heads_width = int64_t{spec_.n_heads} * spec_.head_dim;
  const int64_t out_rank = int64_t{spec_.o_groups} * spec_.o_lora;
  fp8(prefix + "wq_a", spec_.q_lora, spec_.hidden, TensorKind::kAttention);
  norm(prefix + "q_norm", spec_.q_lora);
  fp8(prefix + "wq_b", heads_width, spec_.q_lora, TensorKind::kAttention);
  fp8(prefix + "wkv", spec_.head_dim, spec_.hidden, TensorKind::kAttention);
  norm(prefix + "kv_norm", spec_.head_dim);
  add(prefix + "attn_sink", DType::kF32, {spec_.n_heads}, TensorKind::kAttention);
  fp8(prefix + "wo_a", out_rank, spec_.group_width(), TensorKind::kAttention);
  fp8(prefix + "wo_b", spec_.hidden, out_rank, TensorKind::kAttention);
  if (layer.has_compressor) compressor(layer, prefix + "compressor.", spec_.head_dim, TensorKind::kCompressor);
  indexer(layer, prefix + "indexer.");
}

void Builder::compressor(const LayerSpec& layer, const std::string& prefix, int64_t head_dim, TensorKind kind) {
  // An overlapping compressor has one half of its outputs for the group itself and one for the group after it.
  const int64_t width = layer.compressor_overlap ? 2 * head_dim : head_dim;
  bf16(prefix + "wkv", width, spec_.hidden, kind);
  if (layer.has_compressor_gate) bf16(prefix + "wgate", width, spec_.hidden, kind);
  if (layer.has_ape) add(prefix + "ape", DType::kF32, {layer.ratio, width}, kind);
  norm(prefix + "norm", head_dim);
}

void Builder::indexer(const LayerSpec& layer, const std::string& prefix) {
  if (layer.has_indexer) {
    fp8(prefix + "wq_b", int64_t{spec_.indexer.heads} * spec_.indexer.head_dim, spec_.q_lora, TensorKind::kIndexer);
    bf16(prefix + "weights_proj", spec_.indexer.heads, spec_.hidden, TensorKind::kIndexer);
  }
  if (!layer.has_index_keys) return;
  if (spec_.generation == Generation::kV4) {
    compressor(layer, prefix + "compressor.", spec_.indexer.head_dim, TensorKind::kIndexer);
  } else {
    bf16(prefix + "wk", spec_.indexer.head_dim, spec_.head_dim, TensorKind::kIndexer);
    norm(prefix + "k_norm", spec_.indexer.head_dim);
  }
}

void Builder::ffn(const LayerSpec& layer, const std::string& prefix) {
  const MoeSpec& moe = layer.moe;
  bf16(prefix + "gate", moe.n_experts, spec_.hidden, TensorKind::kRouter);
  if (layer.hash_routing) {
    add(prefix + "gate.tid2eid", DType::kI64, {spec_.vocab, moe.topk}, TensorKind::kHashRouter);
  } else {
    add(prefix + "gate.bias", DType::kF32, {moe.n_experts}, TensorKind::kRouter);
  }
  if (spec_.router_image_bias) add(prefix + "gate.bias_vl", DType::kF32, {moe.n_experts}, TensorKind::kRouter);
  for (int expert = 0; expert < moe.n_experts; ++expert) {
    const std::string stem = format("{}experts.{}.", prefix, expert);
    fp4(stem + "w1", moe.inter, spec_.hidden, TensorKind::kExpert);
    fp4(stem + "w2", spec_.hidden, moe.inter, TensorKind::kExpert);
    fp4(stem + "w3", moe.inter, spec_.hidden, TensorKind::kExpert);
  }
  const std::string shared = prefix + "shared_experts.";
  fp8(shared + "w1", moe.inter, spec_.hidden, TensorKind::kSharedExpert);
  fp8(shared + "w2", spec_.hidden, moe.inter, TensorKind::kSharedExpert);
  fp8(shared + "w3", moe.inter, spec_.hidden, TensorKind::kSharedExpert);
}

void Builder::engram(const LayerSpec& layer, const std::string& prefix) {
  const EngramSpec& engram = spec_.engram;
  const int64_t copies = spec_.hyper.mult;
  add(prefix + "embed.weight", DType::kF8E4M3, {layer.engram_rows, engram.head_dim}, TensorKind::kEngramTable);
  add(prefix + "embed.scale", DType::kF8E8M0, {layer.engram_rows, engram.head_dim / 32}, TensorKind::kEngramTable);
  // One key per stream copy, then the value.
  fp8(prefix + "wkv", (copies + 1) * spec_.hidden, engram.width(), TensorKind::kEngram);
  add(prefix + "q_weight", DType::kBF16, {copies, spec_.hidden}, TensorKind::kEngram);
  add(prefix + "k_weight", DType::kBF16, {copies, spec_.hidden}, TensorKind::kEngram);
}

void Builder::block(const LayerSpec& layer, const std::string& prefix) {
  hyper(prefix + "hc_attn", spec_.hyper.rows(), 3);
  norm(prefix + "attn_norm", spec_.hidden);
  attention(layer, prefix + "attn.");
  hyper(prefix + "hc_ffn", spec_.hyper.rows(), 3);
  norm(prefix + "ffn_norm", spec_.hidden);
  ffn(layer, prefix + "ffn.");
  if (layer.engram) engram(layer, prefix + "engram.");
}

void Builder::drafter() {
  const int last = static_cast<int>(spec_.draft_stages.size()) - 1;
  for (const LayerSpec& stage : spec_.draft_stages) {
    enter(stage.index, true);
    const std::string prefix = format("mtp.{}.", stage.index);
    block(stage, prefix);
    if (spec_.drafter == DrafterKind::kMtp) {
      fp8(prefix + "e_proj", spec_.hidden, spec_.hidden, TensorKind::kDrafter);
      fp8(prefix + "h_proj", spec_.hidden, spec_.hidden, TensorKind::kDrafter);
      norm(prefix + "enorm", spec_.hidden);
      norm(prefix + "hnorm", spec_.hidden);
    } else if (stage.index == 0) {
      fp8(prefix + "main_proj", spec_.hidden, spec_.tap_width(), TensorKind::kDrafter);
      norm(prefix + "main_norm", spec_.hidden);
    }
    if (stage.index != last) continue;
    norm(prefix + "norm", spec_.hidden);
    if (spec_.hyper.head_merge) hyper(prefix + "hc_head", spec_.hyper.mult, 1);
    if (spec_.drafter == DrafterKind::kMtp) continue;
    const bool v4 = spec_.generation == Generation::kV4;
    const int64_t rank = spec_.dspark.markov_rank;
    bf16(prefix + (v4 ? "markov_head.markov_w1" : "markov_head.embed"), spec_.vocab, rank, TensorKind::kDrafterTable);
    bf16(prefix + (v4 ? "markov_head.markov_w2" : "markov_head.head"), spec_.vocab, rank, TensorKind::kDrafter);
    bf16(prefix + "confidence_head.proj", 1, spec_.hidden + rank, TensorKind::kDrafter);
  }
}

void Builder::vision() {
  const VisionSpec& vision = spec_.vision;
  const int64_t width = vision.hidden;
  auto linear = [&](const std::string& stem, int64_t rows, int64_t cols, bool bias) {
    bf16(stem, rows, cols, TensorKind::kVision);
    if (bias) add(stem + ".bias", DType::kBF16, {rows}, TensorKind::kVision);
  };
  auto vector = [&](std::string name, int64_t size) {
    add(std::move(name), DType::kBF16, {size}, TensorKind::kVision);
  };
  linear("vision.patch_embed.proj", width, int64_t{3} * vision.patch_size * vision.patch_size, true);
  for (int i = 0; i < vision.layers; ++i) {
    const std::string prefix = format("vision.blocks.{}.", i);
    vector(prefix + "norm1.weight", width);
    linear(prefix + "attn.wqkv", 3 * width, width, true);
    linear(prefix + "attn.wo", width, width, true);
    vector(prefix + "norm2.weight", width);
    linear(prefix + "mlp.w1", 2 * int64_t{vision.inter}, width, false);  // gate and up together
    linear(prefix + "mlp.w2", width, vision.inter, false);
  }
  vector("vision.norm.weight", width);
  linear("aligner.w1", spec_.hidden, width * vision.downsample * vision.downsample, true);
  linear("aligner.w2", spec_.hidden, spec_.hidden, true);
  for (const char* name : {"image_start", "image_newline", "image_end"}) vector(name, spec_.hidden);
}

// The head of a list of names and how many there are in all.
struct Problems {
  std::vector<std::string> shown;
  size_t count = 0;

  void add(std::string text) {
    if (++count <= kShown) shown.push_back(std::move(text));
  }
  void print(std::string& out, const char* what) const {
    if (count == 0) return;
    out += format("{}{} {}: {}", out.empty() ? "" : "; ", count, what, join(shown, ", "));
    if (count > shown.size()) out += ", ...";
  }
};

}  // namespace

std::string_view kind_name(TensorKind kind) {
  static constexpr std::array<std::string_view, kTensorKindCount> kNames = {
      "embedding",    "output head",    "norms",          "hyper-connections",
      "attention",    "compressors",    "indexers",       "routers",
      "hash routing", "routed experts", "shared experts", "engram tables",
      "engram",       "draft head",     "draft table",    "vision"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t ExpectedTensor::bytes() const {
  const auto count = element_count(shape);
  ONELANE_CHECK(count.has_value(), "parse_config bounds every dimension");
  return *count * dtype_bytes(dtype);
}

std::vector<ExpectedTensor> expected_tensors(const ModelSpec& spec) {
  Builder builder(spec);
  builder.bf16("embed", spec.vocab, spec.hidden, TensorKind::kEmbedding);
  for (const LayerSpec& layer : spec.layers) {
    builder.enter(layer.index, false);
    builder.block(layer, format("layers.{}.", layer.index));
  }
  builder.enter(-1, false);
  if (spec.hyper.head_merge) builder.hyper("hc_head", spec.hyper.mult, 1);
  builder.norm("norm", spec.hidden);
  builder.bf16("head", spec.vocab, spec.hidden, TensorKind::kHead);
  builder.drafter();
  builder.enter(-1, false);
  if (spec.vision.layers > 0) builder.vision();
  return builder.take();
}

Result<int> count_draft_stages(const Checkpoint& checkpoint) {
  std::set<std::string, std::less<>> found;
  constexpr std::string_view kPrefix = "mtp.";
  for (auto it = checkpoint.tensors().lower_bound(kPrefix); it != checkpoint.tensors().end(); ++it) {
    if (!it->first.starts_with(kPrefix)) break;
    found.insert(it->first.substr(0, it->first.find('.', kPrefix.size())));
  }
  const int count = static_cast<int>(found.size());
  if (count > kMaxDraftStages) {
    return Error{ErrorCode::kUnsupported,
                 format("the checkpoint has {} draft stages; at most {} are supported", count, kMaxDraftStages)};
  }
  for (int stage = 0; stage < count; ++stage) {
    if (!found.contains(format("mtp.{}", stage))) {
      return Error{
          ErrorCode::kCorrupt,
          format("draft stages are not numbered from 0: '{}.*' is there, 'mtp.{}.*' is not", *found.rbegin(), stage)};
    }
  }
  return count;
}

Result<void> check_inventory(const ModelSpec& spec, const Checkpoint& checkpoint) {
  const std::vector<ExpectedTensor> expected = expected_tensors(spec);
  const bool text_only = checkpoint.find("vision.patch_embed.proj.weight") == nullptr &&
                         checkpoint.find("aligner.w1.weight") == nullptr && checkpoint.find("image_start") == nullptr;
  Problems missing, extra, wrong;
  std::set<std::string_view> names;
  for (const ExpectedTensor& want : expected) {
    names.insert(want.name);
    const TensorView* have = checkpoint.find(want.name);
    if (have == nullptr) {
      if (want.kind != TensorKind::kVision || !text_only) missing.add(want.name);
    } else if (have->dtype != want.dtype || have->shape != want.shape) {
      wrong.add(format("{} is {} {}, not {} {}", want.name, dtype_name(have->dtype), shape_text(have->shape),
                       dtype_name(want.dtype), shape_text(want.shape)));
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!names.contains(name)) extra.add(name);
  }
  std::string message;
  missing.print(message, "missing");
  extra.print(message, "not part of this model");
  wrong.print(message, "of another type or shape");
  if (message.empty()) return {};
  return Error{ErrorCode::kCorrupt, format("tensors do not match config.json: {}", message)};
}

Result<ModelFiles> open_model(const std::string& dir) {
  ONELANE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(dir));
  auto stages = count_draft_stages(checkpoint);
  if (!stages) return std::move(stages).error().in(dir);
  ONELANE_ASSIGN(ModelSpec spec, load_config(dir, {.draft_stages = *stages}));
  auto checked = check_inventory(spec, checkpoint);
  if (!checked) return std::move(checked).error().in(dir);
  return ModelFiles{std::move(spec), std::move(checkpoint)};
}

}  // namespace onelane
