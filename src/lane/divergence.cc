#include "lane/divergence.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/format.h"

namespace onelane {
namespace {

constexpr double kLeastMass = 1e-9;  // a tail that rounding has eaten
constexpr double kFloor = 0.002;     // nat: below it a change of the divergence is no matter
constexpr double kMostPrecision = 0.02;
constexpr double kConfidentShare = 1.0 / 5000;

const float* find(const CapturePosition& at, int32_t token) {
  const auto found = std::find_if(at.top.begin(), at.top.end(), [&](const auto& one) { return one.first == token; });
  return found == at.top.end() ? nullptr : &found->second;
}

// ln of a token's probability; of one that is not kept: at most what the last kept one has.
double logprob_of(const CapturePosition& at, int32_t token) {
  const float* known = find(at, token);
  return known != nullptr ? *known : at.top.back().second;
}

Error differs(const std::string& id, std::string_view what) {
  return {ErrorCode::kInvalidArgument, format("document \"{}\": {}", id, what)};
}

// How many of `positions` a rate that gave `seen` may give twice over: with few, chance alone decides what is seen.
int64_t twice(int64_t seen, int64_t positions) {
  return static_cast<int64_t>(2 * share_at_most(seen, positions) * static_cast<double>(positions));
}

}  // namespace

PositionDivergence compare_position(const CapturePosition& reference, const CapturePosition& candidate, int32_t token) {
  PositionDivergence out;
  double p_rest = 1, q_rest = 1;
  const auto add = [&](double lp, double lq) {
    const double p = std::exp(lp);
    out.kl += p * (lp - lq);
    p_rest -= p;
    q_rest -= std::exp(lq);
  };
  for (const auto& [id, lp] : reference.top) {
    if (id == token) continue;
    if (const float* lq = find(candidate, id)) add(lp, *lq);
  }
  add(reference.logprob, candidate.logprob);
  p_rest = std::max(p_rest, kLeastMass);
  q_rest = std::max(q_rest, kLeastMass);
  out.kl = std::max(0.0, out.kl + p_rest * std::log(p_rest / q_rest));
  out.shift = static_cast<double>(candidate.logprob) - reference.logprob;
  const int32_t a = reference.top.front().first, b = candidate.top.front().first;
  out.flip = a != b;
  if (out.flip) {
    out.reference_margin = reference.top.front().second - logprob_of(reference, b);
    out.candidate_margin = candidate.top.front().second - logprob_of(candidate, a);
  }
  return out;
}

Result<std::vector<ClassDivergence>> compare_captures(const Capture& reference, const Capture& candidate,
                                                      uint32_t skip) {
  std::map<std::string_view, const CaptureDocument*> others;
  for (const CaptureDocument& document : candidate.documents) others[document.id] = &document;
  if (others.size() != reference.documents.size()) {
    return Error{ErrorCode::kInvalidArgument, format("there are {} documents in the reference and {} in the candidate",
                                                     reference.documents.size(), others.size())};
  }
  std::vector<ClassDivergence> out;
  std::map<std::string_view, size_t> index;
  std::map<std::string_view, std::vector<double>> shifts;
  for (const CaptureDocument& document : reference.documents) {
    const auto found = others.find(document.id);
    if (found == others.end()) return differs(document.id, "is not in the candidate");
    const CaptureDocument& other = *found->second;
    if (document.workload != other.workload) return differs(document.id, "is of another class in the candidate");
    if (document.tokens != other.tokens) return differs(document.id, "has other tokens in the candidate");
    const size_t begin = std::max({document.first, other.first, skip});
    if (begin >= document.tokens.size()) continue;
    const auto [place, added] = index.try_emplace(document.workload, out.size());
    if (added) out.push_back({.workload = document.workload, .document_kl = {}});
    ClassDivergence& of = out[place->second];
    double kl = 0;
    for (size_t i = begin; i < document.tokens.size(); ++i) {
      const CapturePosition& p = document.positions[i - document.first];
      const auto at = compare_position(p, other.positions[i - other.first], document.tokens[i]);
      kl += at.kl;
      of.mean_shift += at.shift;
      shifts[document.workload].push_back(std::abs(at.shift));
      of.confident_positions += p.top.size() < 2 || p.top[0].second - p.top[1].second >= kConfident;
      if (!at.flip) continue;
      const bool confident = at.reference_margin >= kConfident;
      of.near_ties += at.reference_margin < kNearTie;
      of.moderate += at.reference_margin >= kNearTie && !confident;
      of.confident += confident;
      of.hard += confident && at.candidate_margin >= kConfident;
    }
    of.positions += static_cast<int64_t>(document.tokens.size() - begin);
    of.document_kl.push_back(kl / static_cast<double>(document.tokens.size() - begin));
  }
  if (out.empty()) {
    return Error{ErrorCode::kInvalidArgument, format("no document has a token behind the first {}", skip)};
  }
  for (ClassDivergence& of : out) {
    const std::vector<double>& all = shifts[of.workload];
    of.mean_shift /= static_cast<double>(of.positions);
    of.mean_abs_shift = mean(all);
    of.p50 = percentile(all, 0.5);
    of.p99 = percentile(all, 0.99);
    of.most = *std::max_element(all.begin(), all.end());
  }
  return out;
}

DivergenceVerdict judge_divergence(const std::vector<ClassDivergence>& candidate,
                                   const std::vector<ClassDivergence>& null, DivergenceRule rule,
                                   double (*share)(const std::string& workload), uint64_t seed) {
  ONELANE_CHECK(candidate.size() == null.size(), "classes of different captures");
  DivergenceVerdict out;
  double weight = 0, weighted = 0, sum = 0;
  for (size_t i = 0; i < candidate.size(); ++i) {
    const ClassDivergence &of = candidate[i], &floor = null[i];
    ONELANE_CHECK(of.workload == floor.workload && of.document_kl.size() == floor.document_kl.size(),
                  "classes of different captures");
    std::vector<double> excess;
    for (size_t d = 0; d < of.document_kl.size(); ++d) excess.push_back(of.document_kl[d] - floor.document_kl[d]);
    ClassVerdict verdict{.candidate = of, .null = floor, .excess = document_bootstrap(excess, {.seed = seed})};
    const bool numerics = rule == DivergenceRule::kNumerics;
    verdict.most_excess = numerics ? std::max(0.5 * floor.kl(), kFloor) : kMostPrecision;
    verdict.most_flips = numerics ? twice(floor.moderate + floor.confident, of.positions) : of.positions;
    verdict.most_confident =
        numerics ? floor.confident
                 : static_cast<int64_t>(std::ceil(static_cast<double>(of.confident_positions) * kConfidentShare));
    const auto find = [&](const char* check, std::string sentence) {
      out.findings.push_back({check, format("{}: {}", of.workload, std::move(sentence))});
    };
    const double seen = numerics ? verdict.excess.bound(0.95) : of.kl();
    if (seen > verdict.most_excess) {
      find("kl",
           format("{:.5f} nat {}, allowed are {:.5f}", seen,
                  numerics ? "may be its divergence over that of the null" : "is its divergence", verdict.most_excess));
    }
    if (of.moderate + of.confident > verdict.most_flips) {
      find("flips",
           format("{} of {} best tokens are others by more than a near tie, {} of the null's; allowed are {}",
                  of.moderate + of.confident, of.positions, floor.moderate + floor.confident, verdict.most_flips));
    }
    if (of.confident > verdict.most_confident) {
      find("confident", format("{} best tokens that the reference was sure of are others, allowed are {}", of.confident,
                               verdict.most_confident));
    }
    if (of.hard > 0) find("hard", format("{} best tokens are others and both are sure of theirs", of.hard));
    weight += share(of.workload);
    weighted += share(of.workload) * of.kl();
    sum += of.kl();
    out.classes.push_back(std::move(verdict));
  }
  out.score = weight > 0 ? weighted / weight : sum / static_cast<double>(std::max<size_t>(candidate.size(), 1));
  return out;
}

std::string divergence_text(const DivergenceVerdict& verdict) {
  std::string out = format("{:<14} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>7} {:>5} {:>5}\n", "class", "docs", "tokens",
                           "KL", "null", "excess95", "|dlp|", "flips", "conf", "hard");
  for (const ClassVerdict& of : verdict.classes) {
    const ClassDivergence& c = of.candidate;
    out += format("{:<14} {:>5} {:>7} {:>9.6f} {:>9.6f} {:>9.6f} {:>9.6f} {:>6.2f}% {:>5} {:>5}\n", c.workload,
                  c.document_kl.size(), c.positions, c.kl(), of.null.kl(), of.excess.bound(0.95), c.mean_abs_shift,
                  100 * static_cast<double>(c.flips()) / static_cast<double>(c.positions), c.confident, c.hard);
  }
  return out + format("score {:.6f} nat: it ranks, classes decide\n", verdict.score);
}

}  // namespace onelane
