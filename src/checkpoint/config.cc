#include "checkpoint/config.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/config_layers.h"
#include "checkpoint/strict_json.h"

namespace onelane {
namespace {

using nlohmann::json;

// Generous limits: several times the largest published member of the family, and small enough that a spec's whole
// tensor inventory fits in memory.
constexpr int kMaxLayers = 128;
constexpr int kMaxWidth = 32768;  // hidden, ranks, expert width
constexpr int kMaxVocab = 1 << 20;
constexpr int kMaxExperts = 1024;
constexpr int kMaxHeads = 512;
constexpr int kMaxWindow = 4096;
constexpr int kMaxPositions = 1 << 24;
constexpr int kMaxTopk = 8192;

// Keys of the text model that both generations share, under the same names.
void read_shared(ConfigFields& f, ModelSpec& spec) {
  spec.vocab = f.small("vocab_size", 8, kMaxVocab);
  spec.hidden = f.small("hidden_size", 32, kMaxWidth);
  spec.n_heads = f.small("num_attention_heads", 1, kMaxHeads);
  f.require_equal("num_key_value_heads", 1);
  f.require_equal("head_dim", kHeadDim);
  f.require_equal("qk_rope_head_dim", kRopeDim);
  spec.q_lora = f.small("q_lora_rank", 1, kMaxWidth);
  spec.o_lora = f.small("o_lora_rank", 1, kMaxWidth);
  spec.o_groups = f.small("o_groups", 1, kMaxHeads);
  spec.window = f.small("sliding_window", 1, kMaxWindow);
  spec.max_positions = f.small("max_position_embeddings", 1, kMaxPositions);
  // Zero would divide by zero on a zero row; 1e-20 is the V4.1 value and must survive the narrowing to float.
  spec.rms_eps = f.number("rms_norm_eps", 1e-30, 1e-2);
  f.require_text_if_present("hidden_act", "silu");
  spec.swiglu_limit = f.number("swiglu_limit", 1e-3, 1e6);

  spec.hyper.mult = kHyperMult;
  f.require_equal("hc_mult", kHyperMult);
  spec.hyper.sinkhorn_iters = f.small("hc_sinkhorn_iters", 1, 1000);
  spec.hyper.eps = f.number("hc_eps", 1e-30, 1e-2);

  spec.indexer.heads = f.small("index_n_heads", 1, kMaxHeads);
  f.require_equal("index_head_dim", kIndexDim);
  spec.indexer.topk = f.small("index_topk", 1, kMaxTopk);

  f.require_equal("n_shared_experts", 1);
  f.require_text("scoring_func", "sqrtsoftplus");
  f.require_text("topk_method", "noaux_tc");
  f.require_true("norm_topk_prob");

  spec.rope.theta = f.number("rope_theta", 1.0, 1e9);
  spec.rope.compress_theta = f.number("compress_rope_theta", 1.0 + 1e-6, 1e9);
  ConfigFields scaling = f.object("rope_scaling");
  scaling.require_text(scaling.has("type") ? "type" : "rope_type", "yarn");
  scaling.require_text_if_present("rope_type", "yarn");
  spec.rope.factor = scaling.number("factor", 1.0, 1e4);
  spec.rope.beta_fast = scaling.number("beta_fast", 1e-3, 1e6);
  spec.rope.beta_slow = scaling.number("beta_slow", 1e-3, 1e6);
  spec.rope.original_positions = scaling.small("original_max_position_embeddings", 1, kMaxPositions);
  if (spec.rope.beta_fast < spec.rope.beta_slow) {
    scaling.fail(ErrorCode::kInvalidArgument, "beta_fast", "is below beta_slow; the fast bound must not be smaller");
  }
  scaling.collect_unknown(spec.unknown_keys);

  f.require_false("tie_word_embeddings");
  f.require_false("attention_bias");
  f.ignore({"attention_dropout", "initializer_range", "use_cache", "torch_dtype", "dtype", "transformers_version",
            "architectures", "model_type"});
}

MoeSpec read_moe(ConfigFields& f, std::string_view experts_key, std::string_view topk_key, float norm_eps,
                 bool normalise_top1) {
  MoeSpec moe;
  moe.n_experts = f.small(experts_key, 1, kMaxExperts);
  moe.topk = f.small(topk_key, 1, 64);
  moe.inter = f.small("moe_intermediate_size", 32, kMaxWidth);
  moe.scaling = f.number("routed_scaling_factor", 1e-3, 1e3);
  moe.norm_eps = norm_eps;
  moe.normalise = normalise_top1 || moe.topk > 1;
  if (moe.topk > moe.n_experts) {
    f.fail(ErrorCode::kInvalidArgument, topk_key,
           format("is {}; at most {} = {} experts can be picked", moe.topk, f.path_of(experts_key), moe.n_experts));
  }
  return moe;
}

int read_token(ConfigFields& f, std::string_view key, int vocab) {
  const int id = f.small(key, 0, kMaxVocab);
  if (id >= vocab) {
    f.fail(ErrorCode::kInvalidArgument, key, format("is {}; ids of this vocabulary are below {}", id, vocab));
  }
  return id;
}

void read_quantisation(ConfigFields& f, ModelSpec& spec, int block) {
  f.require_text("quant_method", "fp8");
  f.require_text_if_present("fmt", "e4m3");
  f.require_text("scale_fmt", "ue8m0");
  f.require_text_if_present("activation_scheme", "dynamic");
  const std::vector<int64_t> grid = f.integers("weight_block_size", 2, 1, 1 << 20);
  if (grid != std::vector<int64_t>{block, block}) {
    f.fail(ErrorCode::kUnsupported, "weight_block_size",
           format("is [{}]; this generation is quantised in [{}, {}]", join(grid, ", "), block, block));
  }
  spec.weight_block = block;
  spec.act_block = block;
}

void read_dspark(ConfigFields& f, ModelSpec& spec, int n_layers) {
  spec.dspark.block_size = f.small("dspark_block_size", 1, 16);
  spec.dspark.noise_token_id = read_token(f, "dspark_noise_token_id", spec.vocab);
  spec.dspark.target_layers = f.ascending("dspark_target_layer_ids", kMaxLayers, 0, n_layers - 1);
  if (spec.dspark.target_layers.empty()) {
    f.fail(ErrorCode::kInvalidArgument, "dspark_target_layer_ids", "is empty; at least one layer must be tapped");
  }
  spec.dspark.markov_rank = f.small("dspark_markov_rank", 1, kMaxWidth);
}

// The ratios of the layers; the entries beyond them, one per draft stage, must be 0 and are counted in `extra`.
std::vector<int> read_ratios(ConfigFields& f, int n_layers, int& extra) {
  const std::vector<int64_t> all = f.integers("compress_ratios", kMaxLayers + kMaxDraftStages, 0, kMaxPositions);
  std::vector<int> ratios(n_layers, 0);
  extra = static_cast<int>(all.size()) - n_layers;
  if (extra < 0 || extra > kMaxDraftStages) {
    f.fail(ErrorCode::kInvalidArgument, "compress_ratios",
           format("has {} entries; {} layers need that many, plus one 0 for each of at most {} draft stages",
                  all.size(), n_layers, kMaxDraftStages));
    extra = 0;
    return ratios;
  }
  std::copy_n(all.begin(), n_layers, ratios.begin());
  for (size_t i = n_layers; i < all.size(); ++i) {
    if (all[i] != 0) {
      f.fail(ErrorCode::kInvalidArgument, format("compress_ratios[{}]", i),
             format("is {}; entries beyond the {} layers stand for draft stages and must be 0", all[i], n_layers));
    }
  }
  return ratios;
}

// Widths that the quantisers and the grouped projections cut into blocks.
void check_widths(ConfigFields& f, const ModelSpec& spec, int inter) {
  auto divides = [&](std::string_view key, int value, int block, const char* why) {
    if (value % block == 0) return;
    f.fail(ErrorCode::kInvalidArgument, key, format("is {}; a multiple of {} is needed: {}", value, block, why));
  };
  const int block = spec.act_block;
  divides("hidden_size", spec.hidden, block, "activations are quantised in blocks of that many");
  divides("q_lora_rank", spec.q_lora, block, "activations are quantised in blocks of that many");
  divides("moe_intermediate_size", inter, block, "activations are quantised in blocks of that many");
  if (spec.o_groups > spec.n_heads || spec.n_heads % spec.o_groups != 0) {
    f.fail(ErrorCode::kInvalidArgument, "o_groups",
           format("is {}; it must divide the {} attention heads", spec.o_groups, spec.n_heads));
  }
  if (spec.o_groups * spec.o_lora % block != 0) {
    f.fail(ErrorCode::kInvalidArgument, "o_lora_rank",
           format("is {}; times o_groups = {} it must be a multiple of {}", spec.o_lora, spec.o_groups, block));
  }
}

void parse_v4(ConfigFields& top, const ConfigOptions& options, ModelSpec& spec) {
  spec.generation = Generation::kV4;
  read_shared(top, spec);
  const int n_layers = top.small("num_hidden_layers", 1, kMaxLayers);
  const MoeSpec moe = read_moe(top, "n_routed_experts", "num_experts_per_tok", 0.0F, true);
  top.require_text("expert_dtype", "fp4");
  ConfigFields quantisation = top.object("quantization_config");
  read_quantisation(quantisation, spec, 128);
  quantisation.collect_unknown(spec.unknown_keys);
  check_widths(top, spec, moe.inter);

  spec.q_head_norm = true;
  spec.indexer.hadamard = true;
  spec.hyper.flavour = HyperFlavour::kOwnPre;
  spec.hyper.head_merge = true;
  spec.window_record = RecordFormat::kV4Fp8;
  spec.compressed_record = RecordFormat::kV4Fp8;
  spec.tokens.bos = read_token(top, "bos_token_id", spec.vocab);
  spec.tokens.eos = read_token(top, "eos_token_id", spec.vocab);
  if (top.has("pad_token_id")) spec.tokens.pad = read_token(top, "pad_token_id", spec.vocab);
  top.ignore({"pad_token_id"});

  int extra = 0;
  const std::vector<int> ratios = read_ratios(top, n_layers, extra);
  const int hash_layers = top.small("num_hash_layers", 0, n_layers);
  spec.layers = v4_layers(top, ratios, hash_layers, moe);

  // num_nextn_predict_layers says 1 in checkpoints with three stages (trap 27), so it is read and not believed.
  top.small_or("num_nextn_predict_layers", 0, kMaxDraftStages, 0);
  const bool dspark = top.has("dspark_block_size");
  const int stages = options.draft_stages.value_or(extra);
  if (dspark) {
    read_dspark(top, spec, n_layers);
    spec.dspark.taps_are_inputs = false;
  } else if (stages > 1) {
    top.fail(ErrorCode::kNotFound, "dspark_block_size",
             format("is missing; a drafter of {} stages is described by dspark_* keys", stages));
  }
  if (stages > 0) spec.drafter = dspark ? DrafterKind::kDspark : DrafterKind::kMtp;
  spec.draft_stages = draft_layers(stages, moe);
  top.collect_unknown(spec.unknown_keys);
}

void read_engram(ConfigFields& text, ModelSpec& spec, int n_layers) {
  EngramSpec& engram = spec.engram;
  engram.layers = text.ascending("engram_layer_ids", kMaxLayers, 0, n_layers - 1);
  const std::vector<int64_t> rows = text.integers("engram_num_embeddings", kMaxLayers, 1, int64_t{1} << 40);
  engram.max_ngram = text.small("engram_max_ngram_size", 2, 8);
  engram.vocab_size = text.integer("engram_vocab_size", 2, int64_t{1} << 28);
  engram.heads = text.small("engram_n_heads", 1, 64);
  engram.head_dim = text.small("engram_head_dim", 32, 4096);
  engram.pad_token_id = read_token(text, "engram_pad_token_id", spec.vocab);
  engram.compressed_vocab_size = text.small("engram_compressed_vocab_size", 1, spec.vocab);
  if (engram.head_dim % 32 != 0) {
    text.fail(ErrorCode::kInvalidArgument, "engram_head_dim",
              format("is {}; a multiple of 32 is needed: rows carry one scale per 32 values", engram.head_dim));
  }
  assign_engram_rows(text, rows, spec);
}

void read_vision(ConfigFields& top, ModelSpec& spec) {
  ConfigFields vision = top.object("vision_config");
  vision.require_text_if_present("model_type", "deepseek_v41_vision");
  spec.vision.layers = vision.small("num_hidden_layers", 1, kMaxLayers);
  spec.vision.hidden = vision.small("hidden_size", 1, kMaxWidth);
  spec.vision.inter = vision.small("intermediate_size", 1, kMaxWidth);
  spec.vision.patch_size = vision.small("patch_size", 1, 256);
  spec.vision.downsample = vision.small("downsample_ratio", 1, 64);
  vision.ignore({"num_attention_heads", "rope_theta", "max_image_tokens", "min_pixels", "max_wh_ratio"});
  vision.collect_unknown(spec.unknown_keys);
}

void parse_v41(ConfigFields& top, const ConfigOptions& options, ModelSpec& spec) {
  spec.generation = Generation::kV41;
  ConfigFields text = top.object("text_config");
  text.require_text_if_present("model_type", "deepseek_v41_text");
  read_shared(text, spec);
  const int n_layers = text.small("num_hidden_layers", 1, kMaxLayers);
  constexpr float kNormEps = 1e-20F;
  const MoeSpec moe = read_moe(text, "n_routed_experts", "num_experts_per_tok", kNormEps, false);
  ConfigFields quantisation = top.object("quantization_config");
  read_quantisation(quantisation, spec, 32);
  quantisation.require_text("expert_dtype", "fp4");
  quantisation.collect_unknown(spec.unknown_keys);
  check_widths(text, spec, moe.inter);

  spec.q_head_norm = false;
  spec.router_image_bias = true;
  spec.indexer.hadamard = false;
  spec.hyper.flavour = HyperFlavour::kDelayedPre;
  spec.hyper.head_merge = false;
  spec.window_record = RecordFormat::kV41Fp8;
  spec.compressed_record = RecordFormat::kV41Nvfp4;
  spec.tokens.bos = read_token(top, "bos_token_id", spec.vocab);
  spec.tokens.eos = read_token(top, "eos_token_id", spec.vocab);
  spec.tokens.pad = read_token(top, "pad_token_id", spec.vocab);
  if (top.has("image_token_id")) spec.tokens.image = read_token(top, "image_token_id", spec.vocab);

  int extra = 0;
  SharedKv sharing;
  sharing.ratios = read_ratios(text, n_layers, extra);
  sharing.kv_sources = text.ascending("kv_source_layer_ids", kMaxLayers, 0, n_layers - 1);
  sharing.index_sources = text.ascending("index_source_layer_ids", kMaxLayers, 0, n_layers - 1);
  spec.candidate.source_layer = text.small_or("candidate_source_layer_id", -1, n_layers - 1, -1);
  if (spec.candidate.source_layer >= 0) {
    spec.candidate.topk_blocks = text.small("candidate_topk_blocks", 1, 1 << 20);
    spec.candidate.block_size = text.small("candidate_block_size", 1, 1024);
  }
  text.ignore({"candidate_topk_blocks", "candidate_block_size"});
  spec.layers = v41_layers(text, sharing, spec, moe);
  read_engram(text, spec, n_layers);

  const int declared = text.small("num_nextn_predict_layers", 0, kMaxDraftStages);
  if (declared != extra) {
    text.fail(ErrorCode::kInvalidArgument, "num_nextn_predict_layers",
              format("is {}, but text_config.compress_ratios has {} entries beyond the {} layers", declared, extra,
                     n_layers));
  }
  if (options.draft_stages && *options.draft_stages != declared) {
    text.fail(
        ErrorCode::kInvalidArgument, "num_nextn_predict_layers",
        format("is {}, but the checkpoint holds the tensors of {} draft stages", declared, *options.draft_stages));
  }
  if (declared > 0) {
    spec.drafter = DrafterKind::kDspark;
    read_dspark(text, spec, n_layers);
    spec.dspark.taps_are_inputs = true;
    // The reference's own configuration spells the second key differently.
    const char* topk_key =
        text.has("dspark_n_activated_experts") ? "dspark_n_activated_experts" : "dspark_num_experts_per_tok";
    const MoeSpec draft = read_moe(text, "dspark_n_routed_experts", topk_key, kNormEps, false);
    spec.draft_stages = draft_layers(declared, draft);
  }
  if (top.has("vision_config")) read_vision(top, spec);
  text.collect_unknown(spec.unknown_keys);
  top.ignore({"image_token_id", "vision_config", "architectures", "transformers_version", "torch_dtype", "dtype"});
  top.collect_unknown(spec.unknown_keys);
}

}  // namespace

Result<ModelSpec> parse_config(std::string_view text, const ConfigOptions& options) {
  ONELANE_ASSIGN(const json document, parse_strict_json(text));
  ONELANE_CHECK(!options.draft_stages || (*options.draft_stages >= 0 && *options.draft_stages <= kMaxDraftStages),
                "count_draft_stages bounds this");
  std::optional<Error> problem;
  ConfigFields top(document, "", problem);
  ModelSpec spec;
  const std::string model_type = top.text("model_type");
  if (!problem) {
    if (model_type == "deepseek_v4") {
      parse_v4(top, options, spec);
    } else if (model_type == "deepseek_v41") {
      parse_v41(top, options, spec);
    } else {
      top.fail(ErrorCode::kUnsupported, "model_type",
               format("is \"{}\"; \"deepseek_v4\" and \"deepseek_v41\" are supported", model_type));
    }
  }
  if (problem) return *std::move(problem);
  return spec;
}

Result<ModelSpec> load_config(const std::string& dir, const ConfigOptions& options) {
  const std::string path = dir + "/config.json";
  ONELANE_ASSIGN(const std::string text, read_file(path));
  auto spec = parse_config(text, options);
  if (!spec) return std::move(spec).error().in(path);
  return spec;
}

}  // namespace onelane
