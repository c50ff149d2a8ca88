// The smallest models that have every kind of tensor, as config.json documents and as directories of zeros.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/mapped_file.h"
#include "checkpoint/inventory.h"
#include "checkpoint/safetensors.h"

namespace onelane::tiny {

using nlohmann::json;

// Four layers: window only; an owner of ratio 2 with Engram; an owner of ratio 1 that chooses candidates; a re-indexer.
inline json v41() {
  return json::parse(R"({"model_type": "deepseek_v41", "architectures": ["DeepseekV41ForCausalLM"],
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                            "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
    "text_config": {"model_type": "deepseek_v41_text", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 32,
      "o_lora_rank": 16, "o_groups": 2, "moe_intermediate_size": 64, "n_routed_experts": 3, "n_shared_experts": 1,
      "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
      "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu", "rms_norm_eps": 1e-20,
      "sliding_window": 128, "rope_theta": 10000, "compress_rope_theta": 160000,
      "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                       "original_max_position_embeddings": 65536},
      "max_position_embeddings": 65536, "compress_ratios": [0, 2, 1, 1, 0, 0], "kv_source_layer_ids": [1, 2],
      "index_source_layer_ids": [1, 2, 3], "index_n_heads": 2, "index_head_dim": 128, "index_topk": 64,
      "candidate_source_layer_id": 2, "candidate_topk_blocks": 16, "candidate_block_size": 8,
      "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
      "engram_layer_ids": [1], "engram_num_embeddings": [59], "engram_max_ngram_size": 4, "engram_vocab_size": 16,
      "engram_n_heads": 1, "engram_head_dim": 32, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 60,
      "num_nextn_predict_layers": 2, "dspark_block_size": 5, "dspark_noise_token_id": 3,
      "dspark_target_layer_ids": [2, 3], "dspark_markov_rank": 8, "dspark_n_routed_experts": 2,
      "dspark_num_experts_per_tok": 1}})");
}

// Four layers: hash routing without compression; ratio 4; ratio 128; ratio 4. Two draft stages, declared as V4 does.
inline json v4() {
  return json::parse(R"({"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"],
    "bos_token_id": 0, "eos_token_id": 1, "vocab_size": 64, "hidden_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128,
    "o_lora_rank": 64, "o_groups": 2, "moe_intermediate_size": 128, "n_routed_experts": 3, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 1.5, "num_hash_layers": 1, "swiglu_limit": 10.0, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "sliding_window": 128, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "max_position_embeddings": 65536, "compress_ratios": [0, 4, 128, 4, 0, 0], "index_n_heads": 2,
    "index_head_dim": 128, "index_topk": 64, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
      "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "tie_word_embeddings": false, "attention_bias": false, "num_nextn_predict_layers": 1, "dspark_block_size": 5,
    "dspark_noise_token_id": 3, "dspark_target_layer_ids": [2, 3], "dspark_markov_rank": 8})");
}

// A fresh directory of this test's own.
inline std::string fresh_dir(const std::string& name) {
  const std::string dir = testing::TempDir() + "/" + std::to_string(::getpid()) + "_checkpoint_" + name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

// Tensors of zeros that own their bytes.
struct Zeros {
  std::vector<TensorToWrite> tensors;
  std::vector<std::vector<std::byte>> storage;

  void add(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    storage.emplace_back(static_cast<size_t>(*element_count(shape) * dtype_bytes(dtype)));
    tensors.push_back({name, dtype, shape, storage.back()});
  }
  TensorToWrite* find(const std::string& name) {
    for (TensorToWrite& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const TensorToWrite& tensor) { return tensor.name == name; });
  }
};

inline Zeros zeros(const ModelSpec& spec) {
  Zeros out;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) out.add(tensor.name, tensor.dtype, tensor.shape);
  return out;
}

// DIR/config.json and DIR/model.safetensors.
inline void write_model(const std::string& dir, const json& config, const Zeros& tensors) {
  ASSERT_TRUE(write_file(dir + "/config.json", config.dump()));
  const auto written = write_safetensors(dir + "/model.safetensors", tensors.tensors);
  ASSERT_TRUE(written) << written.error().message;
}

}  // namespace onelane::tiny
