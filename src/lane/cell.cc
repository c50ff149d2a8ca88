#include "lane/cell.h"

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/format.h"

namespace onelane {
namespace {

using TimePoint = HttpClock::time_point;

constexpr int kStreamsPerThread = 64;
constexpr int64_t kShortAnswerTokens = 512;
constexpr double kProgressS = 0.25;

double since(TimePoint begin) { return std::chrono::duration<double>(HttpClock::now() - begin).count(); }

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, seconds))); }

double ready_timeout(const BenchTiming& timing, int64_t context_tokens) {
  if (timing.ready_timeout_s > 0) return timing.ready_timeout_s;
  if (context_tokens < (64 << 10)) return 60;
  return context_tokens < (128 << 10) ? 120 : 180;
}

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

std::vector<double> take_lag(const std::vector<HttpClient*>& clients) {
  std::vector<double> lag;
  for (HttpClient* client : clients) {
    const auto some = client->take_lag_seconds();
    lag.insert(lag.end(), some.begin(), some.end());
  }
  return lag;
}

// The rate of tokens between two looks, for progress.
class Rate {
 public:
  double update(const Load::Now& now) {
    const int64_t tokens = now.tokens > 0 ? now.tokens : now.text_chunks;
    const double passed = since(at_);
    if (passed > 0.2) {
      rate_ = static_cast<double>(tokens - tokens_) / passed;
      at_ = HttpClock::now();
      tokens_ = tokens;
    }
    return rate_;
  }

 private:
  TimePoint at_ = HttpClock::now();
  int64_t tokens_ = 0;
  double rate_ = 0;
};

void tell(const BenchObserver& observer, BenchProgress progress, const std::optional<ServerReading>& server) {
  if (!observer) return;
  if (server) {
    progress.running = server->running;
    progress.waiting = server->waiting;
  }
  observer(progress);
}

// Launch to ready. False: not within the time, so the window begins anyway.
bool wait_ready(BenchServer& server, const CellPlan& plan, const BenchTiming& timing, const Load& load,
                const BenchObserver& observer) {
  Readiness readiness({.least_s = timing.ready_least_s,
                       .hold_s = timing.ready_hold_s,
                       .concurrency = plan.concurrency,
                       .short_answers = plan.max_tokens <= kShortAnswerTokens});
  const TimePoint launched = HttpClock::now();
  const double limit = ready_timeout(timing, plan.context_tokens);
  Rate rate;
  for (;;) {
    const auto reading = server.read();
    const auto server_now = reading ? *reading : std::nullopt;
    const Load::Now now = load.now();
    const double elapsed = since(launched);
    tell(observer, {plan.id(), "launch", elapsed, limit, rate.update(now)}, server_now);
    if (readiness.update(elapsed, server_now, now)) return true;
    if (elapsed >= limit) return false;
    if (now.active == 0) return false;  // all streams have failed
    sleep(std::min(timing.poll_s, limit - elapsed));
  }
}

// Reads metrics and health over the window; the first reading is at its start, the last at its end.
void watch_window(BenchServer& server, const CellPlan& plan, const BenchTiming& timing, const Load& load,
                  const BenchObserver& observer, WindowInput& input, bool& metrics_lost) {
  Rate rate;
  std::optional<ServerReading> latest;
  const auto look = [&] {
    const auto reading = server.read();
    if (!reading) {
      metrics_lost = true;
      return;
    }
    latest = *reading;
    if (!latest) {
      // Without metrics health is all there is to know, and the time of knowing it.
      if (const auto healthy = server.healthy()) input.readings.push_back({{.at = HttpClock::now()}, healthy});
      return;
    }
    input.readings.push_back({*latest, server.healthy()});
  };
  input.start = HttpClock::now();
  look();
  double next_look = timing.poll_s;
  for (;;) {
    const double elapsed = since(input.start);
    tell(observer, {plan.id(), "window", elapsed, timing.window_s, rate.update(load.now())}, latest);
    if (elapsed >= timing.window_s || load.now().active == 0) break;  // all streams have failed
    if (elapsed >= next_look) {
      look();
      next_look += timing.poll_s;
    }
    sleep(std::min({kProgressS, next_look - since(input.start), timing.window_s - since(input.start)}));
  }
  input.end = HttpClock::now();
  look();
}

}  // namespace

std::string CellPlan::id() const { return format("{}/C{}/ctx{}", workload, concurrency, context_tokens); }

Result<std::unique_ptr<BenchServer>> BenchServer::connect(const std::string& url, const std::string& api_key,
                                                          const std::string& model, MetricLookup lookup) {
  auto server = std::make_unique<BenchServer>();
  server->url_ = url;
  server->api_key_ = api_key;
  server->lookup_ = lookup;
  ONELANE_ASSIGN(server->control_, HttpClient::create({.url = url, .api_key = api_key}));
  ONELANE_ASSIGN(server->info_, discover(*server->control_, model));
  return server;
}

Result<std::vector<HttpClient*>> BenchServer::stream_clients(int streams) {
  const auto count = static_cast<size_t>((streams + kStreamsPerThread - 1) / kStreamsPerThread);
  while (clients_.size() < count) {
    ONELANE_ASSIGN(auto client, HttpClient::create({.url = url_, .api_key = api_key_}));
    clients_.push_back(std::move(client));
  }
  std::vector<HttpClient*> clients;
  for (size_t i = 0; i < count; ++i) clients.push_back(clients_[i].get());
  return clients;
}

Result<std::optional<ServerReading>> BenchServer::read() {
  if (!info_.has_metrics) return std::optional<ServerReading>();
  ONELANE_ASSIGN(ServerReading reading, scrape(*control_, info_.engine, lookup_));
  return std::optional(std::move(reading));
}

std::optional<bool> BenchServer::healthy() {
  if (!info_.has_health) return std::nullopt;
  const auto reply = control_->get("/health", 5);
  return reply && reply->status == 200;
}

Result<bool> drain(BenchServer& server, const BenchTiming& timing, const std::string& what,
                   const BenchObserver& observer) {
  if (!server.info().has_metrics || timing.drain_timeout_s <= 0) return true;
  const TimePoint begin = HttpClock::now();
  double busy_until = 0;  // last seen so
  for (;;) {
    ONELANE_ASSIGN(const auto reading, server.read());
    const double elapsed = since(begin);
    tell(observer, {what, "drain", elapsed, timing.drain_timeout_s}, reading);
    const bool idle = reading->running.value_or(0) == 0 && reading->waiting.value_or(0) == 0;
    if (!idle) busy_until = elapsed;
    if (idle && elapsed - busy_until >= timing.drain_hold_s) return true;
    if (elapsed >= timing.drain_timeout_s) return false;
    sleep(std::clamp(timing.drain_hold_s / 4, 0.01, 0.25));
  }
}

ScoutResult scout(HttpClient& client, const std::string& json, double seconds) {
  const ChatResult answer =
      start_chat(client, json, true, false, {.total_seconds = seconds, .keep_text = false})->wait();
  ScoutResult result{.prompt_tokens = answer.prompt_tokens, .cached_tokens = answer.cached_tokens};
  if (!answer.complete()) result.problem = answer.problem;
  result.ttft_s = answer.first_text_s;
  // A token need not have text: half a character, or the end token. The answer's end is then the next best thing.
  if (!result.ttft_s && answer.complete()) result.ttft_s = answer.total_s;
  return result;
}

Result<CellResult> run_cell(BenchServer& server, const CellPlan& plan, const BenchTiming& timing,
                            const BenchObserver& observer) {
  CellResult cell{.id = plan.id(),
                  .workload = plan.workload,
                  .concurrency = plan.concurrency,
                  .context_tokens = plan.context_tokens};
  ONELANE_ASSIGN(const bool drained, drain(server, timing, plan.id(), observer));
  ONELANE_ASSIGN(const std::vector<HttpClient*> clients, server.stream_clients(plan.concurrency));
  if (plan.scout) {
    tell(observer, {plan.id(), "scout"}, std::nullopt);
    cell.scout = scout(server.control(), *plan.scout, timing.request_s);
  }

  WindowInput input{.launched = HttpClock::now(),
                    .concurrency = plan.concurrency,
                    .max_tokens = plan.max_tokens,
                    .ignore_eos = plan.ignore_eos,
                    .count_restarts = plan.count_restarts,
                    .silence_s = timing.silence_s,
                    .max_lag_s = timing.max_lag_s};
  LoadOptions options;
  options.streams = plan.concurrency;
  options.chat.total_seconds = timing.request_s;
  options.chat.keep_text = plan.keep_text;
  options.chat.sse.literal_space = plan.literal_space;
  options.next = plan.next;
  Load load(clients, std::move(options));
  const bool ready = wait_ready(server, plan, timing, load, observer);
  take_lag(clients);
  bool metrics_lost = false;
  const double cpu_before = cpu_seconds();
  watch_window(server, plan, timing, load, observer, input, metrics_lost);
  input.lag_s = take_lag(clients);
  cell.ready_s = std::chrono::duration<double>(input.start - input.launched).count();
  cell.client_cpu = (cpu_seconds() - cpu_before) / std::chrono::duration<double>(input.end - input.start).count();
  input.streams = load.stop();
  cell.window = measure_window(input);
  cell.streams = std::move(input.streams);

  auto& flags = cell.window.flags;
  if (!drained) flags.push_back("not_drained");
  if (metrics_lost) flags.push_back("metrics_lost");
  if (cell.scout && !cell.scout->problem.empty()) {
    flags.push_back("scout_failed");
    cell.window.problems.push_back("scout: " + cell.scout->problem);
  }
  if (!ready) flags.push_back("warmup_timed_out");
  return cell;
}

}  // namespace onelane
