#include "lane/scrape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/discovery.h"
#include "lane/mock_server.h"

namespace onelane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kPage =
    "# HELP vllm:num_requests_waiting waiting\n"
    "vllm:num_requests_waiting{model_name=\"m\"} 3\n"
    "vllm:num_requests_waiting_by_reason{reason=\"kv\"} 2\n"
    "vllm:num_requests_running{engine=\"0\"} 4.0\n"
    "vllm:num_requests_running{engine=\"1\"} 1e1 1700000000\n"
    "vllm:kv_cache_usage_perc NaN\n"
    "vllm:generation_tokens_total{model_name=\"a}b\",x=\"q\\\"\\\\\\n\"} +12\n"
    "vllm:prompt_tokens_total{tp_rank=\"1\"} 7\n"
    "vllm:prompt_tokens_total{tp_rank=\"0\"} 5\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 9\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 4\n"
    "onelane_steps_total 77\r\n"
    "vllm:broken{a=\"b 1\n"
    "vllm:request_success_total{a=\"b\"} 1x\n"
    "{} 1\n";

TEST(MetricsPage, ReadsPrometheusTextExactly) {
  const MetricsPage page = MetricsPage::parse(kPage);
  EXPECT_EQ(page.value("vllm:num_requests_waiting"), 3);
  EXPECT_EQ(page.value("vllm:num_requests_wait"), std::nullopt);
  EXPECT_EQ(page.value("vllm:num_requests_running"), 14);
  EXPECT_EQ(page.value("vllm:num_requests_running", "engine", "1"), 10);
  EXPECT_EQ(page.value("vllm:kv_cache_usage_perc"), std::nullopt);
  EXPECT_EQ(page.value("vllm:generation_tokens_total"), 12);
  ASSERT_NE(page.find("vllm:generation_tokens_total"), nullptr);
  EXPECT_EQ(page.find("vllm:generation_tokens_total")->label("x"), "q\"\\\n");
  EXPECT_EQ(page.value("vllm:prompt_tokens_total"), 5);
  EXPECT_EQ(page.value("onelane_steps_total"), 77);
  EXPECT_EQ(page.value("vllm:broken"), std::nullopt);
  EXPECT_EQ(page.value("vllm:request_success_total"), std::nullopt);
  EXPECT_THAT(read_metrics(page, EngineKind::kVllm).accepted_by_position, ElementsAre(9, 4));
}

TEST(MetricsPage, ReadsAsTheCommunityBenchDoes) {
  const MetricsPage page = MetricsPage::parse(kPage, MetricLookup::kLib);
  EXPECT_EQ(page.value("vllm:num_requests_wait"), 3);  // a prefix, the first hit
  EXPECT_EQ(page.value("vllm:num_requests_running"), 4);
  EXPECT_EQ(page.value("vllm:generation_tokens_total"), std::nullopt);  // '}' in a label
  EXPECT_EQ(page.value("onelane_steps_total"), std::nullopt);
}

TEST(ServerReading, KnowsSglangsNames) {
  const MetricsPage page = MetricsPage::parse(
      "sglang:num_running_reqs{tp_rank=\"0\"} 2\nsglang:num_queue_reqs 1\nsglang:spec_accept_length 3.5\n"
      "sglang:per_stage_req_latency_seconds_sum{stage=\"prefill_forward\"} 1.5\n"
      "sglang:per_stage_req_latency_seconds_sum{stage=\"other\"} 8\n");
  const ServerReading reading = read_metrics(page, EngineKind::kSglang);
  EXPECT_EQ(reading.running, 2);
  EXPECT_EQ(reading.waiting, 1);
  EXPECT_EQ(reading.accept_length, 3.5);
  EXPECT_EQ(reading.prefill_seconds, 1.5);
  EXPECT_EQ(reading.generation_tokens, std::nullopt);
  EXPECT_EQ(read_metrics(page, EngineKind::kVllm).running, std::nullopt);
}

std::unique_ptr<HttpClient> client_at(const std::string& url) {
  auto client = HttpClient::create({.url = url});
  EXPECT_TRUE(client);
  return std::move(*client);
}

TEST(Discovery, TellsEnginesApart) {
  struct Case {
    MockEngine engine;
    const char* name;
    bool metrics;
  };
  for (const auto& [engine, name, metrics] :
       {Case{MockEngine::kVllm, "vllm", true}, Case{MockEngine::kSglang, "sglang", true},
        Case{MockEngine::kPlain, "openai_proxy", false}}) {
    MockServer mock({.engine = engine, .max_running = 9, .kv_tokens = 4096});
    const auto client = client_at(mock.url());
    const auto info = discover(*client, "");
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_EQ(info->engine_name(), name);
    EXPECT_EQ(info->model, "mock");
    EXPECT_EQ(info->has_metrics, metrics);
    EXPECT_TRUE(info->has_health);
    EXPECT_EQ(info->kv_tokens, metrics ? std::optional<int64_t>(4096) : std::nullopt);
    EXPECT_EQ(info->max_running, engine == MockEngine::kSglang ? std::optional<int64_t>(9) : std::nullopt);
    EXPECT_EQ(info->version, metrics ? "mock-1" : "");
  }
}

TEST(Discovery, KnowsOurServerByItsMetrics) {
  MockServer mock({.more_metrics = "onelane_pages 32\n"});
  const auto info = discover(*client_at(mock.url()), "mock");
  ASSERT_TRUE(info);
  EXPECT_EQ(info->engine_name(), "onelane");
}

TEST(Discovery, RefusesAModelThatIsNotServedAndAServerThatIsNotThere) {
  std::string url;
  {
    MockServer mock;
    url = mock.url();
    const auto info = discover(*client_at(url), "other");
    ASSERT_FALSE(info);
    EXPECT_THAT(info.error().message, HasSubstr("\"other\" is not served; the server lists: mock"));
  }
  const auto info = discover(*client_at(url), "");
  ASSERT_FALSE(info);
  EXPECT_THAT(info.error().message, HasSubstr(url + "/v1/models: cannot connect"));
}

}  // namespace
}  // namespace onelane
