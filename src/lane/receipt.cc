#include "lane/receipt.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "base/format.h"
#include "lane/sha256.h"
#include "lane/stats.h"
#include "lane/utc.h"

namespace onelane {
namespace {

Percentiles percentiles_of(const ReceiptCell& cell, const std::string& name, const Percentiles& given) {
  const auto found = cell.samples.find(name);
  if (found == cell.samples.end() || found->second.empty()) return given;
  return {percentile(found->second, 0.50), percentile(found->second, 0.95), percentile(found->second, 0.99)};
}

// Equal but for the last digits, which another compiler's sums may turn.
bool same(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return !a && !b;
  return std::abs(*a - *b) <= 1e-9 * std::max(std::abs(*a), std::abs(*b));
}

void check_cell(const ReceiptCell& cell, std::vector<std::string>& problems) {
  ReceiptCell again = cell;
  summarise(again);
  const auto compare = [&](const char* name, const std::optional<double>& said, const std::optional<double>& is) {
    if (!same(said, is)) {
      problems.push_back(format("cell {}: {} is {} but follows from the samples as {}", cell.id, name,
                                said ? format("{}", *said) : "null", is ? format("{}", *is) : "null"));
    }
  };
  compare("tok_s", cell.tok_s, again.tok_s);
  compare("ttft_ms.p50", cell.ttft_ms.p50, again.ttft_ms.p50);
  compare("ttft_ms.p95", cell.ttft_ms.p95, again.ttft_ms.p95);
  compare("ttft_ms.p99", cell.ttft_ms.p99, again.ttft_ms.p99);
  compare("itl_ms.p50", cell.itl_ms.p50, again.itl_ms.p50);
  compare("itl_ms.p95", cell.itl_ms.p95, again.itl_ms.p95);
  compare("itl_ms.p99", cell.itl_ms.p99, again.itl_ms.p99);
}

void check_artifact(const ReceiptArtifact& artifact, const std::filesystem::path& folder,
                    std::vector<std::string>& problems) {
  const std::filesystem::path relative(artifact.path);
  const bool leaves = std::any_of(relative.begin(), relative.end(), [](const auto& part) { return part == ".."; });
  if (relative.empty() || relative.is_absolute() || leaves) {
    problems.push_back(format("artifact {}: must be a path below the receipt's folder", artifact.path));
    return;
  }
  const auto digest = sha256_file((folder / relative).string());
  if (!digest) {
    problems.push_back(format("artifact {}: {}", artifact.path, digest.error().message));
  } else if (*digest != artifact.sha256) {
    problems.push_back(
        format("artifact {}: its SHA-256 is {}, the receipt says {}", artifact.path, *digest, artifact.sha256));
  } else if (std::filesystem::file_size(folder / relative) != static_cast<uintmax_t>(artifact.bytes)) {
    problems.push_back(
        format("artifact {}: has another size than the {} bytes of the receipt", artifact.path, artifact.bytes));
  }
}

}  // namespace

std::string new_run_id() { return format("{}-{:08x}", utc_now("%Y%m%dT%H%M%SZ"), std::random_device()()); }

void summarise(ReceiptCell& cell) {
  if (cell.tokens && cell.last_token_s && *cell.last_token_s > 0) {
    cell.tok_s = static_cast<double>(*cell.tokens) / *cell.last_token_s;
  }
  cell.ttft_ms = percentiles_of(cell, "ttft_ms", cell.ttft_ms);
  cell.itl_ms = percentiles_of(cell, "itl_ms", cell.itl_ms);
}

Verdict allowed_verdict(const Receipt& receipt) {
  if (!receipt.void_reasons.empty()) return Verdict::kVoid;
  for (const Verdict worst : {Verdict::kFail, Verdict::kVoid, Verdict::kNotRun}) {
    for (const ReceiptGate& gate : receipt.gates) {
      if (gate.verdict == worst) return worst;
    }
  }
  return Verdict::kPass;
}

std::vector<std::string> verdict_problems(const Receipt& receipt) {
  std::vector<std::string> problems;
  const Verdict allowed = allowed_verdict(receipt);
  if (allowed != Verdict::kPass && receipt.verdict != allowed) {
    problems.push_back(format("verdict: is {}, but void rules and gates allow {} only", verdict_label(receipt.verdict),
                              verdict_label(allowed)));
  }
  const auto explained = [&](const std::string& what, Verdict verdict, const std::vector<std::string>& reasons) {
    if (verdict != Verdict::kPass && reasons.empty()) {
      problems.push_back(format("{}: {} without a reason", what, verdict_label(verdict)));
    }
  };
  explained("verdict", receipt.verdict, receipt.reasons);
  for (const ReceiptGate& gate : receipt.gates) explained("gate " + gate.id, gate.verdict, gate.reasons);
  return problems;
}

std::vector<std::string> verify_receipt(std::string_view json, const std::string& folder) {
  const auto receipt = parse_receipt(json);
  if (!receipt) return {receipt.error().message};
  std::vector<std::string> problems = verdict_problems(*receipt);
  for (const ReceiptCell& cell : receipt->cells) check_cell(cell, problems);
  if (!folder.empty()) {
    for (const ReceiptArtifact& artifact : receipt->artifacts) check_artifact(artifact, folder, problems);
  }
  return problems;
}

}  // namespace onelane
