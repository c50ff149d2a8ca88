// What a bench says at its end: tables, JSON, a receipt.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "lane/bench.h"
#include "lane/stats.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json known(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::optional<double> quantile(const std::vector<double>& values, double q) {
  if (values.empty()) return std::nullopt;
  return percentile(values, q);
}

std::optional<double> times(const std::optional<double>& value, double factor) {
  if (!value) return std::nullopt;
  return *value * factor;
}

std::vector<double> ttft_of(const PrefillResult& row) {
  std::vector<double> ttft;
  for (const ScoutResult& sample : row.samples) {
    if (sample.problem.empty() && sample.ttft_s) ttft.push_back(*sample.ttft_s);
  }
  return ttft;
}

// Median of what the samples' prompts had.
std::optional<double> prompt_tokens_of(const PrefillResult& row) {
  std::vector<double> tokens;
  for (const ScoutResult& sample : row.samples) {
    if (sample.prompt_tokens) tokens.push_back(static_cast<double>(*sample.prompt_tokens));
  }
  return quantile(tokens, 0.5);
}

// Three significant digits.
std::string number(const std::optional<double>& value) {
  if (!value) return "-";
  const double size = std::abs(*value);
  return size >= 100 ? format("{:.0f}", *value) : size >= 10 ? format("{:.1f}", *value) : format("{:.2f}", *value);
}

std::string kilo(int64_t tokens) {
  return tokens > 0 && tokens % 1024 == 0 ? format("{}k", tokens / 1024) : std::to_string(tokens);
}

bool limited(const CellResult& cell) {
  return std::any_of(cell.window.flags.begin(), cell.window.flags.end(), flag_limits_capacity);
}

const char* mode_name(const BenchReport& report) { return report.options.mode == BenchMode::kLib ? "lib" : "strict"; }

std::string texts_name(const BenchReport& report) {
  if (report.options.mode == BenchMode::kStrict) return builtin_workloads().protocol;
  return report.original_texts ? "llm-inference-bench 0.4.18" : "own filler";
}

// The classic matrix: one row a context, one column a concurrency.
void add_matrix(std::string& out, const BenchReport& report, const std::string& workload) {
  std::vector<int> columns;
  std::vector<int64_t> rows;
  for (const CellResult& cell : report.cells) {
    if (cell.workload != workload) continue;
    if (std::find(columns.begin(), columns.end(), cell.concurrency) == columns.end())
      columns.push_back(cell.concurrency);
    if (std::find(rows.begin(), rows.end(), cell.context_tokens) == rows.end()) rows.push_back(cell.context_tokens);
  }
  std::sort(columns.begin(), columns.end());
  std::sort(rows.begin(), rows.end());
  out += format("\n{}: tok/s of all streams\n{:>8}", workload, "context");
  for (const int c : columns) out += format(" {:>9}", format("C{}", c));
  out += '\n';
  for (const int64_t context : rows) {
    out += format("{:>8}", kilo(context));
    for (const int c : columns) {
      std::string text;
      for (const CellResult& cell : report.cells) {
        if (cell.workload != workload || cell.concurrency != c || cell.context_tokens != context) continue;
        text = !cell.measured() ? "skip" : limited(cell) ? "\u2205" : number(cell.window.tok_s);
        if (cell.measured() && !cell.window.flags.empty() && !limited(cell)) text += "\u2020";
      }
      // Width by characters, not bytes.
      size_t width = 0;
      for (const char byte : text) width += (byte & 0xc0) != 0x80;
      out += format(" {}{}", std::string(9 - std::min<size_t>(9, width), ' '), text);
    }
    out += '\n';
  }
}

void add_details(std::string& out, const BenchReport& report) {
  out += format("\n{:<26} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6}\n", "cell", "tok/s", "tok/s C",
                "step/s", "acc/step", "TTFT p50", "TTFT p95", "ITL p50", "ITL p99", "gap max", "eff C");
  for (const CellResult& cell : report.cells) {
    const WindowNumbers& w = cell.window;
    if (!cell.measured()) {
      out += format("{:<26} skipped: {}\n", cell.id, cell.skipped);
      continue;
    }
    out +=
        format("{:<26} {:>7} {:>7} {:>7} {:>8} {:>6} ms {:>6} ms {:>6} ms {:>6} ms {:>5} ms {:>6}\n", cell.id,
               number(w.tok_s), number(times(w.tok_s, 1.0 / cell.concurrency)), number(w.steps_s),
               number(w.accepted_per_step), number(times(quantile(w.ttft_s, 0.5), 1e3)),
               number(times(quantile(w.ttft_s, 0.95), 1e3)), number(times(quantile(w.itl_s, 0.5), 1e3)),
               number(times(quantile(w.itl_s, 0.99), 1e3)), number(w.max_gap_s * 1e3), number(w.effective_concurrency));
    if (cell.right + cell.wrong + cell.not_graded > 0) {
      out += format("{:<26} right {}, wrong {}, not graded {}\n", "", cell.right, cell.wrong, cell.not_graded);
    }
    for (const std::string& flag : w.flags) out += format("    {}: {}\n", flag, window_flag_meaning(flag));
    for (const std::string& problem : w.problems) out += format("    - {}\n", problem);
  }
}

void add_problems(std::string& out, const std::vector<std::string>& flags, const std::vector<std::string>& problems) {
  for (const std::string& flag : flags) out += format("    {}\n", flag);
  for (const std::string& problem : problems) out += format("    - {}\n", problem);
}

Json lib_result(const BenchReport& report, const CellResult& cell) {
  const WindowNumbers& w = cell.window;
  Json json = {{"workload", cell.workload},
               {"concurrency", cell.concurrency},
               {"context_tokens", cell.context_tokens},
               {"max_tokens", report.options.max_tokens}};
  if (!cell.measured()) {
    json["aggregate_tps"] = -1;
    json["skipped"] = cell.skipped;
    return json;
  }
  json["aggregate_tps"] = known(w.tok_s);
  json["aggregate_tps_source"] = w.token_source;
  json["aggregate_tps_wall"] = known(w.wall_tok_s);
  json["per_request_avg_tps"] = known(times(w.tok_s, 1.0 / cell.concurrency));
  json["measurement_seconds"] = w.last_token_s;
  json["measurement_wall_seconds"] = w.window_s;
  json["total_tokens"] = w.tokens;
  json["server_gen_throughput"] = known(w.server_tok_s);
  json["server_tokens"] = known(w.tokens_server);
  json["client_tokens_same_interval"] = w.tokens_client;
  json["warmup_seconds"] = cell.ready_s;
  json["warmup_timed_out"] = std::count(w.flags.begin(), w.flags.end(), "warmup_timed_out") > 0;
  json["underfilled"] = std::count(w.flags.begin(), w.flags.end(), "underfilled") > 0;
  json["capacity_limited"] = limited(cell);
  json["avg_running"] = known(w.running_mean);
  json["max_running"] = known(w.running_max);
  json["max_waiting"] = known(w.waiting_max);
  json["max_kv_usage"] = known(w.kv_usage_max);
  json["effective_concurrency"] = w.effective_concurrency;
  json["requests_completed"] = w.completed;
  json["requests_cancelled"] = w.cancelled;
  json["requests_failed"] = w.failed;
  json["restarts_in_window"] = w.restarts;
  json["restart_share"] = w.restart_share;
  json["spec_accept_rate"] = known(w.accept_rate);
  json["spec_accept_length"] = known(w.accept_length);
  json["spec_accept_by_position"] = w.accept_by_position;
  json["accepted_per_step"] = known(w.accepted_per_step);
  json["stream_steps_per_s"] = known(w.steps_s);
  json["server_steps_per_s"] = known(w.server_steps_s);
  const auto summary = [](const std::vector<double>& values) {
    return Json{{"p50", known(quantile(values, 0.5))},
                {"p95", known(quantile(values, 0.95))},
                {"p99", known(quantile(values, 0.99))},
                {"samples", values}};
  };
  json["ttft_s"] = summary(w.ttft_s);
  json["itl_s"] = summary(w.itl_s);
  json["latency_s"] = summary(w.latency_s);
  json["chunk_gap_s"] = {{"p50", known(w.gap_p50_s)}, {"p99", known(w.gap_p99_s)}, {"max", w.max_gap_s}};
  json["fairness"] = {
      {"min_mean", known(w.fairness_min_mean)}, {"min_max", known(w.fairness_min_max)}, {"jain", known(w.jain)}};
  json["client"] = {{"lag_p99_s", known(w.lag_p99_s)}, {"processors", cell.client_cpu}};
  if (cell.right + cell.wrong + cell.not_graded > 0) {
    json["answers"] = {{"right", cell.right}, {"wrong", cell.wrong}, {"not_graded", cell.not_graded}};
  }
  if (cell.scout) {
    json["scout"] = {{"ttft_s", known(cell.scout->ttft_s)},
                     {"prompt_tokens", known(cell.scout->prompt_tokens)},
                     {"cached_tokens", known(cell.scout->cached_tokens)}};
  }
  json["flags"] = w.flags;
  json["errors"] = w.problems;
  return json;
}

}  // namespace

std::string bench_tables(const BenchReport& report) {
  const BenchOptions& o = report.options;
  std::string out = format("{} {} at {}, mode {}, texts {}\n", report.server.engine_name(), report.server.version,
                           report.server.model, mode_name(report), texts_name(report));
  const std::string sampling = o.temperature ? format("temperature {}", *o.temperature) : "the server's own sampling";
  out += format("window {:g} s, at most {} tokens an answer, EOS {}, {}\n", o.timing.window_s, o.max_tokens,
                o.respect_eos ? "respected" : "ignored", sampling);
  if (!report.prefill.empty()) {
    out += format("\nprefill, cold\n{:>8} {:>8} {:>10} {:>10} {:>8}\n", "context", "tokens", "TTFT p50", "tok/s",
                  "samples");
    for (const PrefillResult& row : report.prefill) {
      out += format("{:>8} {:>8} {:>7} ms {:>10} {:>8}\n", kilo(row.context_tokens), number(prompt_tokens_of(row)),
                    number(times(row.ttft_s, 1e3)), number(row.tok_s), row.samples.size());
      add_problems(out, row.flags, row.problems);
    }
  }
  std::vector<std::string> workloads;
  for (const CellResult& cell : report.cells) {
    if (std::find(workloads.begin(), workloads.end(), cell.workload) == workloads.end())
      workloads.push_back(cell.workload);
  }
  for (const std::string& workload : workloads) add_matrix(out, report, workload);
  if (!report.cells.empty()) add_details(out, report);
  if (!report.bursts.empty()) {
    out += format("\nburst, finite: not comparable with a window\n{:<26} {:>8} {:>8} {:>9} {:>9}\n", "cell", "requests",
                  "tok/s", "wall s", "TTFT p50");
    for (const BurstResult& row : report.bursts) {
      out += format("{:<26} {:>8} {:>8} {:>9} {:>6} ms\n",
                    format("{}/C{}/ctx{}", row.workload, row.concurrency, row.context_tokens), row.requests,
                    number(row.tok_s), number(row.wall_s), number(times(quantile(row.ttft_s, 0.5), 1e3)));
      add_problems(out, row.flags, row.problems);
    }
  }
  if (!report.mixed.empty()) {
    out +=
        format("\nmixed: {} decode streams, one long prompt arrives\n{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
               o.mixed_streams, "context", "alone s", "loaded s", "slowdown", "before", "during", "after", "gap max");
    for (const MixedResult& row : report.mixed) {
      out += format("{:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} ms\n", kilo(row.context_tokens),
                    number(row.ttft_alone_s), number(row.ttft_under_load_s), number(row.slowdown),
                    number(row.before_tok_s), number(row.during_tok_s), number(row.after_tok_s),
                    number(row.longest_gap_s * 1e3));
      add_problems(out, row.flags, row.problems);
    }
  }
  for (const std::string& skipped : report.skipped) out += format("\nskipped: {}\n", skipped);
  if (!report.interrupted.empty()) out += format("\nended early: {}\n", report.interrupted);
  return out;
}

std::string bench_json(const BenchReport& report) {
  const BenchOptions& o = report.options;
  Json json;
  json["metadata"] = {{"tool", "onelane bench serve"},
                      {"mode", mode_name(report)},
                      {"engine", report.server.engine_name()},
                      {"engine_version", report.server.version},
                      {"model", report.server.model},
                      {"timestamp", report.started_utc},
                      {"decode_mode", "duration"},
                      {"primary_decode_layer", "sustained_decode"},
                      {"duration", o.timing.window_s},
                      {"max_tokens", o.max_tokens},
                      {"ignore_eos", !o.respect_eos},
                      {"temperature", known(o.temperature)},
                      {"top_p", known(o.top_p)},
                      {"seed", known(o.seed)},
                      {"texts", texts_name(report)},
                      {"prompts_sha256", report.prompts_sha256},
                      {"skipped", report.skipped},
                      {"interrupted", report.interrupted.empty() ? Json() : Json(report.interrupted)}};
  json["startup_diagnostics"] = {{"max_model_len", known(report.server.max_model_len_tokens)},
                                 {"kv_budget_tokens", known(o.kv_tokens ? o.kv_tokens : report.server.kv_tokens)},
                                 {"max_running_requests", known(report.server.max_running)},
                                 {"metrics", report.server.has_metrics},
                                 {"chars_per_token", report.characters_per_token}};
  json["prefill"] = Json::object();
  for (const PrefillResult& row : report.prefill) {
    json["prefill"][std::to_string(row.context_tokens)] = {{"ttft_seconds", known(row.ttft_s)},
                                                           {"tok_per_sec", known(row.tok_s)},
                                                           {"prompt_tokens", known(prompt_tokens_of(row))},
                                                           {"samples", ttft_of(row)},
                                                           {"method", "usage.prompt_tokens / time to first token"},
                                                           {"server_validation", known(row.server_prefill_s)},
                                                           {"flags", row.flags},
                                                           {"errors", row.problems}};
  }
  json["results"] = Json::array();
  json["summary_table"] = Json::object();
  for (const CellResult& cell : report.cells) {
    json["results"].push_back(lib_result(report, cell));
    Json& table = o.mode == BenchMode::kLib ? json["summary_table"] : json["summary_table"][cell.workload];
    table[std::to_string(cell.context_tokens)][std::to_string(cell.concurrency)] =
        cell.measured() ? known(cell.window.tok_s) : Json(-1);
  }
  json["burst_results"] = Json::array();
  json["burst_summary_table"] = Json::object();
  for (const BurstResult& row : report.bursts) {
    json["burst_results"].push_back({{"workload", row.workload},
                                     {"concurrency", row.concurrency},
                                     {"context_tokens", row.context_tokens},
                                     {"requests", row.requests},
                                     {"failed", row.failed},
                                     {"total_tokens", row.tokens},
                                     {"wall_seconds", row.wall_s},
                                     {"aggregate_tps", known(row.tok_s)},
                                     {"ttft_s", row.ttft_s},
                                     {"itl_s", row.itl_s},
                                     {"latency_s", row.latency_s},
                                     {"flags", row.flags},
                                     {"errors", row.problems}});
    Json& table = o.mode == BenchMode::kLib ? json["burst_summary_table"] : json["burst_summary_table"][row.workload];
    table[std::to_string(row.context_tokens)][std::to_string(row.concurrency)] = known(row.tok_s);
  }
  json["mixed_prefill"] = Json::object();
  for (const MixedResult& row : report.mixed) {
    json["mixed_prefill"][std::to_string(row.context_tokens)] = {
        {"ttft_alone_s", known(row.ttft_alone_s)},
        {"ttft_under_load_s", known(row.ttft_under_load_s)},
        {"slowdown", known(row.slowdown)},
        {"prefill_tok_s_alone", known(row.prefill_tok_s_alone)},
        {"prefill_tok_s_under_load", known(row.prefill_tok_s_under_load)},
        {"prompt_tokens", known(row.prompt_tokens)},
        {"background_tok_s", {{"before", row.before_tok_s}, {"during", row.during_tok_s}, {"after", row.after_tok_s}}},
        {"background_longest_gap_s", row.longest_gap_s},
        {"timeline_tok_s", row.timeline_tok_s},
        {"streams", row.streams},
        {"streams_decoding_at_arrival", row.decoding_at_arrival},
        {"flags", row.flags},
        {"errors", row.problems}};
  }
  json["methodology"] = {
      {"aggregate_tps", "sum of usage increases in the window / (time of the last increase - window start)"},
      {"aggregate_tps_wall", "the same sum / wall time of the window"},
      {"itl_s", "(last text - first text) / (completion tokens - 1), of a request"},
      {"ttft_s", "first text that is not empty, reasoning included, from before connecting"},
      {"percentiles", "linear between order statistics"}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace onelane
