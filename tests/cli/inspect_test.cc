#include "cli/inspect.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/tiny_models.h"

namespace onelane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string shared_config(const std::string& name) {
  return std::string(ONELANE_ROOT) + "/../shared/data/configs/" + name;
}

json report(const InspectOptions& options) {
  const auto text = inspect_report(options);
  EXPECT_TRUE(text) << text.error().message;
  return text ? json::parse(*text) : json();
}

TEST(Inspect, FullSizeFromTheConfigAlone) {
  const struct {
    const char* name;
    const char* generation;
    int layers;
    int tensors;
    double kv_bytes;
    double distinct;
  } cases[] = {{"v4-flash-0731", "v4", 43, 72317, 3514.25, 33.9554}, {"v41-flash", "v4.1", 40, 96085, 890, 34.6227}};
  for (const auto& want : cases) {
    const std::string dir = shared_config(want.name);
    if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not there";
    const json got = report({.dir = dir, .config_only = true, .json = true, .rows = 6});
    EXPECT_EQ(got["generation"], want.generation);
    EXPECT_EQ(got["checked"], false);
    EXPECT_EQ(got["layer_count"], want.layers);
    EXPECT_EQ(got["layers"].size(), static_cast<size_t>(want.layers));
    EXPECT_EQ(got["draft_stages"].size(), 3u);
    EXPECT_EQ(got["tensor_count"], want.tensors);
    EXPECT_EQ(got["kv_bytes_per_token"], want.kv_bytes);
    EXPECT_NEAR(got["expected_distinct_experts"].get<double>(), want.distinct, 1e-3);
    EXPECT_NEAR(got["time_floor_us"].get<double>(),
                (got["step_weight_bytes"].get<double>() + got["step_kv_bytes"].get<double>()) / 4.8e6, 1e-6);
    int64_t tensors = 0, bytes = 0;
    for (const auto& [kind, total] : got["tensors_by_kind"].items()) {
      tensors += total["tensors"].get<int64_t>();
      bytes += total["bytes"].get<int64_t>();
    }
    EXPECT_EQ(tensors, want.tensors);
    EXPECT_EQ(bytes, got["weight_bytes"]);
    // A wider memory has a proportionally lower floor.
    const json faster = report({.dir = dir, .config_only = true, .json = true, .rows = 6, .bandwidth_gb_s = 9600});
    EXPECT_NEAR(faster["time_floor_us"].get<double>() * 2, got["time_floor_us"].get<double>(), 1e-6);
  }
}

TEST(Inspect, ChecksTheWeightsUnlessToldNotTo) {
  const std::string dir = tiny::fresh_dir("inspect");
  const json config = tiny::v41();
  tiny::Zeros tensors = tiny::zeros(*parse_config(config.dump()));
  ASSERT_TRUE(write_file(dir + "/config.json", config.dump()));
  EXPECT_THAT(inspect_report({.dir = dir}).error().message, HasSubstr("--config-only needs no weights"));
  tiny::write_model(dir, config, tensors);
  const json got = report({.dir = dir, .json = true});
  EXPECT_EQ(got["checked"], true);
  EXPECT_EQ(got["layers"][0]["kv_owner"], nullptr);
  EXPECT_EQ(got["layers"][3]["index_owner"], 3);
  EXPECT_EQ(got["layers"][3]["candidate_masked"], true);
  const auto text = inspect_report({.dir = dir});
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, AllOf(HasSubstr("generation v4.1, 4 layers, 2 draft stages (dspark)"),
                           HasSubstr("checked by name, type and shape in 1 file)"), HasSubstr("engram of 59 rows")));
  tensors.remove("norm.weight");
  tiny::write_model(dir, config, tensors);
  EXPECT_THAT(inspect_report({.dir = dir}).error().message, HasSubstr("1 missing: norm.weight"));
  EXPECT_TRUE(inspect_report({.dir = dir, .config_only = true}));
}

TEST(Inspect, OptionsOutOfRange) {
  const std::string dir = tiny::fresh_dir("inspect_options");
  ASSERT_TRUE(write_file(dir + "/config.json", tiny::v4().dump()));
  const InspectOptions good{.dir = dir, .config_only = true};
  ASSERT_TRUE(inspect_report(good));
  auto message = [&](auto change) {
    InspectOptions options = good;
    change(options);
    const auto text = inspect_report(options);
    EXPECT_FALSE(text);
    return text ? "" : text.error().message;
  };
  EXPECT_THAT(message([](auto& o) { o.rows = 0; }), HasSubstr("--rows is 0"));
  EXPECT_THAT(message([](auto& o) { o.tokens = -1; }), HasSubstr("--tokens is -1"));
  EXPECT_THAT(message([](auto& o) { o.tokens = 65537; }), HasSubstr("this model has 65536 positions"));
  EXPECT_THAT(message([](auto& o) { o.bandwidth_gb_s = 0; }), HasSubstr("--bandwidth is 0"));
  InspectOptions bad = good;
  bad.rows = 0;
  EXPECT_EQ(run_inspect(bad), 2);
  bad = good;
  bad.dir += "/nowhere";
  EXPECT_EQ(run_inspect(bad), 1);
}

}  // namespace
}  // namespace onelane
