#include "lane/thinking.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "lane/gauntlet.h"
#include "lane/stats.h"
#include "lane/text_flaws.h"
#include "lane/thinking_cells.h"
#include "lane/tool_schema.h"

namespace onelane {
namespace {

using Condition = ThinkingCell::Condition;

constexpr const char* kTransport = "transport";
constexpr const char* kEmpty = "empty";
constexpr const char* kFinish = "finish";
constexpr const char* kMarkup = "markup";
constexpr const char* kMode = "mode";
constexpr const char* kToolJson = "tool_json";
constexpr const char* kLoop = "loop";
constexpr const char* kChanged = "changed";
constexpr const char* kWrong = "wrong";
constexpr const char* kGap = "gap";
constexpr const char* kItl = "itl";
constexpr const char* kStarved = "starved";

// What a prompt got alone.
struct Control {
  std::string text;
  bool right = false, loop = false;
};

Control control_of(const ThinkingPrompt& prompt, const GateAnswer& answer) {
  return {.text = answer.text(),
          .right = grade_answer(prompt.oracle, answer.chat).grade != Grade::kWrong,
          .loop = find_flaws(answer.chat.reasoning).loop || find_flaws(answer.chat.content).loop};
}

class Judge {
 public:
  // equal_bits: answers must be those that the same prompts get alone.
  Judge(GateArm& arm, const GateProfile& profile, bool equal_bits)
      : arm_(arm), profile_(profile), equal_bits_(equal_bits) {
    for (const char* check :
         {kTransport, kEmpty, kFinish, kMarkup, kMode, kToolJson, kLoop, kWrong, kGap, kItl, kStarved}) {
      arm.define(check);
    }
    if (equal_bits) arm.define(kChanged);
    arm.bound["longest_gap_s"] = profile.most_gap_s;
    arm.observed["longest_gap_s"] = 0;
  }

  // One answer; `control` null: it is the control.
  void answer(const ThinkingCell& cell, const ThinkingPrompt& prompt, const GateAnswer& answer,
              const Control* control) {
    const ChatResult& chat = answer.chat;
    const auto find = [&](const char* check, const std::string& what) {
      arm_.find(check, format("{}, {}: {}", cell.id, prompt.id, what));
    };
    if (!answer.transport_ok()) return find(kTransport, chat.problem);
    if (chat.outcome == ChatOutcome::kCancelled) return;
    const bool calls = !chat.tool_calls.empty(), cut = chat.finish_reason == "length";
    if (chat.finish_reason != (calls ? "tool_calls" : "stop") && !cut) {
      find(kFinish, format("finished as \"{}\"", chat.finish_reason));
    }
    // Reasoning that used up the limit leaves nothing for the content, and says so.
    if (chat.content.empty() && !calls && !cut) find(kEmpty, "no content, as after reasoning without an end");
    if (!cell.mode.thinking && !chat.reasoning.empty()) find(kMode, "reasoning without thinking");
    if (cell.mode.thinking && chat.reasoning.empty()) find(kMode, "thinking without reasoning");
    for (const std::string* text : {&chat.reasoning, &chat.content}) {
      for (const std::string& flaw : find_flaws(*text).garbled) find(kMarkup, flaw);
    }
    for (const ChatToolCall& call : chat.tool_calls) {
      const std::string problem = call_problem(prompt.request.value("tools", GateJson::array()), call);
      if (!problem.empty() && !cut) find(kToolJson, problem);
    }
    const Control seen = control_of(prompt, answer);
    if (seen.loop && (control == nullptr || !control->loop)) find(kLoop, "goes round in circles");
    if (control == nullptr) return;
    if (!seen.right && control->right) find(kWrong, "is wrong, and right when asked alone");
    if (equal_bits_ && seen.text != control->text) find(kChanged, "is another answer than alone");
  }

  // Silences, the pace beside an arrival, and what the slowest stream got.
  void pace(const ThinkingCell& cell, const std::vector<AskedInCell>& all, double window_s) {
    std::vector<double> gaps, tokens(static_cast<size_t>(cell.streams));
    for (const AskedInCell& asked : all) {
      const auto& first = asked.answer.chat.first_text_s;
      if (first) arm_.samples[asked.arrival ? "arrival_ttft_s" : "ttft_s"].push_back(*first);
      if (asked.arrival) continue;
      gaps.insert(gaps.end(), asked.answer.gaps_s.begin(), asked.answer.gaps_s.end());
      for (const double at : asked.answer.token_at_s) tokens[asked.stream] += asked.begun_s + at <= window_s;
    }
    if (gaps.empty()) return;
    arm_.samples["gap_s"].insert(arm_.samples["gap_s"].end(), gaps.begin(), gaps.end());
    const double longest = *std::max_element(gaps.begin(), gaps.end()), p99 = percentile(gaps, 0.99);
    double& worst = arm_.observed["longest_gap_s"];
    worst = std::max(worst, longest);
    if (longest > profile_.most_gap_s)
      arm_.find(kGap, format("{}: a stream was silent for {:.2f} s", cell.id, longest));

    double& idle = idle_p99_s_[{cell.mode.name, cell.streams}];
    if (cell.condition == Condition::kPlain) idle = p99;
    const double allowed = std::max(3 * idle, profile_.itl_floor_s);
    if (cell.condition == Condition::kArrival && p99 > allowed) {
      arm_.find(kItl, format("{}: 99 of 100 gaps are within {:.3f} s, allowed are {:.3f} s", cell.id, p99, allowed));
    }
    // Where requests are hung up on, streams differ by plan.
    const bool even = cell.condition == Condition::kPlain || cell.condition == Condition::kArrival;
    const double share = *std::min_element(tokens.begin(), tokens.end()) / std::max(mean(tokens), 1e-9);
    if (!even || cell.streams == 1) return;
    arm_.samples["slowest_share"].push_back(share);
    if (share < profile_.least_share) {
      arm_.find(kStarved, format("{}: the slowest stream got {:.2f} of the mean", cell.id, share));
    }
  }

 private:
  GateArm& arm_;
  const GateProfile& profile_;
  const bool equal_bits_;
  std::map<std::pair<std::string, int>, double> idle_p99_s_;
};

// The null arm asks the controls again; a planted arm asks one of them and one turn with tools.
bool wanted(const ThinkingCell& cell, ArmKind kind, const GateProfile& profile) {
  if (kind == ArmKind::kClean) return true;
  const bool alone = cell.condition == Condition::kControl;
  if (kind == ArmKind::kNull) return alone;
  return alone && (cell.mode.name == profile.modes.front().name || cell.mode.name == profile.modes.back().name);
}

GateArm run_thinking(GateServer& server, const GatePlan& plan, ArmKind kind) {
  GateArm arm;
  Judge judge(arm, plan.profile, server.info().onelane);
  std::map<std::string, Control> controls;  // by mode and prompt
  int64_t answers = 0, cells = 0;
  uint64_t seed = plan.seed * 1000;
  for (const ThinkingCell& cell : thinking_cells(plan)) {
    if (!wanted(cell, kind, plan.profile) || server.lost()) continue;
    const bool alone = cell.condition == Condition::kControl;
    std::vector<ThinkingPrompt> prompts = thinking_prompts(plan, cell.mode);
    if (alone) prompts.push_back(thinking_tool_turn(plan, cell.mode));
    if (cell.condition == Condition::kTools) prompts = {thinking_tool_turn(plan, cell.mode)};
    if (kind == ArmKind::kClean) plan.progress(format("thinking: {}", cell.id));
    const std::vector<AskedInCell> all = run_thinking_cell(server, plan, cell, prompts, ++seed);
    const size_t before = arm.findings.size();
    for (const AskedInCell& asked : all) {
      if (asked.arrival) {
        if (!asked.answer.transport_ok()) arm.find(kTransport, format("{}: {}", cell.id, asked.answer.chat.problem));
        continue;
      }
      const ThinkingPrompt& prompt = prompts[asked.prompt];
      const std::string key = format("{}, {}", cell.mode.name, prompt.id);
      if (alone) {
        controls[key] = control_of(prompt, asked.answer);
        arm.answers[key] = controls[key].text;
      }
      judge.answer(cell, prompt, asked.answer, alone ? nullptr : &controls[key]);
    }
    if (!alone) judge.pace(cell, all, thinking_window_s(plan));
    answers += static_cast<int64_t>(all.size());
    ++cells;
    arm.items.push_back({cell.id, arm.findings.size() == before ? "held" : "broken", format("{} answers", all.size())});
  }
  std::vector<std::string> modes;
  for (const GateMode& mode : plan.profile.modes) modes.push_back(mode.name);
  arm.range = format(
      "{} cells, {} answers: {} at {} streams; undisturbed, beside arrivals of {} tokens, with a quarter "
      "cancelled, tool turns; windows of {} s",
      cells, answers, join(modes, ", "), join(plan.profile.streams, ", "), join(arrival_tokens(plan), ", "),
      thinking_window_s(plan));
  return arm;
}

std::vector<GateFault> faults() {
  const auto on_answer = [](const char* name, const char* check, void (*change)(GateAnswer&)) {
    return GateFault{
        .name = name, .check = check, .in_answer = [change](const GateJson&, GateAnswer& a) { change(a); }};
  };
  return {on_answer("reasoning that never ends", kEmpty,
                    [](GateAnswer& a) { a.chat.reasoning += std::exchange(a.chat.content, {}); }),
          on_answer("the template's marks in the text", kMarkup, [](GateAnswer& a) { a.chat.content += "</think>"; }),
          on_answer("a loop", kLoop,
                    [](GateAnswer& a) {
                      for (int i = 0; i < 60; ++i) a.chat.content += " and so on and on";
                    }),
          on_answer("an answer that ends as an error", kFinish, [](GateAnswer& a) { a.chat.finish_reason = "error"; })};
}

}  // namespace

Gate thinking_gate() {
  return {.name = "thinking",
          .id = "thinking/1",
          .about = "thinking modes, alone and in company, undisturbed and disturbed",
          .missing = [](const GateServer&, const GatePlan&) { return std::string(); },
          .run = run_thinking,
          .faults = faults};
}

}  // namespace onelane
