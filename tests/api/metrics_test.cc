#include "api/metrics.h"

#include <ctime>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/process_stats.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> family_names(const std::string& page) {
  std::vector<std::string> names;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) names.push_back(line.substr(7, line.find(' ', 7) - 7));
  }
  return names;
}

TEST(Metrics, PlainNamesStandBeforeLongerOnes) {
  Metrics metrics("m");
  metrics.http_request("/x", 200);
  const auto names = family_names(metrics.text({}, 4096));
  EXPECT_GT(names.size(), 30u);
  const auto plain = [](std::string name) { return name.ends_with("_total") ? name.substr(0, name.size() - 6) : name; };
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t k = i + 1; k < names.size(); ++k) {
      EXPECT_FALSE(plain(names[i]).starts_with(plain(names[k]))) << names[i] << " stands before " << names[k];
    }
  }
}

TEST(Metrics, SaysWhatTheEngineCounted) {
  Metrics metrics("my model");
  EngineStats stats;
  stats.running = 2;
  stats.pages = 10;
  stats.pages_used = 5;
  stats.accepted = {7, 3};
  stats.progress_age_seconds = 1.5;
  const std::string page = metrics.text(stats, 4096);
  EXPECT_THAT(page, HasSubstr("vllm:num_requests_running{model_name=\"my model\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("vllm:kv_cache_usage_perc{model_name=\"my model\"} 0.5\n"));
  EXPECT_THAT(page, HasSubstr("vllm:spec_decode_num_accepted_tokens_total{model_name=\"my model\"} 10\n"));
  EXPECT_THAT(page, HasSubstr("per_pos_total{model_name=\"my model\",position=\"1\"} 3\n"));
  EXPECT_THAT(page, HasSubstr("onelane_progress_age_seconds{model_name=\"my model\"} 1.5\n"));
}

TEST(Metrics, SaysWhatTheProcessHolds) {
  const ProcessStats before = read_process_stats();
  EXPECT_GT(before.resident_bytes, 1e6);
  EXPECT_GE(before.threads, 1);
  // Between the epoch's first year with this code and now.
  EXPECT_GT(before.start_seconds, 1.7e9);
  EXPECT_LE(before.start_seconds, static_cast<double>(std::time(nullptr)) + 1);
  std::vector<std::ifstream> files;
  for (int i = 0; i < 5; ++i) files.emplace_back("/proc/self/status");
  EXPECT_EQ(read_process_stats().open_files, before.open_files + 5);
  EXPECT_EQ(read_process_stats().start_seconds, before.start_seconds);
  const std::string page = Metrics("m").text({}, 1);
  for (const char* name : {"resident_memory_bytes", "open_fds", "threads", "start_time_seconds"}) {
    EXPECT_THAT(page, HasSubstr(std::string("\nprocess_") + name + "{model_name=\"m\"} "));
  }
}

TEST(Metrics, CountsRequests) {
  Metrics metrics("m");
  metrics.first_token(0.05);
  metrics.token_gap(0.01);
  metrics.finished({.prompt_tokens = 3, .tokens = 4, .queue_seconds = 0.1}, FinishReason::kLength, 1);
  metrics.http_request("/v1/completions", 400);
  EngineStats stats;
  stats.steps = 2;
  stats.generated_tokens = 6;
  const std::string page = metrics.text(stats, 1);
  EXPECT_THAT(page, HasSubstr("vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 1\n"));
  EXPECT_THAT(page,
              HasSubstr("onelane_http_requests_total{model_name=\"m\",route=\"/v1/completions\",status=\"400\"} 1"));
  EXPECT_THAT(page, HasSubstr("vllm:iteration_tokens_total_sum{model_name=\"m\"} 6\n"));
  EXPECT_THAT(page, HasSubstr("vllm:iteration_tokens_total_count{model_name=\"m\"} 2\n"));
}

}  // namespace
}  // namespace onelane
