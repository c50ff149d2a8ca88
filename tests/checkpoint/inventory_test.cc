#include "checkpoint/inventory.h"

#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "checkpoint/tiny_models.h"

namespace onelane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string shared_data(const std::string& name) { return std::string(ONELANE_ROOT) + "/../shared/data/" + name; }

#define SKIP_WITHOUT(dir) \
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there"

struct Totals {
  std::map<std::string, int> per_block;  // "layers.7" or "mtp.0" -> tensors
  int64_t bytes = 0;
  size_t count = 0;
};

Totals totals(const ModelSpec& spec) {
  Totals out;
  std::set<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    out.bytes += tensor.bytes();
    ++out.count;
    if (tensor.layer >= 0) ++out.per_block[format("{}.{}", tensor.draft ? "mtp" : "layers", tensor.layer)];
  }
  return out;
}

// Appendix B gives the counts per layer and the total of the published files' index, to the byte.
TEST(Inventory, V4Flash) {
  const std::string dir = shared_data("configs/v4-flash-0731");
  SKIP_WITHOUT(dir);
  const Totals all = totals(*load_config(dir));
  EXPECT_EQ(all.count, 72317u);
  EXPECT_EQ(all.bytes, 166'878'536'440);
  for (int layer = 0; layer < 43; ++layer) {
    const int expected = layer < 2 ? 1565 : layer % 2 == 0 ? 1576 : 1569;
    EXPECT_EQ(all.per_block.at(format("layers.{}", layer)), expected) << layer;
  }
  EXPECT_EQ(all.per_block.at("mtp.0"), 1568);
  EXPECT_EQ(all.per_block.at("mtp.1"), 1565);
  EXPECT_EQ(all.per_block.at("mtp.2"), 1572);
}

TEST(Inventory, V41Flash) {
  const std::string dir = shared_data("configs/v41-flash");
  SKIP_WITHOUT(dir);
  const ModelSpec spec = *load_config(dir);
  const Totals all = totals(spec);
  EXPECT_EQ(all.count, 96085u);
  EXPECT_EQ(all.bytes, 510'286'023'000);
  const std::map<int, int> special = {{1, 2340},  {2, 2342},  {8, 2342},  {14, 2348}, {20, 2341},
                                      {24, 2337}, {28, 2337}, {32, 2337}, {36, 2337}};
  for (int layer = 0; layer < 40; ++layer) {
    const int expected = special.contains(layer) ? special.at(layer) : 2334;
    EXPECT_EQ(all.per_block.at(format("layers.{}", layer)), expected) << layer;
  }
  std::map<std::string, int> vision;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    if (tensor.kind == TensorKind::kVision) ++vision[tensor.name.substr(0, tensor.name.find_first_of("._"))];
  }
  EXPECT_EQ(vision, (std::map<std::string, int>{{"vision", 259}, {"aligner", 4}, {"image", 3}}));
}

TEST(Inventory, GoldenModelPasses) {
  const std::string dir = shared_data("v41_golden");
  SKIP_WITHOUT(dir);
  const auto files = open_model(dir);
  ASSERT_TRUE(files) << files.error().message;
  EXPECT_EQ(files->checkpoint.tensors().size(), 616u);
  EXPECT_EQ(totals(files->spec).bytes, files->checkpoint.total_bytes());
}

TEST(Inventory, MiniModelsOfTheRepositoryPass) {
  for (const char* name : {"mini-v41", "mini-v4"}) {
    const std::string dir = std::string(ONELANE_ROOT) + "/models/" + name;
    if (!std::filesystem::exists(dir + "/model.safetensors")) GTEST_SKIP() << dir << " has no weights";
    const auto files = open_model(dir);
    ASSERT_TRUE(files) << files.error().message;
  }
}

TEST(Inventory, TinyModelsOpen) {
  for (const json& config : {tiny::v41(), tiny::v4()}) {
    const std::string dir = tiny::fresh_dir("tiny");
    tiny::write_model(dir, config, tiny::zeros(*parse_config(config.dump())));
    const auto files = open_model(dir);
    ASSERT_TRUE(files) << files.error().message;
    EXPECT_EQ(files->spec.draft_stages.size(), 2u);
  }
}

// One change to a good tiny model, and the message that opening it gives.
template <class Change>
std::string after(Change change, const json& config = tiny::v41()) {
  const std::string dir = tiny::fresh_dir("changed");
  tiny::Zeros tensors = tiny::zeros(*parse_config(config.dump()));
  change(tensors);
  tiny::write_model(dir, config, tensors);
  const auto files = open_model(dir);
  EXPECT_FALSE(files);
  return files ? "" : files.error().message;
}

TEST(Inventory, EveryDifferenceIsNamed) {
  EXPECT_THAT(after([](auto& t) { t.remove("layers.2.attn.wkv.scale"); }),
              AllOf(HasSubstr("1 missing: layers.2.attn.wkv.scale"), Not(HasSubstr("not part"))));
  EXPECT_THAT(after([](auto& t) { t.add("layers.2.attn.compressor.wgate.weight", DType::kBF16, {512, 32}); }),
              HasSubstr("1 not part of this model: layers.2.attn.compressor.wgate.weight"));
  EXPECT_THAT(after([](auto& t) {
                t.remove("norm.weight");
                t.add("norm.weight", DType::kBF16, {64});
              }),
              HasSubstr("1 of another type or shape: norm.weight is BF16 [64], not BF16 [32]"));
  EXPECT_THAT(after([](auto& t) { t.find("layers.0.ffn.experts.1.w1.weight")->dtype = DType::kU8; }),
              HasSubstr("layers.0.ffn.experts.1.w1.weight is U8 [64, 16], not I8 [64, 16]"));
  // Same bytes, other shape.
  EXPECT_THAT(after([](auto& t) { t.find("embed.weight")->shape = {32, 64}; }), HasSubstr("embed.weight is BF16"));
  EXPECT_THAT(after([](auto& t) {
                t.remove("norm.weight");
                t.add("layers.4.attn_norm.weight", DType::kBF16, {32});
              }),
              AllOf(HasSubstr("1 missing: norm.weight"), HasSubstr("1 not part of this model: layers.4")));
}

TEST(Inventory, LongListsAreCutAndCounted) {
  const std::string message = after([](auto& t) {
    std::erase_if(t.tensors,
                  [](const TensorToWrite& tensor) { return tensor.name.find("experts.") != std::string::npos; });
  });
  // (3 routed + 1 shared) x 4 layers and (2 + 1) x 2 stages, three matrices of two tensors each.
  EXPECT_THAT(message, AllOf(HasSubstr("132 missing: layers.0.ffn.experts.0.w1.weight, "), HasSubstr(", ...")));
  EXPECT_LT(message.size(), 1000u);
}

TEST(Inventory, DraftStagesAreCountedByName) {
  auto drop_stage = [](tiny::Zeros& t, const std::string& stage) {
    std::erase_if(t.tensors, [&](const TensorToWrite& tensor) { return tensor.name.starts_with(stage); });
  };
  EXPECT_THAT(after([&](auto& t) { drop_stage(t, "mtp.1."); }), HasSubstr("num_nextn_predict_layers: is 2, but"));
  EXPECT_THAT(after([&](auto& t) { drop_stage(t, "mtp.0."); }), HasSubstr("draft stages are not numbered from 0"));
  EXPECT_THAT(after([&](auto& t) { t.add("mtp.x.norm", DType::kI8, {1}); }), HasSubstr("not numbered from 0"));
  EXPECT_THAT(after([&](auto& t) {
                for (int i = 2; i < 12; ++i) t.add(format("mtp.{}.norm", i), DType::kI8, {1});
              }),
              HasSubstr("12 draft stages; at most 8"));
  // V4 believes the names: without mtp.1 the one that is left must end like a last stage.
  EXPECT_THAT(after([&](auto& t) { drop_stage(t, "mtp.1."); }, tiny::v4()), HasSubstr("missing: mtp.0.norm.weight"));
}

TEST(Inventory, VisionIsThereWholeOrNotAtAll) {
  json config = tiny::v41();
  config["image_token_id"] = 5;
  config["vision_config"] = {{"model_type", "deepseek_v41_vision"},
                             {"num_hidden_layers", 2},
                             {"hidden_size", 8},
                             {"intermediate_size", 16},
                             {"patch_size", 2},
                             {"downsample_ratio", 2}};
  auto is_vision = [](const TensorToWrite& tensor) {
    return tensor.name.starts_with("vision.") || tensor.name.starts_with("aligner.") ||
           tensor.name.starts_with("image_");
  };
  const std::string dir = tiny::fresh_dir("vision");
  tiny::Zeros tensors = tiny::zeros(*parse_config(config.dump()));
  EXPECT_EQ(std::ranges::count_if(tensors.tensors, is_vision), 2 * 8 + 3 + 4 + 3);
  tiny::write_model(dir, config, tensors);
  EXPECT_TRUE(open_model(dir));
  std::erase_if(tensors.tensors, is_vision);
  tiny::write_model(dir, config, tensors);
  EXPECT_TRUE(open_model(dir));
  EXPECT_THAT(after([](auto& t) { t.remove("aligner.w1.weight"); }, config), HasSubstr("1 missing: aligner.w1.weight"));
  EXPECT_THAT(after([](auto& t) { t.add("image_start", DType::kBF16, {32}); }), HasSubstr("image_start"));
}

}  // namespace
}  // namespace onelane
