#include "lane/ab_compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/format.h"
#include "lane/ab_rules.h"

namespace onelane {
namespace {

constexpr int kTailDraws = 1000;

using Figure = std::function<std::optional<double>(const ReceiptCell&)>;  // a value to take the logarithm of

const ReceiptCell& cell_of(const AbBlock& block, const std::string& id) {
  const auto found = std::find_if(block.receipt.cells.begin(), block.receipt.cells.end(),
                                  [&](const ReceiptCell& cell) { return cell.id == id; });
  ONELANE_CHECK(found != block.receipt.cells.end(), "a block without one of the cells was not voided");
  return *found;
}

Estimate over_groups(std::span<const double> values, double level) {
  if (values.size() >= 2) return mean_interval(values, level);
  return {values[0], values[0], values[0]};
}

// One value a group; nothing when a cell lacks the figure.
std::optional<std::vector<double>> group_effects(std::span<const std::span<const AbBlock>> groups,
                                                 const std::string& id, const Figure& figure) {
  std::vector<double> effects;
  for (const auto& group : groups) {
    std::vector<double> logs;
    std::vector<ArmRole> roles;
    for (const AbBlock& block : group) {
      const auto value = figure(cell_of(block, id));
      if (!value || !(*value > 0)) return std::nullopt;
      logs.push_back(std::log(*value));
      roles.push_back(block.role);
    }
    effects.push_back(group_effect(logs, roles));
  }
  return effects;
}

class Comparison {
 public:
  Comparison(const AbPlan& plan, std::span<const AbBlock> blocks)
      : plan_(plan), blocks_(blocks), level_(plan_level(plan)), sign_(less_is_better(plan.metric) ? -1 : 1) {}

  AbComparison run() {
    if (blocks_.empty()) return void_out("no block was measured");
    const auto control = std::find_if(blocks_.begin(), blocks_.end(), [](const AbBlock& block) {
      return block.role == ArmRole::kControl && !block.receipt.cells.empty();
    });
    if (control == blocks_.end()) {
      for (size_t i = 0; i < blocks_.size(); ++i) note_faults(i, blocks_[i].faults);
      return void_out("no control was measured");
    }
    for (const ReceiptCell& cell : control->receipt.cells) {
      if (metric(cell)) cells_.push_back({cell.id, cell.workload});
    }
    if (cells_.empty()) {
      out_.void_reasons.push_back(format("no cell of the first control has {}", plan_.metric));
      return void_out(out_.void_reasons.back());
    }
    const auto faults = campaign_faults(plan_, blocks_);
    choose_groups(control->receipt);
    out_.caveats = campaign_caveats(blocks_);
    if (!faults.empty()) {
      out_.void_reasons.insert(out_.void_reasons.begin(), faults.begin(), faults.end());
      return void_out("a void rule was broken: " + faults.front());
    }
    const auto needed = static_cast<size_t>(least_quads(plan_));
    if (groups_.size() < needed) {
      return void_out(format("{} of {} {} are left, {} are needed", groups_.size(), blocks_.size() / group_size(),
                             group_size() == 4 ? "quads" : "brackets", needed));
    }
    estimate();
    if (check_drift() && check_inert()) judge(plan_, out_);
    return std::move(out_);
  }

 private:
  struct CellName {
    std::string id, workload;
  };

  size_t group_size() const { return blocks_per_group(plan_); }

  AbComparison void_out(const std::string& why) {
    out_.verdict = Verdict::kVoid;
    out_.reasons = {why};
    return std::move(out_);
  }

  void note_faults(size_t block, const std::vector<std::string>& faults) {
    for (const std::string& fault : faults) out_.void_reasons.push_back(format("block {}: {}", block + 1, fault));
  }

  std::optional<double> metric(const ReceiptCell& cell) const { return cell_metric(cell, plan_.metric); }

  // ln of the metric of a sound block, at the centre of its cells.
  double block_level(const AbBlock& block) const {
    std::vector<double> logs;
    for (const CellName& cell : cells_) logs.push_back(std::log(*metric(cell_of(block, cell.id))));
    return hodges_lehmann(logs);
  }

  // Keeps the groups without a fault whose controls agree, and notes why the others fell.
  void choose_groups(const Receipt& reference) {
    for (size_t begin = 0; begin + group_size() <= blocks_.size(); begin += group_size()) {
      const auto group = blocks_.subspan(begin, group_size());
      bool sound = true;
      std::vector<double> controls;
      for (size_t i = 0; i < group.size(); ++i) {
        const auto faults = block_faults(plan_, group[i], reference);
        note_faults(begin + i, faults);
        if (!faults.empty()) {
          sound = false;
        } else if (group[i].role == ArmRole::kControl) {
          controls.push_back(block_level(group[i]));
        }
      }
      if (sound && std::abs(percent(controls[1] - controls[0])) > plan_.voids.controls_differ_percent) {
        out_.void_reasons.push_back(format("blocks {} to {}: the controls differ by {:+.2f} %, allowed are {}",
                                           begin + 1, begin + group.size(), percent(controls[1] - controls[0]),
                                           plan_.voids.controls_differ_percent));
        sound = false;
      }
      if (sound) groups_.push_back(group);
    }
    out_.quads_used = groups_.size();
  }

  AbEffect effect_of(const std::string& name, std::vector<double> quads) const {
    AbEffect effect{name, std::move(quads)};
    effect.effect = over_groups(effect.quads, level_);
    if (effect.quads.size() >= 2) effect.worse_p = mean_below_zero_p(effect.quads);
    return effect;
  }

  // Hodges-Lehmann over some cells, group by group.
  std::vector<double> centre(const std::vector<const std::vector<double>*>& cells) const {
    std::vector<double> out;
    for (size_t group = 0; group < groups_.size(); ++group) {
      std::vector<double> column;
      for (const auto* cell : cells) column.push_back((*cell)[group]);
      out.push_back(hodges_lehmann(column));
    }
    return out;
  }

  void estimate() {
    std::map<std::string, std::vector<const std::vector<double>*>> classes;
    std::vector<const std::vector<double>*> touched;
    out_.cells.reserve(cells_.size());  // `classes` points into it
    for (const CellName& cell : cells_) {
      auto quads = group_effects(groups_, cell.id, [this](const ReceiptCell& c) { return metric(c); });
      ONELANE_CHECK(quads.has_value(), "a block without the metric was not voided");
      for (double& value : *quads) value *= sign_;
      AbEffect effect = effect_of(cell.id, *std::move(quads));
      factors(effect);
      out_.cells.push_back(std::move(effect));
      if (is_inert(cell.id)) continue;
      classes[cell.workload].push_back(&out_.cells.back().quads);
      touched.push_back(&out_.cells.back().quads);
    }
    std::vector<double> p_values;
    for (const AbEffect& cell : out_.cells) p_values.push_back(cell.worse_p);
    const std::vector<double> adjusted = holm(p_values);
    for (size_t i = 0; i < adjusted.size(); ++i) out_.cells[i].worse_p = adjusted[i];
    for (const auto& [name, cells] : classes) out_.classes.push_back(effect_of(name, centre(cells)));
    if (touched.empty()) return;  // judged as void
    out_.all = effect_of("all", centre(touched));
    all_factors();
    tails();
  }

  bool is_inert(const std::string& id) const {
    return std::count(plan_.inert_cells.begin(), plan_.inert_cells.end(), id) > 0;
  }

  static std::optional<double> steps(const ReceiptCell& cell) { return cell.steps_s; }
  static std::optional<double> accept(const ReceiptCell& cell) {
    if (!cell.accepted_per_step) return std::nullopt;
    return 1 + *cell.accepted_per_step;
  }

  void factors(AbEffect& effect) {
    const auto step_quads = group_effects(groups_, effect.name, steps);
    const auto accept_quads = group_effects(groups_, effect.name, accept);
    if (step_quads) effect.step_rate = over_groups(*step_quads, level_);
    if (accept_quads) effect.accept = over_groups(*accept_quads, level_);
    if (step_quads && accept_quads && !is_inert(effect.name)) {
      step_cells_.push_back(*step_quads);
      accept_cells_.push_back(*accept_quads);
    }
  }

  void all_factors() {
    if (step_cells_.empty()) {
      out_.caveats.push_back("step rate and accept length are unknown: the effect is not decomposed");
      return;
    }
    const auto centre_of = [&](const std::vector<std::vector<double>>& cells) {
      std::vector<const std::vector<double>*> pointers;
      for (const auto& cell : cells) pointers.push_back(&cell);
      return over_groups(centre(pointers), level_);
    };
    out_.all.step_rate = centre_of(step_cells_);
    out_.all.accept = centre_of(accept_cells_);
    if (out_.all.step_rate->low > 0 && out_.all.accept->high < 0) {
      out_.caveats.push_back(
          "steps are faster while fewer drafts are accepted: treat the change as one of numerics (release class C)");
    }
  }

  void tails() {
    if (group_size() != 4) return;
    for (const CellName& cell : cells_) {
      for (const char* series : {"ttft_ms", "itl_ms"}) {
        std::vector<std::vector<double>> arms[2];
        bool complete = true;
        for (const auto& group : groups_) {
          std::vector<double> pooled[2];
          for (const AbBlock& block : group) {
            const ReceiptCell& measured = cell_of(block, cell.id);
            const auto found = measured.samples.find(series);
            if (found == measured.samples.end()) continue;
            auto& arm = pooled[block.role == ArmRole::kCandidate];
            arm.insert(arm.end(), found->second.begin(), found->second.end());
          }
          for (int arm = 0; arm < 2; ++arm) {
            complete =
                complete && !pooled[arm].empty() && *std::min_element(pooled[arm].begin(), pooled[arm].end()) > 0;
            arms[arm].push_back(std::move(pooled[arm]));
          }
        }
        if (!complete) continue;
        size_t counts[2] = {0, 0};
        for (int arm = 0; arm < 2; ++arm) {
          for (const auto& block : arms[arm]) counts[arm] += block.size();
        }
        for (const double q : {0.95, 0.99}) {
          const Bootstrap boot = tail_ratio_bootstrap(arms[1], arms[0], q, {.draws = kTailDraws});
          out_.tails.push_back({format("{} {} p{:.0f}", cell.id, series, q * 100), boot.interval(level_),
                                std::min(counts[0], counts[1])});
        }
      }
    }
  }

  bool check_drift() {
    std::vector<double> order, levels;
    for (const auto& group : groups_) {
      for (const AbBlock& block : group) {
        if (block.role != ArmRole::kControl) continue;
        order.push_back(static_cast<double>(&block - blocks_.data()));
        levels.push_back(block_level(block));
      }
    }
    if (order.size() < 3) return true;
    const double total = fit_line(order, levels).slope.point * static_cast<double>(blocks_.size() - 1);
    out_.drift_percent = percent(total);
    if (std::abs(*out_.drift_percent) <= plan_.voids.drift_percent) return true;
    void_by(format("the controls drifted by {:+.2f} % from first to last block, allowed are {}", *out_.drift_percent,
                   plan_.voids.drift_percent));
    return false;
  }

  bool check_inert() {
    for (const std::string& id : plan_.inert_cells) {
      const auto found =
          std::find_if(out_.cells.begin(), out_.cells.end(), [&](const AbEffect& cell) { return cell.name == id; });
      if (found == out_.cells.end()) return void_by(format("the inert cell {} was not measured", id)), false;
      if (found->effect.low > 0 || found->effect.high < 0) {
        return void_by(format("the inert cell {} shows {:+.2f} %: the instrument sees what is not there", id,
                              percent(found->effect.point))),
               false;
      }
    }
    if (out_.classes.empty()) return void_by("every cell is inert"), false;
    return true;
  }

  void void_by(const std::string& why) {
    out_.void_reasons.push_back(why);
    out_.verdict = Verdict::kVoid;
    out_.reasons = {why};
  }

  const AbPlan& plan_;
  std::span<const AbBlock> blocks_;
  const double level_, sign_;
  AbComparison out_;
  std::vector<std::span<const AbBlock>> groups_;
  std::vector<CellName> cells_;
  std::vector<std::vector<double>> step_cells_, accept_cells_;
};

}  // namespace

AbComparison compare_arms(const AbPlan& plan, std::span<const AbBlock> blocks) {
  return Comparison(plan, blocks).run();
}

double group_effect(std::span<const double> log_metric, std::span<const ArmRole> roles) {
  ONELANE_CHECK(log_metric.size() == roles.size(), "values without an arm");
  double sums[2] = {0, 0};
  double counts[2] = {0, 0};
  for (size_t i = 0; i < roles.size(); ++i) {
    const bool candidate = roles[i] == ArmRole::kCandidate;
    sums[candidate] += log_metric[i];
    ++counts[candidate];
  }
  ONELANE_CHECK(counts[0] > 0 && counts[1] > 0, "a group of one arm");
  return sums[1] / counts[1] - sums[0] / counts[0];
}

std::optional<double> cell_metric(const ReceiptCell& cell, std::string_view metric) {
  const std::map<std::string_view, const std::optional<double>*> fields = {
      {"tok_s", &cell.tok_s},
      {"steps_s", &cell.steps_s},
      {"accepted_per_step", &cell.accepted_per_step},
      {"max_gap_ms", &cell.max_gap_ms},
      {"fairness_min_mean", &cell.fairness_min_mean},
      {"ttft_ms.p50", &cell.ttft_ms.p50},
      {"ttft_ms.p95", &cell.ttft_ms.p95},
      {"ttft_ms.p99", &cell.ttft_ms.p99},
      {"itl_ms.p50", &cell.itl_ms.p50},
      {"itl_ms.p95", &cell.itl_ms.p95},
      {"itl_ms.p99", &cell.itl_ms.p99}};
  if (const auto field = fields.find(metric); field != fields.end()) return *field->second;
  const auto measure = cell.measures.find(std::string(metric));
  if (measure == cell.measures.end()) return std::nullopt;
  return measure->second;
}

bool less_is_better(std::string_view metric) {
  const std::string_view name = metric.substr(0, metric.find('.'));
  if (name == "tok_s" || name == "steps_s" || name.ends_with("_per_s") || name.ends_with("tok_s")) return false;
  return name.ends_with("_ms") || name.ends_with("_us") || name.ends_with("_s");
}

double percent(double log_ratio) { return 100 * std::expm1(log_ratio); }

}  // namespace onelane
