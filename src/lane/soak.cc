#include "lane/soak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/format.h"
#include "lane/gauntlet.h"
#include "lane/hay.h"
#include "lane/oracle.h"
#include "lane/stats.h"
#include "lane/text_flaws.h"
#include "lane/thinking_cells.h"
#include "lane/workload.h"

namespace onelane {
namespace {

constexpr const char* kTransport = "transport";
constexpr const char* kRefusal = "refusal";  // an invalid request that was not refused
constexpr const char* kFlaw = "flaw";        // loops and what is no text
constexpr const char* kChanged = "changed";  // another answer to the same request
constexpr const char* kCanary = "canary";
constexpr const char* kDrain = "drain";  // requests that run although nobody waits for them
constexpr const char* kLeak = "leak";

constexpr double kCancelled = 0.20, kDropped = 0.05, kInvalid = 0.02;
constexpr double kAnswerSeconds = 300;
constexpr double kDay = 86400, kLongRun = kDay / 12;

// Every one is wrong in another way: not JSON, a field's type, its range, a role.
constexpr const char* kInvalidBodies[] = {"{", R"({"messages": "x"})",
                                          R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"})",
                                          R"({"messages": [{"role": "user", "content": "x"}], "temperature": -1})",
                                          R"({"messages": [{"role": "nobody", "content": "x"}]})"};

struct SoakPrompt {
  std::string id;
  GateJson request;
};

std::vector<SoakPrompt> soak_prompts(const GatePlan& plan) {
  std::vector<SoakPrompt> prompts;
  if (plan.profile.mini_tasks) {
    for (GauntletTask& task : gauntlet_tasks(plan.profile, plan.held_out, false)) {
      task.request["max_tokens"] = plan.profile.turn_tokens;
      prompts.push_back({std::move(task.id), std::move(task.request)});
    }
  } else {
    for (const WorkloadClass& of : builtin_workloads().classes) {
      if (of.name == "long") continue;  // arrivals are long
      for (const WorkloadPrompt& prompt : of.prompts) {
        if (prompt.held_out != plan.held_out) continue;
        prompts.push_back({prompt.id, GateJson::parse(workload_request(of, prompt))});
      }
    }
  }
  // A third of them sampled, with a seed that makes their answers repeatable where a server promises that.
  for (size_t i = 0; i < prompts.size(); i += 3) {
    prompts[i].id += "/sampled";
    prompts[i].request["temperature"] = 0.8;
  }
  return prompts;
}

GateJson canary_request(const GatePlan& plan) {
  ThinkingPrompt prompt = thinking_prompts(plan, plan.profile.modes.back()).front();
  prompt.request["user"] = "canary";
  return std::move(prompt.request);
}

class Soak {
 public:
  Soak(GateServer& server, const GatePlan& plan, ArmKind kind, GateArm& arm)
      : server_(server), plan_(plan), arm_(arm), prompts_(soak_prompts(plan)), canary_(canary_request(plan)) {
    for (const char* check : {kTransport, kRefusal, kFlaw, kCanary, kDrain, kLeak}) arm.define(check);
    if (server.info().onelane) arm.define(kChanged);
    const bool clean = kind == ArmKind::kClean;
    // A fault or a null needs no long run, but enough rounds for a slope.
    constexpr int kShortRounds = 5;
    rounds_ = !clean       ? plan.profile.warm_rounds + kShortRounds
              : plan.quick ? plan.profile.quick_rounds
                           : plan.profile.rounds;
    round_s_ = !clean ? plan.profile.short_round_s : plan.quick ? plan.profile.quick_round_s : plan.profile.round_s;
    arrivals_ = clean;
  }

  void run() {
    const auto begun = HttpClock::now();
    ask_canary(0);
    for (int round = 0; round < rounds_ && !server_.lost(); ++round) {
      if (arrivals_) plan_.progress(format("soak: round {} of {}", round + 1, rounds_));
      run_round(round);
      ask_canary(round + 1);
      if (!server_.wait_idle(plan_.profile.drain_s)) {
        arm_.find(kDrain, format("round {}: requests still run or wait {} s after the last client left", round + 1,
                                 plan_.profile.drain_s));
        break;
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(plan_.profile.settle_s));
      read_resources(std::chrono::duration<double>(HttpClock::now() - begun).count());
    }
    seconds_ = std::chrono::duration<double>(HttpClock::now() - begun).count();
    judge_slopes();
    arm_.observed["answered"] = static_cast<double>(answered_);
    arm_.range = format(
        "{} rounds of {} s, {} at a time: {} answered, {} cancelled, {} dropped, {} invalid, {} arrivals of {} "
        "tokens, {} canaries; no failure in {:.0f} s would prove {:.0f} s between failures",
        rounds_, round_s_, plan_.profile.soak_workers, answered_, cancelled_, dropped_, invalid_, arrived_,
        arrival_tokens(plan_).back(), canaries_, seconds_, seconds_ / 3);
  }

 private:
  void find(const char* check, std::string sentence) {
    const std::lock_guard lock(mutex_);
    arm_.find(check, std::move(sentence));
  }

  void run_round(int round) {
    const auto end = HttpClock::now() + std::chrono::duration<double>(round_s_);
    std::vector<std::thread> workers;
    for (int worker = 0; worker < plan_.profile.soak_workers; ++worker) {
      workers.emplace_back([this, round, worker, end] {
        SeededIntegers numbers(plan_.seed * 1'000'003 + static_cast<uint64_t>(round) * 1009 +
                               static_cast<uint64_t>(worker));
        while (HttpClock::now() < end && !server_.lost()) ask_one(numbers);
      });
    }
    if (arrivals_) {
      ThinkingCell cell{.mode = plan_.profile.modes.front(),
                        .streams = 0,
                        .condition = ThinkingCell::Condition::kArrival,
                        .arrival_tokens = arrival_tokens(plan_).back()};
      for (const AskedInCell& asked :
           run_thinking_cell(server_, plan_, cell, {}, plan_.seed * 31 + static_cast<uint64_t>(round))) {
        ++arrived_;
        if (!asked.answer.transport_ok()) find(kTransport, format("an arrival: {}", asked.answer.chat.problem));
      }
    }
    for (std::thread& worker : workers) worker.join();
  }

  void ask_one(SeededIntegers& numbers) {
    const double chance = static_cast<double>(numbers.below(1'000'000)) / 1e6;
    const SoakPrompt& prompt = prompts_[numbers.below(prompts_.size())];
    if (chance < kInvalid) {
      const char* body = kInvalidBodies[numbers.below(std::size(kInvalidBodies))];
      const int status = server_.status_of(body);
      ++invalid_;
      if (status < 400 || status >= 500) find(kRefusal, format("{} got status {}", body, status));
      return;
    }
    const bool cancel = chance < kInvalid + kCancelled, drop = !cancel && chance < kInvalid + kCancelled + kDropped;
    const int after = drop ? 0 : cancel ? static_cast<int>(1 + numbers.below(24)) : -1;
    const GateAnswer answer = server_.ask(prompt.request, {.seconds = kAnswerSeconds, .cancel_after = after});
    if (!answer.transport_ok()) return find(kTransport, format("{}: {}", prompt.id, answer.chat.problem));
    // An answer may end before it can be cancelled.
    if (answer.chat.outcome == ChatOutcome::kCancelled) {
      ++(drop ? dropped_ : cancelled_);
      return;
    }
    ++answered_;
    const std::string text = answer.text();
    const TextFlaws flaws = find_flaws(text);
    if (flaws.loop) find(kFlaw, format("{}: goes round in circles", prompt.id));
    for (const std::string& garbled : flaws.garbled) find(kFlaw, format("{}: {}", prompt.id, garbled));
    const std::lock_guard lock(mutex_);
    const auto [first, added] = arm_.answers.emplace(prompt.id, text);
    if (added || first->second == text || !server_.info().onelane) return;
    arm_.find(kChanged, format("{}: is another answer than the first time", prompt.id));
  }

  void ask_canary(int round) {
    if (server_.lost()) return;
    const GateAnswer answer = server_.ask(canary_, {.seconds = kAnswerSeconds});
    ++canaries_;
    if (!answer.transport_ok()) return find(kTransport, format("canary {}: {}", round, answer.chat.problem));
    const auto [first, added] = arm_.answers.emplace("canary", answer.text());
    if (first->second != answer.text()) find(kCanary, format("after round {}: is another answer than at first", round));
  }

  void read_resources(double at_s) {
    const ServerResources now = server_.resources();
    const std::pair<const char*, std::optional<double>> all[] = {{"resident_bytes", now.resident_bytes},
                                                                 {"open_files", now.open_files},
                                                                 {"threads", now.threads},
                                                                 {"pages_used", now.pages_used}};
    arm_.samples["at_s"].push_back(at_s);
    for (const auto& [name, value] : all) {
      if (value) arm_.samples[name].push_back(*value);
    }
  }

  void judge_slopes() {
    constexpr size_t kLeastPoints = 3;
    // A prefix cache touches its memory for the first time while it fills: the first quarter of a long soak.
    const auto warm = static_cast<size_t>(std::max(plan_.profile.warm_rounds, rounds_ / 4));
    const std::vector<double>& at = arm_.samples["at_s"];
    if (at.size() < warm + kLeastPoints) {
      if (arm_.findings.empty()) arm_.not_run.push_back("too few rounds for a slope");
      return;
    }
    const std::vector<double> x(at.begin() + static_cast<ptrdiff_t>(warm), at.end());
    const double run = x.back() - x.front();
    for (const auto& [name, values] : arm_.samples) {
      if (name == "at_s" || values.size() != at.size()) continue;
      const std::vector<double> y(values.begin() + static_cast<ptrdiff_t>(warm), values.end());
      const Line line = fit_line(x, y);
      const double span = run < kLongRun ? run : 30 * kDay;
      const double growth = line.slope.point * span, level = mean(y);
      const std::string figure = format("{}_growth", name);
      arm_.observed[figure] = level > 0 ? growth / level : growth;
      arm_.bound[figure] = plan_.profile.most_growth;
      // Less than one file or thread is none.
      if (line.slope.low <= 0 || growth <= std::max(plan_.profile.most_growth * level, 0.9)) continue;
      arm_.find(kLeak, format("{} grows by {:.3g} a minute from {:.6g}, {:.1f} % in {:.0f} s", name,
                              60 * line.slope.point, y.front(), 100 * growth / std::max(level, 1e-9), span));
    }
  }

  GateServer& server_;
  const GatePlan& plan_;
  GateArm& arm_;
  const std::vector<SoakPrompt> prompts_;
  const GateJson canary_;
  int rounds_ = 0;
  double round_s_ = 0, seconds_ = 0;
  bool arrivals_ = false;
  std::mutex mutex_;  // of arm_ while workers run
  std::atomic<int64_t> answered_ = 0, cancelled_ = 0, dropped_ = 0, invalid_ = 0;
  int64_t arrived_ = 0, canaries_ = 0;
};

GateArm run_soak(GateServer& server, const GatePlan& plan, ArmKind kind) {
  GateArm arm;
  Soak(server, plan, kind, arm).run();
  return arm;
}

std::vector<GateFault> faults() {
  return {{.name = "memory that grows by 3 % a round",
           .check = kLeak,
           .in_resources =
               [](int reading, ServerResources& r) {
                 if (r.resident_bytes) *r.resident_bytes *= 1 + 0.03 * reading;
               }},
          {.name = "two files a round left open",
           .check = kLeak,
           .in_resources =
               [](int reading, ServerResources& r) {
                 if (r.open_files) *r.open_files += 2 * reading;
               }},
          {.name = "a canary that changes its mind",
           .check = kCanary,
           .in_answer =
               [count = std::make_shared<int>(0)](const GateJson& request, GateAnswer& answer) {
                 if (request.contains("user") && ++*count > 3) answer.chat.content += " or so";
               }},
          {.name = "answers that go round in circles",
           .check = kFlaw,
           .in_answer = [](const GateJson&, GateAnswer& answer) {
             for (int i = 0; i < 60; ++i) answer.chat.content += " and so on and on";
           }}};
}

}  // namespace

Gate soak_gate() {
  return {.name = "soak",
          .id = "soak/1",
          .about = "rounds of mixed traffic, cancels and bad requests; leaks, loops and a canary",
          .missing = [](const GateServer& server, const GatePlan&) -> std::string {
            if (server.info().has_metrics && server.tells_resources()) return "";
            return "GET /metrics does not say how many requests run and wait and what memory the process holds";
          },
          .run = run_soak,
          .faults = faults};
}

}  // namespace onelane
