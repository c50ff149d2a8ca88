#include "cli/serve_options.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"

namespace onelane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ServeOptionsTest : public ::testing::Test {
 protected:
  Result<ServeSettings> read() {
    std::string file;
    if (!toml_.empty()) {
      file =
          ::testing::TempDir() + "/lane_" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
      EXPECT_TRUE(write_file(file, toml_));
    }
    return read_serve_settings(flags_, file, [this](const std::string& name) -> const char* {
      const auto found = environment_.find(name);
      return found == environment_.end() ? nullptr : found->second.c_str();
    });
  }
  std::string error() {
    const auto settings = read();
    EXPECT_FALSE(settings);
    return settings ? "" : settings.error().message;
  }

  OptionTexts flags_ = {{"model", {"dir"}}};
  std::string toml_;
  std::map<std::string, std::string> environment_;
};

TEST_F(ServeOptionsTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const auto port = [&] { return read()->options.http.port; };
  const auto origin = [&] { return read()->origins.at("port"); };
  EXPECT_EQ(port(), 8000);
  EXPECT_EQ(origin(), "default");
  toml_ = "# comment\nport = 1\n";
  EXPECT_EQ(port(), 1);
  EXPECT_THAT(origin(), HasSubstr(".toml:2"));
  environment_["ONELANE_PORT"] = "2";
  EXPECT_EQ(port(), 2);
  EXPECT_EQ(origin(), "ONELANE_PORT");
  flags_["port"] = {"3", "4"};
  EXPECT_EQ(port(), 4);
  EXPECT_EQ(origin(), "--port");
}

TEST_F(ServeOptionsTest, EveryKindOfValue) {
  toml_ = R"(
served_model_name = ["a", "b"]
api_key = "one,two"
max_gap_ms = 50.5
prefix_cache = false
kv_bytes = "2GiB"
host_kv_bytes = 4096
draft_schedule = "2:4"
health_seconds = 5
)";
  environment_["ONELANE_LOG_REQUESTS"] = "off";
  const auto settings = read();
  ASSERT_TRUE(settings) << settings.error().message;
  const ServeOptions& o = settings->options;
  EXPECT_EQ(o.api.model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.api.api_keys, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(o.engine.max_gap_ms, 50.5);
  EXPECT_FALSE(o.engine.prefix_cache);
  EXPECT_EQ(o.engine.kv_bytes, int64_t{2} << 30);
  EXPECT_EQ(o.engine.host_kv_bytes, 4096);
  EXPECT_EQ(o.engine.draft_schedule.text(), "2:4");
  EXPECT_EQ(o.api.health_seconds, 5);
  EXPECT_FALSE(o.api.log_requests);
  EXPECT_THAT(settings_text(*settings), AllOf(HasSubstr("***"), Not(HasSubstr("one")), HasSubstr("2GiB")));
  flags_["api-key"] = {"three"};
  EXPECT_EQ(read()->options.api.api_keys, std::vector<std::string>{"three"});
}

TEST_F(ServeOptionsTest, ErrorsNameKeyFileAndLine) {
  const auto file_error = [&](const std::string& text) {
    toml_ = text;
    return error();
  };
  EXPECT_THAT(file_error("\nmax_modle_len = 5"),
              AllOf(HasSubstr(".toml:2: unknown key 'max_modle_len'"), HasSubstr("'max_model_len'")));
  EXPECT_THAT(file_error("zzzzzzzzzzzz = 5"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(file_error("port = 'x'"), HasSubstr(".toml:1: port: must be an integer in [0, 65535], not 'x'"));
  EXPECT_THAT(file_error("port = [1, 2]"), HasSubstr("takes one value, not 2"));
  EXPECT_THAT(file_error("port = 1\nport = 2"), HasSubstr(".toml:2"));
  EXPECT_THAT(file_error("port ="), HasSubstr(".toml:1"));
  EXPECT_THAT(file_error("[engine]\nport = 1"), HasSubstr("engine: must be a string"));
  EXPECT_THAT(file_error("kv_bytes = '5 parsecs'"), HasSubstr("kv_bytes: must be bytes like 4GiB"));
  EXPECT_THAT(file_error("prefix_cache = 'maybe'"), HasSubstr("must be true or false"));
  EXPECT_THAT(file_error("draft_schedule = '4:99'"), HasSubstr("draft_schedule"));
  toml_.clear();
  environment_["ONELANE_THREADS"] = "-1";
  EXPECT_THAT(error(), HasSubstr("ONELANE_THREADS: must be an integer in [0, 1024]"));
  environment_.clear();
  flags_["port"] = {"70000"};
  EXPECT_THAT(error(), HasSubstr("--port: must be"));
  flags_ = {};
  EXPECT_THAT(error(), HasSubstr("ONELANE_MODEL"));
  EXPECT_THAT(read_serve_settings({}, "/nowhere.toml", [](const std::string&) { return nullptr; }).error().message,
              HasSubstr("/nowhere.toml"));
}

TEST_F(ServeOptionsTest, TheTableIsConsistent) {
  std::set<std::string> names;
  const ServeOptions defaults;
  for (const ServeOption& option : serve_option_table()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name << " is there twice";
    EXPECT_FALSE(option.help.empty()) << option.name;
    // A default is a value that the option takes.
    const std::string text = option.get(defaults);
    ServeOptions other;
    if (!text.empty()) {
      const auto set = option.set(other, text);
      EXPECT_TRUE(set) << option.name << ": " << (set ? "" : set.error().message);
      EXPECT_EQ(option.get(other), text) << option.name;
    }
  }
}

TEST_F(ServeOptionsTest, DocumentedAsTheyAre) {
  const auto page = read_file(std::string(ONELANE_ROOT) + "/docs/serving.md");
  ASSERT_TRUE(page) << page.error().message;
  for (const ServeOption& option : serve_option_table()) {
    EXPECT_THAT(*page, HasSubstr("`" + option.key() + "`")) << "docs/serving.md";
  }
}

TEST(ParseBytes, Units) {
  EXPECT_EQ(*parse_bytes("0"), 0);
  EXPECT_EQ(*parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(*parse_bytes("2 GB"), 2'000'000'000);
  EXPECT_EQ(*parse_bytes("3T"), int64_t{3} << 40);
  for (const char* bad : {"", "x", "-1", "5XB", "1e99", "GiB", "nan"}) EXPECT_FALSE(parse_bytes(bad)) << bad;
}

}  // namespace
}  // namespace onelane
