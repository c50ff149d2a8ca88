// Comparisons without servers: plans and blocks whose truth is known.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "lane/ab_compare.h"

namespace onelane {

inline AbPlan test_plan(AbQuestion question = AbQuestion::kPromotion, int64_t quads = 0) {
  AbPlan plan;
  plan.question = question;
  plan.control = {"before", "measure before {receipt}"};
  plan.candidate = {"after", question == AbQuestion::kNull ? "measure before {receipt}" : "measure after {receipt}"};
  plan.quads = quads;
  if (question == AbQuestion::kMicro) {
    plan.inert_cells = {"inert/C1/ctx0"};
    plan.null_percent = 0.1;
  }
  auto made = complete_plan(plan);
  ONELANE_CHECK(made.has_value(), "a test's own plan");
  return *std::move(made);
}

struct Truth {
  double effect = 0;       // ln of candidate over control
  double block_sd = 0;     // of ln, independent from block to block
  double drift = 0;        // ln a block, linear
  double step_effect = 0;  // the part of `effect` that is step rate; the rest is accept length
  std::vector<std::string> cells = {"prose/C1/ctx0"};
};

inline Receipt test_block(const AbPlan& plan, ArmRole role, double log_factor, const Truth& truth) {
  Receipt receipt;
  const bool other = role == ArmRole::kCandidate && plan.question != AbQuestion::kNull;
  receipt.verdict = Verdict::kPass;
  receipt.build.id = other ? "after" : "before";
  receipt.machine.power_limit_w = 700;
  const double change = role == ArmRole::kCandidate ? 1 : 0;
  for (const std::string& id : truth.cells) {
    ReceiptCell cell;
    cell.id = id;
    cell.workload = id.substr(0, id.find('/'));
    cell.window_s = cell.last_token_s = 30;
    cell.requests = 10;
    const double effect = cell.workload == "inert" ? 0 : change;
    cell.tok_s = 200 * std::exp(log_factor + effect * truth.effect);
    cell.accepted_per_step = 3 * std::exp(effect * (truth.effect - truth.step_effect)) - 1;
    cell.steps_s = *cell.tok_s / (1 + *cell.accepted_per_step);
    receipt.cells.push_back(cell);
  }
  return receipt;
}

inline std::vector<AbBlock> test_blocks(const AbPlan& plan, const Truth& truth, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 1);
  std::vector<AbBlock> blocks;
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const double factor = truth.block_sd * noise(random) + truth.drift * static_cast<double>(i);
    blocks.push_back({plan.order[i], test_block(plan, plan.order[i], factor, truth)});
    blocks.back().receipt.arm.boot_id = "boot " + std::to_string(i);
  }
  return blocks;
}

}  // namespace onelane
