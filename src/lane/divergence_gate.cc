#include "lane/divergence_gate.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "lane/capture_run.h"
#include "lane/divergence.h"
#include "lane/sha256.h"
#include "lane/workload.h"

namespace onelane {
namespace {

constexpr const char* kReferenceRole = "reference";
constexpr const char* kCandidateRole = "candidate";

double share_of(const std::string& workload) {
  const WorkloadClass* of = builtin_workloads().find(workload);
  return of == nullptr ? 0 : of->share;
}

struct References {
  Capture reference, null;
};

// Given ones; else this server's prefill, twice.
Result<References> references_of(GateServer& server, const GatePlan& plan, ArmKind kind) {
  if (plan.reference) return References{*plan.reference, plan.null_reference ? *plan.null_reference : *plan.reference};
  ONELANE_ASSIGN(const auto documents, capture_documents(server, corpus_of(plan, kind)));
  ONELANE_ASSIGN(Capture reference, run_capture(server, CapturePath::kPrefill, documents, kReferenceRole));
  ONELANE_ASSIGN(Capture null, run_capture(server, CapturePath::kPrefill, documents, kReferenceRole));
  return References{std::move(reference), std::move(null)};
}

// Compares a path's capture and adds what is too far away.
Result<void> judge(const GatePlan& plan, const References& of, const Capture& candidate, GateArm& arm) {
  const auto skip = static_cast<uint32_t>(plan.profile.skipped_tokens);
  ONELANE_ASSIGN(const auto classes, compare_captures(of.reference, candidate, skip));
  // The null has all positions that the reference has; it is cut to those of this path.
  Capture null = of.null;
  for (size_t i = 0; i < null.documents.size(); ++i) {
    const auto same = [&](const CaptureDocument& document) { return document.id == null.documents[i].id; };
    const auto found = std::find_if(candidate.documents.begin(), candidate.documents.end(), same);
    CaptureDocument& document = null.documents[i];
    if (found == candidate.documents.end() || found->first <= document.first) continue;
    document.positions.erase(document.positions.begin(), document.positions.begin() + (found->first - document.first));
    document.first = found->first;
  }
  ONELANE_ASSIGN(const auto floor, compare_captures(of.reference, null, skip));
  const auto rule = plan.precision ? DivergenceRule::kPrecision : DivergenceRule::kNumerics;
  const DivergenceVerdict verdict = judge_divergence(classes, floor, rule, share_of, plan.seed);
  for (const DivergenceFinding& finding : verdict.findings) {
    arm.find(finding.check, format("{}, {}", candidate.path, finding.sentence));
  }
  int64_t positions = 0, flips = 0;
  for (const ClassVerdict& one : verdict.classes) {
    positions += one.candidate.positions;
    flips += one.candidate.flips();
    arm.samples[format("{}/{}/document_kl", candidate.path, one.candidate.workload)] = one.candidate.document_kl;
  }
  arm.observed[format("{}_score", candidate.path)] = verdict.score;
  arm.items.push_back({candidate.path, verdict.findings.empty() ? "held" : "broken",
                       format("{} positions in {} classes, {} other best tokens, score {:.6f} nat", positions,
                              verdict.classes.size(), flips, verdict.score)});
  return {};
}

GateArm run_divergence(GateServer& server, const GatePlan& plan, ArmKind kind) {
  GateArm arm;
  for (const char* check : kDivergenceChecks) arm.define(check);
  const auto stop = [&](const Error& error) {
    if (!server.lost()) arm.not_run.push_back(error.message);
    return arm;
  };
  auto of = references_of(server, plan, kind);
  if (!of) return stop(of.error());
  size_t tokens = 0;
  for (const CaptureDocument& document : of->reference.documents) tokens += document.tokens.size();
  std::vector<std::string> walked, left_out;
  for (const CapturePath path : kCapturePaths) {
    if (kind == ArmKind::kPlanted && path != CapturePath::kPrefill) break;
    if (kind == ArmKind::kClean) plan.progress(format("divergence: {}", capture_path_name(path)));
    const auto candidate = run_capture(server, path, of->reference.documents, kCandidateRole);
    if (!candidate && candidate.error().code != ErrorCode::kUnsupported) return stop(candidate.error());
    if (!candidate) {
      left_out.push_back(format("{} ({})", capture_path_name(path), candidate.error().message));
      arm.items.push_back({std::string(capture_path_name(path)), "not run", candidate.error().message});
      continue;
    }
    if (auto judged = judge(plan, *of, *candidate, arm); !judged) return stop(judged.error());
    const auto bytes = capture_bytes(*candidate);
    if (!bytes) return stop(bytes.error());
    arm.answers[candidate->path] = sha256(*bytes);
    walked.push_back(candidate->path);
  }
  left_out.emplace_back("after reload (no route evicts)");
  if (walked.empty()) arm.not_run.push_back("no path could be walked");
  arm.range = format("{} documents, {} tokens, against {}: {}; not covered: {}", of->reference.documents.size(), tokens,
                     plan.reference ? "a reference capture" : "the server's own prefill", join(walked, ", "),
                     join(left_out, ", "));
  return arm;
}

std::vector<GateFault> faults() {
  const auto on_candidate = [](const char* name, const char* check, void (*change)(CapturePosition& at)) {
    return GateFault{
        .name = name, .check = check, .in_completion = [change](const GateJson& request, CompletionAnswer& answer) {
          if (request.value("user", "") != kCandidateRole) return;
          auto& positions = answer.choices.front().prompt;
          // A share of them, as a bug would: about one in nine.
          for (size_t i = 4; i < positions.size(); i += 9) change(positions[i]);
        }};
  };
  return {on_candidate("unlikely tokens as the best", "hard",
                       [](CapturePosition& at) { std::swap(at.top.front().first, at.top.back().first); }),
          on_candidate("a mass that leaks into the tail", "kl", [](CapturePosition& at) {
            for (auto& [token, logprob] : at.top) logprob -= 1;
            at.logprob -= 1;
            at.tail = tail_mass(at.top);
          })};
}

}  // namespace

Gate divergence_gate() {
  return {.name = "divergence",
          .id = "divergence/1",
          .about = "documents forced through every path, class by class against a reference",
          .missing = [](const GateServer& server, const GatePlan&) { return server.forced_problem(); },
          .run = run_divergence,
          .faults = faults};
}

}  // namespace onelane
