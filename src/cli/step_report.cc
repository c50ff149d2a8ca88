#include "cli/step_report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/stats.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

const StageEntry* find(const std::vector<StageEntry>& entries, const StageEntry& like) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const StageEntry& entry) {
    return entry.part == like.part && entry.stage == like.stage;
  });
  return found != entries.end() ? &*found : nullptr;
}

bool is_stage(const StageEntry& entry) { return entry.stage != kBetween && entry.stage != kMarkAlone; }

double stage_us(const std::vector<StageEntry>& entries) {
  double us = 0;
  for (const StageEntry& entry : entries) us += is_stage(entry) ? entry.us : 0;
  return us;
}

double us_of(const std::vector<StageEntry>& entries, std::string_view stage) {
  double us = 0;
  for (const StageEntry& entry : entries) us += entry.stage == stage ? entry.us : 0;
  return us;
}

// A mark's own time, the mean over all there are.
double mark_us(const StepResult& result) {
  int calls = 0;
  for (const StageEntry& entry : result.stages) calls += entry.stage == kMarkAlone ? entry.calls : 0;
  return calls > 0 ? us_of(result.stages, kMarkAlone) / calls : 0;
}

double gb_s(double bytes, double us) { return us > 0 ? bytes / us / 1e3 : 0; }

std::string share(double gb, const std::optional<double>& copy) {
  return copy && gb > 0 ? format("{:.2f}", gb / *copy) : "";
}

std::string line_of(std::string_view part, std::string_view stage, int calls, double us, double us_of_all,
                    const StageCost& cost, const std::optional<double>& copy) {
  const double rate = gb_s(cost.bytes, us);
  const std::string count = calls > 0 ? format("{}", calls) : "";
  return format("  {:<7} {:<26} {:>5} {:>11.1f} {:>6.1f} {:>11.2f} {:>9.1f} {:>6} {:>9.2f}\n", part, stage, count, us,
                us_of_all > 0 ? 100 * us / us_of_all : 0, cost.bytes / 1e6, rate, share(rate, copy),
                us > 0 ? cost.flops / us / 1e6 : 0);
}

std::string table(const StepResult& result, const StepReport& report) {
  const double whole_us = 1e3 * result.median_ms();
  const auto [least, most] = std::minmax_element(result.whole_ms.begin(), result.whole_ms.end());
  std::string text = result.prefill_chunk > 0
                         ? format("prefill of {} tokens in steps of {} rows: {:.3f} ms", result.rows,
                                  result.prefill_chunk, result.median_ms())
                         : format("{} rows of {} sequence(s) at context {}: {:.3f} ms a step", result.rows,
                                  result.sequences, result.context, result.median_ms());
  text += format(" ({:.3f} to {:.3f}), {} kernels", *least, *most, result.launches);
  const double rate = gb_s(result.bytes(), whole_us);
  text += format("\n  whole: {:.2f} MB, {:.1f} GB/s", result.bytes() / 1e6, rate);
  if (report.copy_gb_s) text += format(", {:.3f} of the copy bandwidth", rate / *report.copy_gb_s);
  text += format(", {:.2f} TFLOP/s", result.flops() / whole_us / 1e6);
  if (result.tokens_per_s) text += format(", {:.1f} tokens/s", *result.tokens_per_s);
  text += "\n  parts as they run:";
  for (const StageEntry& entry : result.parts) {
    if (is_stage(entry)) text += format(" {} {:.1f} us,", entry.part, entry.us);
  }
  text += format(" the rest {:.1f} us ({:.1f} %): copies, host, an idle device\n", whole_us - stage_us(result.parts),
                 100 * (1 - stage_us(result.parts) / whole_us));
  text += format("  {:<7} {:<26} {:>5} {:>11} {:>6} {:>11} {:>9} {:>6} {:>9}\n", "part", "stage", "calls", "us", "%",
                 "MB", "GB/s", "share", "TFLOP/s");
  const double sum_us = stage_us(result.stages);
  for (const StageEntry& entry : result.stages) {
    if (!is_stage(entry)) continue;
    text += line_of(entry.part, entry.stage, entry.calls, entry.us, sum_us, entry.cost, report.copy_gb_s);
  }
  StageCost all{result.bytes(), result.flops()};
  text += line_of("", "sum of stages", 0, sum_us, sum_us, all, report.copy_gb_s);
  text += format("  each call with {:.2f} us of its mark; sum of stages / sum of parts: {:.3f}\n", mark_us(result),
                 stage_us(result.parts) > 0 ? sum_us / stage_us(result.parts) : 0);
  return text;
}

Json entry_json(const StageEntry& entry, const std::optional<double>& copy) {
  Json json = {{"part", entry.part}, {"stage", entry.stage}, {"calls", entry.calls}, {"us", entry.us}};
  if (entry.cost.bytes > 0) {
    const double rate = gb_s(entry.cost.bytes, entry.us);
    json["bytes"] = entry.cost.bytes;
    json["flops"] = entry.cost.flops;
    json["gb_s"] = rate;
    if (copy) json["copy_share"] = rate / *copy;
  }
  return json;
}

Json result_json(const StepResult& result, const StepReport& report) {
  Json json;
  if (result.prefill_chunk > 0) {
    json["prefill_tokens"] = result.rows;
    json["chunk_rows"] = result.prefill_chunk;
  } else {
    json["rows"] = result.rows;
    json["context_tokens"] = result.context;
    json["sequences"] = result.sequences;
  }
  const double whole_us = 1e3 * result.median_ms();
  json["step_ms"] = result.median_ms();
  json["step_ms_repeats"] = result.whole_ms;
  json["launches"] = result.launches;
  json["bytes"] = result.bytes();
  json["flops"] = result.flops();
  json["gb_s"] = gb_s(result.bytes(), whole_us);
  json["copy_share"] = report.copy_gb_s ? Json(gb_s(result.bytes(), whole_us) / *report.copy_gb_s) : Json();
  json["tflop_s"] = result.flops() / whole_us / 1e6;
  json["tokens_per_s"] = result.tokens_per_s ? Json(*result.tokens_per_s) : Json();
  json["parts_us"] = stage_us(result.parts);
  json["stages_us"] = stage_us(result.stages);
  json["outside_parts_share"] = 1 - stage_us(result.parts) / whole_us;
  json["mark_us"] = mark_us(result);
  for (const StageEntry& entry : result.parts) json["parts"].push_back(entry_json(entry, report.copy_gb_s));
  for (const StageEntry& entry : result.stages) json["stages"].push_back(entry_json(entry, report.copy_gb_s));
  return json;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

double StepResult::median_ms() const { return percentile(whole_ms, 0.5); }

double StepResult::bytes() const {
  double sum = 0;
  for (const StageEntry& entry : stages) sum += entry.cost.bytes;
  return sum;
}

double StepResult::flops() const {
  double sum = 0;
  for (const StageEntry& entry : stages) sum += entry.cost.flops;
  return sum;
}

std::vector<StageEntry> median_entries(const std::vector<std::vector<StageEntry>>& steps) {
  if (steps.empty()) return {};
  std::vector<StageEntry> entries = steps.front();
  for (StageEntry& entry : entries) {
    std::vector<double> us;
    for (const auto& step : steps) {
      if (const StageEntry* same = find(step, entry)) us.push_back(same->us);
    }
    entry.us = percentile(std::move(us), 0.5);
  }
  return entries;
}

void add_costs(std::vector<StageEntry>& entries, const std::vector<std::vector<StageEntry>>& counted) {
  for (StageEntry& entry : entries) {
    StageCost sum;
    for (const auto& step : counted) {
      if (const StageEntry* same = find(step, entry)) sum += same->cost;
    }
    const auto steps = static_cast<double>(std::max<size_t>(1, counted.size()));
    entry.cost = {sum.bytes / steps, sum.flops / steps};
  }
}

std::string step_tables(const StepReport& report) {
  std::string text = format("{}, {} layers, on {}\n", report.model, report.layers, report.device);
  text += report.copy_gb_s ? format(
                                 "copy bandwidth: {:.1f} GB/s, read and written; a step mostly reads, its bytes are "
                                 "compared with the same number\n",
                                 *report.copy_gb_s)
                           : std::string("copy bandwidth: not measured\n");
  if (report.accept > 0) text += format("tokens/s at {} tokens a step and sequence\n", report.accept);
  for (const StepResult& result : report.results) text += format("\n{}", table(result, report));
  for (const std::string& cell : report.skipped) text += format("\nleft out: {}\n", cell);
  return text;
}

std::string step_json(const StepReport& report) {
  Json json = {{"schema", "onelane-step/1"},
               {"command", report.command},
               {"build", report.build},
               {"model", report.model},
               {"layers", report.layers},
               {"backend", report.backend},
               {"device", report.device},
               {"device_bytes", report.device_bytes},
               {"copy_gb_s", or_null(report.copy_gb_s)},
               {"clock_mhz_p5", or_null(report.clock_mhz_p5)},
               {"clock_mhz_p50", or_null(report.clock_mhz_p50)},
               {"throttle", report.throttle},
               {"accept", report.accept > 0 ? Json(report.accept) : Json()},
               {"results", Json::array()},
               {"skipped", report.skipped}};
  for (const StepResult& result : report.results) json["results"].push_back(result_json(result, report));
  return json.dump(2) + "\n";
}

}  // namespace onelane
