#include "checkpoint/config.h"

#include <filesystem>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/engram_primes.h"
#include "checkpoint/tiny_models.h"

namespace onelane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelSpec parsed(const json& config, const ConfigOptions& options = {}) {
  auto spec = parse_config(config.dump(), options);
  EXPECT_TRUE(spec) << spec.error().message;
  return spec ? *std::move(spec) : ModelSpec{};
}

std::string refusal(const json& config, const ConfigOptions& options = {}) {
  const auto spec = parse_config(config.dump(), options);
  EXPECT_FALSE(spec);
  return spec ? "" : spec.error().message;
}

// The full-size configurations, which live beside the repository.
std::string shared_config(const std::string& name) { return std::string(ONELANE_ROOT) + "/../shared/data/" + name; }

#define SKIP_WITHOUT(dir) \
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there"

TEST(Config, V4FlashLayerByLayer) {
  const std::string dir = shared_config("configs/v4-flash-0731");
  SKIP_WITHOUT(dir);
  const auto spec = load_config(dir);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->generation, Generation::kV4);
  EXPECT_TRUE(spec->unknown_keys.empty()) << spec->unknown_keys.front();
  ASSERT_EQ(spec->layers.size(), 43u);
  // The config declares one stage; its three trailing zeros tell the truth.
  EXPECT_EQ(spec->draft_stages.size(), 3u);
  EXPECT_EQ(spec->drafter, DrafterKind::kDspark);
  EXPECT_FALSE(spec->dspark.taps_are_inputs);
  EXPECT_THAT(spec->dspark.target_layers, ElementsAre(40, 41, 42));
  EXPECT_EQ(spec->weight_block, 128);
  EXPECT_FLOAT_EQ(spec->rms_eps, 1e-6F);
  EXPECT_TRUE(spec->q_head_norm && spec->indexer.hadamard && spec->hyper.head_merge);
  EXPECT_EQ(spec->hyper.flavour, HyperFlavour::kOwnPre);
  int ratio_4 = 0, ratio_128 = 0;
  for (const LayerSpec& layer : spec->layers) {
    EXPECT_EQ(layer.hash_routing, layer.index < 3);
    EXPECT_EQ(layer.rope, layer.index < 2 ? RopeTable::kA : RopeTable::kB);
    EXPECT_EQ(layer.moe.n_experts, 256);
    EXPECT_EQ(layer.moe.topk, 6);
    if (layer.index < 2) {
      EXPECT_EQ(layer.ratio, 0);
      EXPECT_EQ(layer.kv_owner, -1);
      EXPECT_FALSE(layer.has_compressor || layer.has_indexer);
      continue;
    }
    EXPECT_EQ(layer.kv_owner, layer.index);
    EXPECT_TRUE(layer.has_compressor && layer.has_compressor_gate && layer.has_ape);
    const bool picks = layer.index % 2 == 0;
    (picks ? ratio_4 : ratio_128) += 1;
    EXPECT_EQ(layer.ratio, picks ? 4 : 128);
    EXPECT_EQ(layer.compressor_overlap, picks);
    EXPECT_EQ(layer.has_indexer, picks);
    EXPECT_EQ(layer.index_owner, picks ? layer.index : -1);
  }
  EXPECT_EQ(ratio_4, 21);
  EXPECT_EQ(ratio_128, 20);
}

TEST(Config, V41FlashLayerByLayer) {
  const std::string dir = shared_config("configs/v41-flash");
  SKIP_WITHOUT(dir);
  const auto spec = load_config(dir);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->generation, Generation::kV41);
  EXPECT_TRUE(spec->unknown_keys.empty()) << spec->unknown_keys.front();
  ASSERT_EQ(spec->layers.size(), 40u);
  EXPECT_EQ(spec->draft_stages.size(), 3u);
  EXPECT_EQ(spec->draft_stages[0].moe.n_experts, 128);
  EXPECT_EQ(spec->draft_stages[0].moe.topk, 3);
  EXPECT_TRUE(spec->dspark.taps_are_inputs);
  EXPECT_FLOAT_EQ(spec->rms_eps, 1e-20F);
  EXPECT_GT(spec->rms_eps, 0.0F);
  EXPECT_EQ(spec->tokens.image, 129264);
  EXPECT_EQ(spec->vision.layers, 32);
  EXPECT_FALSE(spec->q_head_norm || spec->indexer.hadamard || spec->hyper.head_merge);
  const std::vector<int> kv_owners = {2, 8, 14, 20}, indexers = {2, 8, 14, 20, 24, 28, 32, 36};
  for (const LayerSpec& layer : spec->layers) {
    EXPECT_FALSE(layer.hash_routing);
    EXPECT_EQ(layer.engram, layer.index == 1 || layer.index == 14);
    if (layer.index < 2) continue;
    const int kv = layer.index >= 20 ? 20 : (layer.index - 2) / 6 * 6 + 2;
    const int picks = layer.index >= 20 ? layer.index / 4 * 4 : kv;
    EXPECT_EQ(layer.ratio, layer.index < 20 ? 2 : 1);
    EXPECT_EQ(layer.kv_owner, kv) << layer.index;
    EXPECT_EQ(layer.index_owner, picks) << layer.index;
    EXPECT_EQ(layer.has_compressor, layer.index == kv);
    EXPECT_EQ(layer.has_compressor_gate, layer.index == kv && layer.ratio == 2);
    EXPECT_EQ(layer.has_index_keys, layer.has_compressor);
    EXPECT_EQ(layer.has_indexer, layer.index == picks);
    EXPECT_EQ(layer.candidate_source, layer.index == 20);
    EXPECT_EQ(layer.candidate_masked, layer.has_indexer && layer.index > 20);
    EXPECT_FALSE(layer.has_ape || layer.compressor_overlap);
  }
}

TEST(Config, MiniModelsOfTheRepositoryParse) {
  for (const char* name : {"mini-v41", "mini-v4"}) {
    const std::string dir = std::string(ONELANE_ROOT) + "/models/" + name;
    if (!std::filesystem::exists(dir + "/config.json")) GTEST_SKIP() << dir << " is not there";
    const auto spec = load_config(dir);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_TRUE(spec->unknown_keys.empty()) << spec->unknown_keys.front();
  }
}

TEST(Config, TinyModels) {
  const ModelSpec v41 = parsed(tiny::v41());
  EXPECT_EQ(v41.layers[1].engram_rows, 17 + 19 + 23);
  EXPECT_FALSE(v41.draft_stages[0].moe.normalise);
  EXPECT_TRUE(v41.layers[0].moe.normalise);
  EXPECT_EQ(v41.ring_slots(), 134);
  EXPECT_EQ(v41.group_width(), 512);
  EXPECT_EQ(v41.tap_width(), 64);
  const ModelSpec v4 = parsed(tiny::v4());
  EXPECT_EQ(v4.draft_stages.size(), 2u);
  EXPECT_EQ(v4.layers[3].index_owner, 3);
}

TEST(Config, NamesDecideTheStagesOfV4) {
  EXPECT_EQ(parsed(tiny::v4(), {.draft_stages = 1}).draft_stages.size(), 1u);
  const ModelSpec none = parsed(tiny::v4(), {.draft_stages = 0});
  EXPECT_EQ(none.drafter, DrafterKind::kNone);
  EXPECT_EQ(none.ring_slots(), 129);
  EXPECT_THAT(refusal(tiny::v41(), {.draft_stages = 1}), HasSubstr("text_config.num_nextn_predict_layers: is 2"));
  // The preview has one stage and no dspark keys: plain multi-token prediction.
  json preview = tiny::v4();
  for (const char* key :
       {"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank"})
    preview.erase(key);
  preview["compress_ratios"] = {0, 4, 128, 4, 0};
  EXPECT_EQ(parsed(preview).drafter, DrafterKind::kMtp);
  EXPECT_THAT(refusal(preview, {.draft_stages = 3}), HasSubstr("dspark_block_size: is missing"));
}

TEST(Config, UnknownKeysAreKept) {
  json config = tiny::v41();
  config["extra"] = 1;
  config["text_config"]["rope_scaling"]["mscale"] = 2;
  config["text_config"]["new_gate"] = {{"a", 1}};
  EXPECT_THAT(parsed(config).unknown_keys,
              ElementsAre("text_config.rope_scaling.mscale", "text_config.new_gate", "extra"));
}

TEST(Config, NotAConfig) {
  auto message = [](std::string_view text) {
    const auto spec = parse_config(text);
    EXPECT_FALSE(spec);
    return spec ? "" : spec.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("top level: is []; an object is needed"));
  EXPECT_THAT(message("{}"), HasSubstr("model_type: is missing"));
  EXPECT_THAT(message(R"({"model_type": "llama"})"), AllOf(HasSubstr("\"llama\""), HasSubstr("deepseek_v41")));
  EXPECT_THAT(message(R"({"model_type": 3})"), HasSubstr("model_type: is 3; a string is needed"));
  EXPECT_THAT(message(R"({"model_type": "deepseek_v4", "model_type": "deepseek_v4"})"), HasSubstr("given twice"));
  EXPECT_THAT(message("{\"model_type\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(message(R"({"model_type": "deepseek_v41", "text_config": 1e999})"), HasSubstr("not valid JSON"));
}

// Every key that parsing needs is missed by its own name, and no value of another type gets through.
TEST(Config, EveryKeyIsMissedAndTypeChecked) {
  // Keys that may be absent, and keys that are documentation.
  const std::set<std::string> optional = {"/architectures",
                                          "/text_config/model_type",
                                          "/text_config/hidden_act",
                                          "/quantization_config/activation_scheme",
                                          "/quantization_config/fmt",
                                          "/text_config/candidate_source_layer_id",
                                          "/hidden_act",
                                          "/tie_word_embeddings",
                                          "/attention_bias",
                                          "/num_nextn_predict_layers",
                                          "/dspark_block_size"};
  for (const json& base : {tiny::v41(), tiny::v4()}) {
    const json flat = base.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      const std::filesystem::path path(pointer);
      const bool element = std::isdigit(static_cast<unsigned char>(path.filename().string()[0])) != 0;
      const std::string whole = element ? path.parent_path().string() : pointer;
      const std::string key = std::filesystem::path(whole).filename().string();
      if (!element && !optional.contains(pointer)) {
        json without = base;
        without[json::json_pointer(path.parent_path() == "/" ? "" : path.parent_path().string())].erase(key);
        EXPECT_THAT(refusal(without), AllOf(HasSubstr(key), HasSubstr("is missing"))) << pointer;
      }
      if (whole == "/architectures") continue;
      json wrong = base;
      wrong[json::json_pointer(whole)] = json::object();
      EXPECT_THAT(refusal(wrong), HasSubstr(key)) << pointer;
    }
  }
}

struct Mistake {
  const char* pointer;
  json value;
  const char* message;
};

void expect_refused(const json& base, const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    json config = base;
    config[json::json_pointer(mistake.pointer)] = mistake.value;
    EXPECT_THAT(refusal(config), HasSubstr(mistake.message)) << mistake.pointer << " = " << mistake.value;
  }
}

TEST(Config, AbsurdAndContradictoryV41) {
  expect_refused(
      tiny::v41(),
      {
          {"/text_config/vocab_size", -1, "text_config.vocab_size: is -1; a whole number from 8"},
          {"/text_config/vocab_size", 1.5, "vocab_size: is 1.5"},
          {"/text_config/vocab_size", 18446744073709551615ull, "vocab_size: is 18446744073709551615"},
          {"/text_config/hidden_size", 48, "hidden_size: is 48; a multiple of 32"},
          {"/text_config/q_lora_rank", 40, "q_lora_rank: is 40; a multiple of 32"},
          {"/text_config/o_lora_rank", 15, "o_lora_rank: is 15"},
          {"/text_config/o_groups", 3, "o_groups: is 3; it must divide the 2 attention heads"},
          {"/text_config/num_hidden_layers", 1000000000, "num_hidden_layers"},
          {"/text_config/num_hidden_layers", 7, "compress_ratios: has 6 entries; 7 layers"},
          {"/text_config/head_dim", 128, "head_dim: is 128; only 512"},
          {"/text_config/qk_rope_head_dim", 32, "only 64"},
          {"/text_config/index_head_dim", 64, "only 128"},
          {"/text_config/hc_mult", 2, "only 4"},
          {"/text_config/num_key_value_heads", 2, "only 1"},
          {"/text_config/scoring_func", "sigmoid", "scoring_func: is \"sigmoid\"; only \"sqrtsoftplus\""},
          {"/text_config/hidden_act", "gelu", "only \"silu\""},
          {"/text_config/norm_topk_prob", false, "only true"},
          {"/text_config/tie_word_embeddings", true, "only false"},
          {"/text_config/rms_norm_eps", 0, "rms_norm_eps: is 0"},
          {"/text_config/rope_theta", "10000", "rope_theta: is \"10000\"; a number"},
          {"/text_config/rope_scaling/rope_type", "linear", "only \"yarn\""},
          {"/text_config/rope_scaling/beta_fast", 0.5, "beta_fast: is below beta_slow"},
          {"/text_config/num_experts_per_tok", 4, "num_experts_per_tok: is 4; at most"},
          {"/text_config/dspark_num_experts_per_tok", 3, "dspark_num_experts_per_tok: is 3; at most"},
          {"/text_config/compress_ratios", {0, 2, 1, 1, 0}, "num_nextn_predict_layers: is 2, but"},
          {"/text_config/compress_ratios", {0, 2, 1, 1, 0, 1}, "compress_ratios[5]: is 1"},
          {"/text_config/compress_ratios", {0, 2, 4, 1, 0, 0}, "compress_ratios[2]: is 4; this generation"},
          {"/text_config/compress_ratios", {0, 2, 1, 2, 0, 0}, "compress_ratios[3]: is 2, but its KV source"},
          {"/text_config/compress_ratios", {2, 2, 1, 1, 0, 0}, "compress_ratios[0]: is 2, but no entry"},
          {"/text_config/compress_ratios", {0, 2, 1, 0, 0, 0}, "compress_ratios[3]: is 0, but index_source"},
          {"/text_config/compress_ratios", json::array(), "has 0 entries"},
          {"/text_config/compress_ratios", std::vector<int>(100000, 0), "an array of at most"},
          {"/text_config/kv_source_layer_ids", {2, 1}, "kv_source_layer_ids[1]: is 1 after 2"},
          {"/text_config/kv_source_layer_ids", {1, 4}, "kv_source_layer_ids[1]: is 4; a whole number from 0 to 3"},
          {"/text_config/index_source_layer_ids", {1, 3}, "kv_source_layer_ids[1]: is 2; every KV source"},
          {"/text_config/candidate_source_layer_id", 0, "candidate_source_layer_id: is 0, which"},
          {"/text_config/candidate_source_layer_id", 1, "later index source 2 scores other KV"},
          {"/text_config/candidate_topk_blocks", 7, "candidate_topk_blocks: is 7; blocks of 8"},
          {"/text_config/engram_num_embeddings", {60}, "engram_num_embeddings[0]: is 60; the primes of layer 1 sum to"},
          {"/text_config/engram_num_embeddings", {59, 59}, "has 2 entries; engram_layer_ids has 1"},
          {"/text_config/engram_head_dim", 48, "engram_head_dim: is 48; a multiple of 32"},
          {"/text_config/engram_compressed_vocab_size", -1, "engram_compressed_vocab_size: is -1"},
          {"/text_config/engram_pad_token_id", 64, "engram_pad_token_id: is 64; ids of this vocabulary"},
          {"/text_config/dspark_noise_token_id", 64, "dspark_noise_token_id: is 64"},
          {"/text_config/dspark_target_layer_ids", json::array(), "is empty"},
          {"/text_config/dspark_target_layer_ids", {2, 4}, "dspark_target_layer_ids[1]: is 4"},
          {"/text_config/dspark_block_size", 0, "dspark_block_size: is 0"},
          {"/quantization_config/weight_block_size", {128, 128}, "weight_block_size: is [128, 128]; this generation"},
          {"/quantization_config/expert_dtype", "fp8", "only \"fp4\""},
          {"/quantization_config/quant_method", "gptq", "only \"fp8\""},
          {"/vision_config", {{"num_hidden_layers", 2}}, "vision_config.hidden_size: is missing"},
          {"/bos_token_id", 64, "bos_token_id: is 64"},
      });
}

TEST(Config, AbsurdAndContradictoryV4) {
  expect_refused(tiny::v4(), {
                                 {"/compress_ratios", {0, 4, 64, 4, 0, 0}, "compress_ratios[2]: is 64"},
                                 {"/compress_ratios", {0, 4, 128}, "compress_ratios: has 3 entries"},
                                 {"/num_hash_layers", 5, "num_hash_layers: is 5"},
                                 {"/expert_dtype", "fp8", "expert_dtype"},
                                 {"/quantization_config/weight_block_size", {32, 32}, "this generation"},
                                 {"/hidden_size", 160, "a multiple of 128"},
                                 {"/moe_intermediate_size", 64, "a multiple of 128"},
                                 {"/attention_bias", true, "only false"},
                                 {"/eos_token_id", {1, 2}, "eos_token_id: is [1,2]"},
                             });
}

TEST(Config, ErrorsNameTheFile) {
  const std::string dir = tiny::fresh_dir("config_errors");
  EXPECT_THAT(load_config(dir).error().message, HasSubstr(dir + "/config.json"));
  ASSERT_TRUE(write_file(dir + "/config.json", "{"));
  EXPECT_THAT(load_config(dir).error().message, AllOf(HasSubstr(dir + "/config.json"), HasSubstr("not valid JSON")));
}

// Appendix D.
TEST(EngramPrimes, FullSize) {
  EngramSpec engram;
  engram.layers = {1, 14};
  engram.max_ngram = 4;
  engram.heads = 8;
  engram.vocab_size = 16000000;
  const auto primes = engram_primes(engram);
  ASSERT_EQ(primes.size(), 2u);
  EXPECT_THAT(std::vector<int64_t>(primes[0].begin(), primes[0].begin() + 8),
              ElementsAre(16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183));
  EXPECT_EQ(primes[0].back(), 16000463);
  EXPECT_EQ(primes[1].front(), 16000477);
  EXPECT_EQ(primes[1].back(), 16000889);
  EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), int64_t{0}), 384016682);
}

}  // namespace
}  // namespace onelane
