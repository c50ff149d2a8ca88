#include "lane/gauntlet.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/format.h"
#include "lane/stats.h"
#include "lane/text_flaws.h"
#include "lane/tool_schema.h"

namespace onelane {
namespace {

constexpr const char* kTransport = "transport";
constexpr const char* kSchema = "schema";
constexpr const char* kCorrectness = "correctness";

// The key of a call in GauntletTask::results; empty if its arguments are not JSON.
std::string call_key(const ChatToolCall& call) {
  const auto arguments = nlohmann::json::parse(call.arguments, nullptr, false);  // sorts keys
  return arguments.is_discarded() ? "" : call.name + " " + arguments.dump();
}

struct TaskRun {
  std::string problem;  // a sentence; empty: right
  const char* check = kCorrectness;
  std::string answers;  // of all turns
  std::vector<double> turn_s;
  bool graded = true;
};

TaskRun failed(TaskRun run, const char* check, std::string problem) {
  run.check = check;
  run.problem = std::move(problem);
  return run;
}

GateJson assistant_turn(const ChatResult& chat) {
  GateJson turn = {{"role", "assistant"}, {"content", chat.content}};
  if (!chat.reasoning.empty()) turn["reasoning_content"] = chat.reasoning;
  for (const ChatToolCall& call : chat.tool_calls) {
    turn["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return turn;
}

TaskRun run_task(GateServer& server, const GateProfile& profile, const GauntletTask& task) {
  TaskRun run;
  GateJson request = task.request;
  if (!request.contains("max_tokens")) request["max_tokens"] = profile.turn_tokens;
  std::vector<std::string> called;
  const auto begun = HttpClock::now();
  for (int turn = 0; turn < profile.most_turns; ++turn) {
    const double used = std::chrono::duration<double>(HttpClock::now() - begun).count();
    if (used >= profile.task_seconds) return failed(std::move(run), kCorrectness, "takes too long");
    const GateAnswer answer = server.ask(request, {.seconds = profile.task_seconds - used});
    run.answers += answer.text() + "\n";
    run.turn_s.push_back(answer.chat.total_s);
    if (!answer.transport_ok()) return failed(std::move(run), kTransport, answer.chat.problem);
    const ChatResult& chat = answer.chat;
    if (const TextFlaws flaws = find_flaws(chat.content); !flaws.garbled.empty()) {
      return failed(std::move(run), kSchema, format("the content {}", flaws.garbled.front()));
    }
    if (chat.tool_calls.empty()) {
      if (called != task.calls) {
        return failed(std::move(run), kCorrectness,
                      format("made the calls {}, not {}", join(called, "; "), join(task.calls, "; ")));
      }
      const Graded graded = grade_answer(task.oracle, chat);
      run.graded = graded.grade != Grade::kNotGraded;
      return graded.grade == Grade::kRight ? run : failed(std::move(run), kCorrectness, "the answer " + graded.why);
    }
    if (chat.finish_reason != "tool_calls") {
      return failed(std::move(run), kSchema, format("an answer with calls finished as \"{}\"", chat.finish_reason));
    }
    request["messages"].push_back(assistant_turn(chat));
    for (const ChatToolCall& call : chat.tool_calls) {
      const std::string problem = call_problem(request.value("tools", GateJson::array()), call);
      if (!problem.empty()) return failed(std::move(run), kSchema, problem);
      const std::string key = call_key(call);
      const auto known = task.results.find(key);
      called.push_back(key);
      if (called.size() > static_cast<size_t>(profile.most_calls)) {
        return failed(std::move(run), kCorrectness, format("more than {} calls", profile.most_calls));
      }
      request["messages"].push_back(
          {{"role", "tool"},
           {"tool_call_id", call.id},
           {"content", known == task.results.end() ? R"({"error": "not found"})" : known->second}});
    }
  }
  return failed(std::move(run), kCorrectness, format("no answer within {} turns", profile.most_turns));
}

GateArm run_gauntlet(GateServer& server, const GatePlan& plan, ArmKind kind) {
  std::vector<GauntletTask> tasks = gauntlet_tasks(plan.profile, plan.held_out, false);
  if (!plan.profile.mini_tasks && !plan.quick) {
    for (GauntletTask& task : gauntlet_tasks(plan.profile, plan.held_out, true)) tasks.push_back(std::move(task));
  }
  if (kind == ArmKind::kPlanted) {
    // One of each kind: faults sit in calls or in answers.
    std::vector<GauntletTask> few;
    for (size_t i = 0; i < tasks.size() && i < 12; i += 4) few.push_back(std::move(tasks[i]));
    tasks = std::move(few);
  }
  std::vector<TaskRun> runs(tasks.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> workers;
  for (int i = 0; i < plan.profile.gauntlet_workers; ++i) {
    workers.emplace_back([&] {
      for (size_t task; (task = next++) < tasks.size() && !server.lost();) {
        runs[task] = run_task(server, plan.profile, tasks[task]);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();

  GateArm arm;
  for (const char* check : {kTransport, kSchema, kCorrectness}) arm.define(check);
  int64_t right = 0, turns = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskRun& run = runs[i];
    turns += static_cast<int64_t>(run.turn_s.size());
    if (run.turn_s.empty()) continue;  // the server was lost before
    arm.answers[tasks[i].id] = run.answers;
    arm.samples["turn_s"].insert(arm.samples["turn_s"].end(), run.turn_s.begin(), run.turn_s.end());
    if (!run.graded) {
      arm.not_run.push_back(format("{}: {}", tasks[i].id, run.problem));
      arm.items.push_back({tasks[i].id, "not graded", run.problem});
    } else if (run.problem.empty()) {
      ++right;
      arm.items.push_back({tasks[i].id, "right", format("{} turns", run.turn_s.size())});
    } else {
      arm.find(run.check, format("{}: {}", tasks[i].id, run.problem));
      arm.items.push_back({tasks[i].id, run.check, run.problem});
    }
  }
  const auto count = static_cast<int64_t>(tasks.size());
  arm.observed["right"] = static_cast<double>(right);
  arm.observed["share_proven"] = share_at_least(right, count);
  arm.range = format("{} tasks of set {} in {} turns, {} at a time; {} right prove a share of {:.1f} %", count,
                     plan.held_out ? "B (held out)" : "A", turns, plan.profile.gauntlet_workers, right,
                     100 * share_at_least(right, count));
  return arm;
}

std::vector<GateFault> faults() {
  return {
      {.name = "another digit",
       .check = kCorrectness,
       .in_answer =
           [](const GateJson&, GateAnswer& answer) {
             for (char& c : answer.chat.content) {
               if (c >= '0' && c <= '9') c = static_cast<char>('0' + (c - '0' + 1) % 10);
             }
           }},
      {.name = "arguments cut short",
       .check = kSchema,
       .in_answer =
           [](const GateJson&, GateAnswer& answer) {
             for (ChatToolCall& call : answer.chat.tool_calls) call.arguments.pop_back();
           }},
      {.name = "a stream without its end", .check = kTransport, .in_answer = [](const GateJson&, GateAnswer& answer) {
         answer.chat.outcome = ChatOutcome::kFailed;
         answer.chat.problem = "the stream ended without data: [DONE]";
       }}};
}

}  // namespace

Gate gauntlet_gate() {
  return {.name = "gauntlet",
          .id = "gauntlet/1",
          .about = "twelve tasks with tools, repairs and structured answers",
          .missing = [](const GateServer&, const GatePlan&) { return std::string(); },
          .run = run_gauntlet,
          .faults = faults};
}

}  // namespace onelane
