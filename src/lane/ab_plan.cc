#include "lane/ab_plan.h"

#include <algorithm>
#include <random>

#include "base/format.h"
#include "lane/ab_fields.h"

namespace onelane {
namespace {

constexpr int64_t kMostQuads = 1000;

Error wrong(const char* field, const std::string& why) {
  return {ErrorCode::kInvalidArgument, format("{}: {}", field, why)};
}

std::vector<ArmRole> draw_order(AbQuestion question, int64_t quads, int64_t seed) {
  constexpr ArmRole kCtl = ArmRole::kControl, kCand = ArmRole::kCandidate;
  if (question == AbQuestion::kBroken) return {kCtl, kCand, kCtl};
  // As many of one order as of the other (but for an odd one), in random places.
  std::vector<bool> mirrored(static_cast<size_t>(quads));
  for (size_t i = 0; i < mirrored.size(); ++i) mirrored[i] = i % 2 == 1;
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (size_t i = mirrored.size(); i > 1; --i) {
    const size_t j = random() % i;
    const bool swapped = mirrored[i - 1];
    mirrored[i - 1] = mirrored[j];
    mirrored[j] = swapped;
  }
  if (random() % 2 == 1) mirrored.flip();
  std::vector<ArmRole> order;
  for (const bool mirror : mirrored) {
    const ArmRole outer = mirror ? kCand : kCtl, inner = mirror ? kCtl : kCand;
    order.insert(order.end(), {outer, inner, inner, outer});
  }
  return order;
}

}  // namespace

std::string_view question_name(AbQuestion question) { return name_of(question); }

int64_t least_quads(const AbPlan& plan) {
  constexpr double kQuietPercent = 0.4;
  switch (plan.question) {
    case AbQuestion::kBroken:
      return 1;
    case AbQuestion::kMicro:
      return 6;
    default:
      return plan.null_quad_sd_percent && *plan.null_quad_sd_percent <= kQuietPercent ? 3 : 4;
  }
}

double plan_level(const AbPlan& plan) { return plan.extension_quads > 0 ? 0.975 : 0.95; }

size_t blocks_per_group(const AbPlan& plan) { return plan.question == AbQuestion::kBroken ? 3 : 4; }

Result<AbPlan> complete_plan(AbPlan plan) {
  const int64_t least = least_quads(plan);
  if (plan.quads == 0) plan.quads = least;
  if (plan.quads < least || plan.quads > kMostQuads) {
    return wrong("quads", format("must be {} to {} for the question '{}'", least, kMostQuads, name_of(plan.question)));
  }
  if (plan.question == AbQuestion::kBroken && plan.quads != 1) return wrong("quads", "a bracket is one");
  if (plan.extension_quads != 0) {
    if (plan.question != AbQuestion::kPromotion) return wrong("extension_quads", "only a promotion has an extension");
    if (plan.extension_quads <= plan.quads || plan.extension_quads > kMostQuads) {
      return wrong("extension_quads", format("is how many there are in all: more than {}", plan.quads));
    }
  }
  if (plan.control.command.empty()) return wrong("control.command", "is missing: a command or an http:// URL");
  if (plan.candidate.command.empty()) return wrong("candidate.command", "is missing: a command or an http:// URL");
  for (const auto& [field, command] :
       {std::pair{"control.command", &plan.control.command}, {"candidate.command", &plan.candidate.command}}) {
    if (!command->starts_with("http://") && command->find("{receipt}") == std::string::npos) {
      return wrong(field, "must say where its receipt goes: {receipt}");
    }
  }
  if (plan.metric.empty()) return wrong("metric", "is missing");
  if (plan.block_timeout_s < 1) return wrong("block_timeout_s", "must be at least 1");
  for (const std::string& part : plan.may_differ) {
    if (part != "weights" && part != "tokenizer" && part != "template" && part != "sampling") {
      return wrong("may_differ", format("'{}' is none of weights, tokenizer, template, sampling", part));
    }
  }
  if (plan.question == AbQuestion::kMicro) {
    if (plan.inert_cells.empty()) return wrong("inert_cells", "a micro comparison needs a leg the change cannot touch");
    if (!plan.null_percent) return wrong("null_percent", "a micro comparison needs a null run");
  }
  if (plan.control.name.empty()) plan.control.name = "control";
  if (plan.candidate.name.empty()) plan.candidate.name = "candidate";
  if (plan.title.empty()) plan.title = format("{} against {}", plan.candidate.name, plan.control.name);
  const int64_t blocks = std::max(plan.quads, plan.extension_quads);
  const std::vector<ArmRole> order = draw_order(plan.question, blocks, plan.seed);
  if (!plan.order.empty() && plan.order != order) {
    return wrong("order", format("is not what seed {} gives: make the plan anew instead of editing it", plan.seed));
  }
  plan.order = order;
  return plan;
}

std::string plan_json(const AbPlan& plan) { return schema_json(kAbPlanSchema, plan); }

Result<AbPlan> parse_plan(std::string_view json) {
  ONELANE_ASSIGN(AbPlan plan, parse_schema_json<AbPlan>(json, kAbPlanSchema));
  if (plan.order.empty()) return wrong("order", "is missing: plans are made by `onelane ab plan`");
  return complete_plan(std::move(plan));
}

}  // namespace onelane
