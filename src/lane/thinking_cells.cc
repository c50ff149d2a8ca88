#include "lane/thinking_cells.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "base/format.h"
#include "lane/gauntlet.h"
#include "lane/hay.h"
#include "lane/workload.h"

namespace onelane {
namespace {

using Condition = ThinkingCell::Condition;

// A prompt of about so many tokens that asks for one token: about 2.7 characters a token for a small vocabulary, 4.4
// for a large one. Another seed is another prompt, so that it is never found in a cache.
GateJson arrival(const GateProfile& profile, int64_t tokens, uint64_t seed) {
  const double characters = static_cast<double>(tokens) * (profile.mini_tasks ? 2.6 : 4.2);
  return {{"messages",
           GateJson::array(
               {{{"role", "user"},
                 {"content", make_hay({.seed = seed, .characters = static_cast<size_t>(characters), .facts = {}})}}})},
          {"max_tokens", 1},
          {"chat_template_kwargs", {{"thinking", false}}}};
}

void set_mode(GateJson& request, const GateMode& mode) {
  request["chat_template_kwargs"] = {{"thinking", mode.thinking}};
  if (!mode.effort.empty()) request["reasoning_effort"] = mode.effort;
}

}  // namespace

std::vector<ThinkingPrompt> thinking_prompts(const GatePlan& plan, const GateMode& mode) {
  std::vector<ThinkingPrompt> prompts;
  if (plan.profile.mini_tasks) {
    for (GauntletTask& task : gauntlet_tasks(plan.profile, plan.held_out, false)) {
      const bool sum = task.id.starts_with("sum/");
      if (!task.calls.empty() || sum != mode.thinking) continue;
      task.request["max_tokens"] = plan.profile.turn_tokens;
      prompts.push_back({std::move(task.id), std::move(task.request), std::move(task.oracle)});
    }
  } else {
    constexpr size_t kPrompts = 8;
    const WorkloadClass& of = *builtin_workloads().find(mode.thinking ? "reasoning" : "chat_multi");
    for (const WorkloadPrompt& prompt : of.prompts) {
      if (prompt.held_out != plan.held_out || prompts.size() == kPrompts) continue;
      GateJson request = GateJson::parse(workload_request(of, prompt));
      // Efforts beyond the default write longer than the class allows for.
      if (mode.thinking) request["max_tokens"] = 8192;
      prompts.push_back({prompt.id, std::move(request), prompt.oracle});
    }
  }
  for (ThinkingPrompt& prompt : prompts) set_mode(prompt.request, mode);
  return prompts;
}

ThinkingPrompt thinking_tool_turn(const GatePlan& plan, const GateMode& mode) {
  GauntletTask task = tool_turn_task(plan.profile);
  set_mode(task.request, mode);
  task.request["max_tokens"] = plan.profile.turn_tokens;
  return {"tool turn", std::move(task.request), std::move(task.oracle)};
}

std::vector<ThinkingCell> thinking_cells(const GatePlan& plan) {
  std::vector<ThinkingCell> cells;
  for (const GateMode& mode : plan.profile.modes) {
    cells.push_back({format("{}/alone", mode.name), mode, 1, Condition::kControl});
    for (const int streams : plan.profile.streams) {
      const auto add = [&](Condition condition, const std::string& what, int64_t tokens = 0) {
        cells.push_back({format("{}/{}/{}", mode.name, streams, what), mode, streams, condition, tokens});
      };
      add(Condition::kPlain, "undisturbed");
      for (const int64_t tokens : arrival_tokens(plan)) add(Condition::kArrival, format("arrival {}", tokens), tokens);
      add(Condition::kCancels, "cancels");
      add(Condition::kTools, "tool turns");
    }
  }
  return cells;
}

std::vector<int64_t> arrival_tokens(const GatePlan& plan) {
  const std::vector<int64_t>& all = plan.profile.arrival_tokens;
  return plan.quick ? std::vector<int64_t>{all.front()} : all;
}

double thinking_window_s(const GatePlan& plan) {
  return plan.quick ? plan.profile.quick_window_s : plan.profile.window_s;
}

std::vector<AskedInCell> run_thinking_cell(GateServer& server, const GatePlan& plan, const ThinkingCell& cell,
                                           const std::vector<ThinkingPrompt>& prompts, uint64_t arrival_seed) {
  const bool once = cell.condition == Condition::kControl;
  const double window = thinking_window_s(plan);
  const auto begun = HttpClock::now();
  const auto since = [&] { return std::chrono::duration<double>(HttpClock::now() - begun).count(); };
  std::vector<AskedInCell> all;
  std::mutex mutex;  // of `all`
  const auto keep = [&](AskedInCell one) {
    const std::lock_guard lock(mutex);
    all.push_back(std::move(one));
  };
  std::vector<std::thread> threads;
  for (size_t stream = 0; stream < static_cast<size_t>(cell.streams); ++stream) {
    threads.emplace_back([&, stream] {
      for (size_t i = 0; once ? i < prompts.size() : since() < window; ++i) {
        if (server.lost()) return;
        AskedInCell one{.stream = stream, .prompt = (stream + i) % prompts.size(), .begun_s = since()};
        // Early or in the middle of the answer.
        const bool cancel = cell.condition == Condition::kCancels && (stream + i) % 4 == 3;
        const int after = cancel ? static_cast<int>(1 + i % 12) : -1;
        one.answer = server.ask(prompts[one.prompt].request, {.cancel_after = after});
        keep(std::move(one));
      }
    });
  }
  if (cell.condition == Condition::kArrival) {
    std::this_thread::sleep_for(std::chrono::duration<double>(window / 4));
    AskedInCell one{.arrival = true, .begun_s = since()};
    one.answer = server.ask(arrival(plan.profile, cell.arrival_tokens, arrival_seed), {.seconds = 3600});
    keep(std::move(one));
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

}  // namespace onelane
