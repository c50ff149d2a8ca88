// Divergence: how far two captures of the same documents are apart, class by class, and whether that is too far.
//
// A corpus average hides a broken class, so every class is judged alone; the weighted score ranks builds and decides
// nothing. Documents are the sample, not tokens: intervals redraw documents. What no reference is free of (another
// order of sums, other neighbours in the batch) is measured by a null capture of the reference itself, and bounds are
// counted from there.
//
// Captures know the best tokens alone, so the divergence is that of the coarser distribution (the tokens that both
// captures know, and all others as one), which is never more than the true one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "lane/capture.h"
#include "lane/stats.h"

namespace onelane {

// One position of two captures. p: the reference, q: the candidate. Nats.
struct PositionDivergence {
  double kl = 0;                // of p from q, a lower bound
  double shift = 0;             // ln q - ln p of the document's token
  bool flip = false;            // another best token
  double reference_margin = 0;  // ln p(best of p) - ln p(best of q): what the reference loses by the candidate's choice
  double candidate_margin = 0;  // ln q(best of q) - ln q(best of p)
};
PositionDivergence compare_position(const CapturePosition& reference, const CapturePosition& candidate, int32_t token);

inline constexpr double kNearTie = 0.125;  // one step of bf16 at logits from 16 to 32: margins below it decide nothing
inline constexpr double kConfident = 1;    // margins from here on do

// Two captures of one class.
struct ClassDivergence {
  std::string workload;
  std::vector<double> document_kl;  // mean of each document, in the reference's order
  int64_t positions = 0;
  // Positions where the reference's best leads its second by kConfident, and so could flip confidently.
  int64_t confident_positions = 0;
  // Changes of the best token by what the reference loses: below kNearTie, below kConfident, and more; hard ones are
  // those of the last sort where the candidate is as sure of its own choice.
  int64_t near_ties = 0, moderate = 0, confident = 0, hard = 0;
  double mean_shift = 0, mean_abs_shift = 0, p50 = 0, p99 = 0, most = 0;  // of |shift|, but for the first

  int64_t flips() const { return near_ties + moderate + confident; }
  double kl() const { return mean(document_kl); }
};

// Compares documents of the same ids, classes and tokens, which both must have in any order; the first `skip` tokens of
// each are left out, and documents that are not longer with them. Errors name the document that differs, and captures
// with nothing to compare.
Result<std::vector<ClassDivergence>> compare_captures(const Capture& reference, const Capture& candidate,
                                                      uint32_t skip = 0);

// What a change may do (docs/measuring.md).
enum class DivergenceRule {
  kNumerics,   // another order of sums: no further away than the null
  kPrecision,  // other formats or weights: bounds in nats
};

struct DivergenceFinding {
  std::string check, sentence;  // "flips", "code: 14 of ..."
};

// A class against its null.
struct ClassVerdict {
  ClassDivergence candidate, null;
  Bootstrap excess;        // the candidate's divergence over the null's, paired by document
  double most_excess = 0;  // allowed for the upper 95 % bound of it
  int64_t most_flips = 0, most_confident = 0;
};

struct DivergenceVerdict {
  std::vector<ClassVerdict> classes;
  std::vector<DivergenceFinding> findings;  // none: passed
  double score = 0;  // mean divergence of the classes, weighted by their share of the traffic: it only ranks
};

inline constexpr std::array kDivergenceChecks = {"kl", "flips", "confident", "hard"};

// Judges each class of the candidate against the same class of the null; both come from compare_captures with one
// reference. `share` of a class: its weight, 0 if it has none; where all are 0, classes weigh the same.
DivergenceVerdict judge_divergence(const std::vector<ClassDivergence>& candidate,
                                   const std::vector<ClassDivergence>& null, DivergenceRule rule,
                                   double (*share)(const std::string& workload), uint64_t seed = 1);

// A table of classes and a line of the score, for people.
std::string divergence_text(const DivergenceVerdict& verdict);

}  // namespace onelane
