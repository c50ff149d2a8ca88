// The published shapes, and cutting them.
#include <algorithm>

#include "base/format.h"
#include "checkpoint/config.h"
#include "model/synthetic.h"

namespace onelane {
namespace {

// config.json in as few words as parse_config takes (spec/model.md 1.1, 1.2).
constexpr std::string_view kV4Flash = R"({
  "model_type": "deepseek_v4", "vocab_size": 129280, "bos_token_id": 0, "eos_token_id": 1,
  "hidden_size": 4096, "num_hidden_layers": 43, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128,
  "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8,
  "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 65536},
  "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128,
                      4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 128, 4, 0, 0, 0],
  "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
  "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
  "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
  "num_hash_layers": 3, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
  "routed_scaling_factor": 1.5, "swiglu_limit": 10, "expert_dtype": "fp4",
  "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
  "dspark_block_size": 5, "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [40, 41, 42],
  "dspark_markov_rank": 256})";

constexpr std::string_view kV41Flash = R"({
  "model_type": "deepseek_v41", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264,
  "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32],
                          "expert_dtype": "fp4"},
  "text_config": {
    "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40, "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-20,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
    "sliding_window": 128, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2304,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "swiglu_limit": 10,
    "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4,
    "engram_vocab_size": 16000000, "engram_n_heads": 8, "engram_head_dim": 256, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256, "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3},
  "vision_config": {"num_hidden_layers": 32, "hidden_size": 1024, "intermediate_size": 2816, "patch_size": 14,
                    "downsample_ratio": 3}})";

}  // namespace

Result<ModelSpec> synthetic_spec(std::string_view family) {
  if (family == "v4") return parse_config(kV4Flash);
  if (family == "v41") return parse_config(kV41Flash);
  return Error{ErrorCode::kInvalidArgument, format("no synthetic model is called '{}'; 'v4' and 'v41' are", family)};
}

ModelSpec first_layers(ModelSpec spec, int layers) {
  ONELANE_CHECK(layers >= 1 && layers <= static_cast<int>(spec.layers.size()), "a cut keeps 1 to all layers");
  spec.layers.resize(static_cast<size_t>(layers));
  if (spec.candidate.source_layer >= layers) spec.candidate = {};
  std::erase_if(spec.engram.layers, [&](int layer) { return layer >= layers; });
  std::vector<int>& targets = spec.dspark.target_layers;
  targets.resize(std::min(targets.size(), static_cast<size_t>(layers)));
  if (!targets.empty() && targets.back() >= layers) {
    const int first = layers - static_cast<int>(targets.size());
    for (size_t i = 0; i < targets.size(); ++i) targets[i] = first + static_cast<int>(i);
  }
  return spec;
}

}  // namespace onelane
