#include "cli/workloads.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "cli/runtime.h"
#include "lane/workload.h"

namespace onelane {
namespace {

std::string_view judged_by(const WorkloadClass& of) {
  switch (of.prompts.front().oracle.kind) {
    case Oracle::Kind::kNone:
      return "flaws only";
    case Oracle::Kind::kContains:
      return "strings";
    case Oracle::Kind::kNumber:
      return "number";
    case Oracle::Kind::kJson:
    case Oracle::Kind::kRows:
      return "parsed values";
    case Oracle::Kind::kToolCalls:
      return "calls";
    case Oracle::Kind::kProgram:
      return "tests, run";
    case Oracle::Kind::kShell:
      return "output, run";
  }
  return "";
}

}  // namespace

int list_workloads() {
  const Workloads& all = builtin_workloads();
  fmt::print("{}  sha256 {}\n\n", all.protocol, all.protocol_sha256);
  fmt::print("{:<12} {:>5} {:>4} {:>8} {:>16} {:>6}  {:<13} {}\n", "class", "share", "dev", "held out", "prompt, bytes",
             "answer", "judged by", "what");
  for (const WorkloadClass& of : all.classes) {
    const auto held = std::count_if(of.prompts.begin(), of.prompts.end(), [](const auto& p) { return p.held_out; });
    size_t least = SIZE_MAX, most = 0;
    for (const WorkloadPrompt& prompt : of.prompts) {
      const size_t size = prompt.messages_json().size() + prompt.tools.size();
      least = std::min(least, size);
      most = std::max(most, size);
    }
    fmt::print("{:<12} {:>5.2f} {:>4} {:>8} {:>16} {:>6}  {:<13} {}\n", of.name, of.share,
               static_cast<int64_t>(of.prompts.size()) - held, held, fmt::format("{}-{}", least, most), of.max_tokens,
               judged_by(of), of.about);
  }
  return 0;
}

int show_workload(const std::string& id) {
  for (const WorkloadClass& of : builtin_workloads().classes) {
    for (const WorkloadPrompt& prompt : of.prompts) {
      if (prompt.id != id) continue;
      fmt::print("{}\n", workload_request(of, prompt));
      return 0;
    }
  }
  return fail({ErrorCode::kNotFound, fmt::format("workloads: no prompt \"{}\"; ids are a class of `onelane workloads "
                                                 "list` and a number, for instance code/07",
                                                 id)});
}

int verify_workloads() {
  // Reading them holds every file against the protocol.
  const auto all = read_workloads(workload_files());
  if (!all) return fail(all.error());
  std::map<std::string, int> not_graded;  // reason to count
  int held = 0, wrong = 0, prompts = 0;
  for (const WorkloadClass& of : all->classes) {
    for (const WorkloadPrompt& prompt : of.prompts) {
      ++prompts;
      if (prompt.reference.empty()) continue;
      const Graded graded = grade_answer(prompt.oracle, {.content = prompt.reference});
      if (graded.grade == Grade::kNotGraded) ++not_graded[graded.why];
      if (graded.grade == Grade::kRight) ++held;
      if (graded.grade == Grade::kWrong) {
        ++wrong;
        fmt::print("{}: its own reference answer {}\n", prompt.id, graded.why);
      }
    }
  }
  fmt::print("{}: {} files as their protocol says, sha256 {}\n", all->protocol, all->classes.size(),
             all->protocol_sha256);
  fmt::print("{} prompts; {} reference answers taken by their oracles, {} refused\n", prompts, held, wrong);
  for (const auto& [reason, count] : not_graded) fmt::print("{} not run: {}\n", count, reason);
  return wrong == 0 ? 0 : 1;
}

}  // namespace onelane
