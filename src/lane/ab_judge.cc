// The bars of spec/operations.md 4.2, column "pass".
#include <algorithm>

#include "base/format.h"
#include "lane/ab_rules.h"

namespace onelane {
namespace {

void check_classes(const AbPlan& plan, const AbComparison& out, std::vector<std::string>& failures) {
  for (const AbEffect& one : out.classes) {
    if (std::count(plan.may_be_worse.begin(), plan.may_be_worse.end(), one.name) > 0) continue;
    if (percent(one.effect.point) < plan.bars.worst_class_percent || one.effect.high < 0) {
      failures.push_back(format("class {} is worse: {:+.2f} % [{:+.2f}, {:+.2f}]", one.name, percent(one.effect.point),
                                percent(one.effect.low), percent(one.effect.high)));
    }
  }
}

void check_tails(const AbPlan& plan, AbComparison& out, std::vector<std::string>& failures) {
  size_t unbound = 0;
  for (const AbTail& tail : out.tails) {
    if (tail.requests < static_cast<size_t>(plan.bars.tail_requests)) {
      ++unbound;
    } else if (percent(tail.ratio.high) > plan.bars.tail_percent) {
      failures.push_back(format("{} may be {:+.1f} % slower", tail.name, percent(tail.ratio.high)));
    }
  }
  if (unbound > 0) {
    out.caveats.push_back(format("{} of {} latency tails rest on fewer than {} values an arm and bind nothing", unbound,
                                 out.tails.size(), plan.bars.tail_requests));
  }
}

}  // namespace

void judge(const AbPlan& plan, AbComparison& out) {
  const Estimate& effect = out.all.effect;
  const double point = percent(effect.point), low = percent(effect.low);
  out.inconclusive = effect.low <= 0 && effect.high >= 0;
  std::vector<std::string> failures;
  switch (plan.question) {
    case AbQuestion::kBroken:
      out.inconclusive = false;
      out.caveats.push_back("one bracket gives no error estimate: only an effect of several percent shows");
      if (point < plan.bars.broken_percent) failures.push_back(format("{:+.2f} % against the controls", point));
      break;
    case AbQuestion::kPromotion:
      if (point < plan.bars.promotion_percent) {
        failures.push_back(format("{:+.2f} % is below the bar of {:+.2f} %", point, plan.bars.promotion_percent));
      } else if (low <= 0) {
        failures.push_back(format("{:+.2f} % has an interval that includes 0", point));
      }
      check_classes(plan, out, failures);
      check_tails(plan, out, failures);
      break;
    case AbQuestion::kNonInferiority:
      if (low <= plan.bars.noninferior_percent) {
        failures.push_back(
            format("the lower bound {:+.2f} % is not above {:+.2f} %", low, plan.bars.noninferior_percent));
      }
      check_tails(plan, out, failures);
      break;
    case AbQuestion::kMicro:
      if (out.inconclusive) failures.push_back(format("{:+.3f} % has an interval that includes 0", point));
      if (std::abs(point) <= 2 * *plan.null_percent) {
        failures.push_back(
            format("{:+.3f} % is within twice what the null run shows ({:.3f} %)", point, *plan.null_percent));
      }
      break;
    case AbQuestion::kNull:
      if (!out.inconclusive) failures.push_back(format("equal arms differ by {:+.2f} %", point));
      break;
  }
  out.verdict = failures.empty() ? Verdict::kPass : Verdict::kFail;
  out.reasons = std::move(failures);
}

}  // namespace onelane
