#include <sstream>

#include "base/format.h"
#include "lane/bench.h"
#include "lane/receipt_server.h"
#include "lane/stats.h"

namespace onelane {
namespace {

std::vector<double> milliseconds(const std::vector<double>& seconds) {
  std::vector<double> ms;
  for (const double s : seconds) ms.push_back(s * 1e3);
  return ms;
}

void put(Measures& measures, const char* name, const std::optional<double>& value, double factor = 1) {
  if (value) measures[name] = *value * factor;
}

std::string token_source(const std::string& source) {
  if (source == "openai_continuous_usage") return "usage";
  if (source == "openai_stream_chunks_fallback") return "chunks";
  return source == "prometheus_fallback" ? "server" : "";
}

ReceiptCell window_cell(const CellResult& cell) {
  const WindowNumbers& w = cell.window;
  ReceiptCell out{.id = cell.id, .workload = cell.workload};
  out.concurrency = cell.concurrency;
  out.context_tokens = cell.context_tokens;
  if (!cell.measured()) {
    out.flags = {"skipped"};
    return out;
  }
  out.window_s = w.window_s;
  out.token_source = token_source(w.token_source);
  if (w.tokens > 0) {
    out.last_token_s = w.last_token_s;
    out.tokens = w.tokens;
  }
  if (w.tokens_server) out.tokens_server = static_cast<int64_t>(*w.tokens_server);
  out.steps_s = w.steps_s;
  out.accepted_per_step = w.accepted_per_step;
  out.max_gap_ms = w.max_gap_s * 1e3;
  out.requests = w.completed + w.cancelled + w.failed;
  out.errors = w.failed;
  out.fairness_min_mean = w.fairness_min_mean;
  out.flags = w.flags;
  out.samples["ttft_ms"] = milliseconds(w.ttft_s);
  out.samples["itl_ms"] = milliseconds(w.itl_s);
  out.samples["latency_ms"] = milliseconds(w.latency_s);
  Measures& m = out.measures;
  put(m, "wall_tok_s", w.wall_tok_s);
  put(m, "server_tok_s", w.server_tok_s);
  put(m, "server_steps_s", w.server_steps_s);
  put(m, "accept_length", w.accept_length);
  put(m, "accept_rate", w.accept_rate);
  for (size_t i = 0; i < w.accept_by_position.size(); ++i) {
    m[format("accept_share_position_{}", i)] = w.accept_by_position[i];
  }
  m["tokens_client_same_interval"] = static_cast<double>(w.tokens_client);
  m["effective_concurrency"] = w.effective_concurrency;
  m["restarts"] = static_cast<double>(w.restarts);
  m["restart_share"] = w.restart_share;
  m["end_silence_ms"] = w.end_silence_s * 1e3;
  m["ready_s"] = cell.ready_s;
  m["client_processors"] = cell.client_cpu;
  put(m, "running_mean", w.running_mean);
  put(m, "waiting_max", w.waiting_max);
  put(m, "kv_usage_max", w.kv_usage_max);
  put(m, "fairness_min_max", w.fairness_min_max);
  put(m, "fairness_jain", w.jain);
  put(m, "chunk_gap_ms_p50", w.gap_p50_s, 1e3);
  put(m, "chunk_gap_ms_p99", w.gap_p99_s, 1e3);
  if (cell.scout) {
    put(m, "scout_ttft_ms", cell.scout->ttft_s, 1e3);
    if (cell.scout->prompt_tokens) m["scout_prompt_tokens"] = static_cast<double>(*cell.scout->prompt_tokens);
    if (cell.scout->cached_tokens) m["scout_cached_tokens"] = static_cast<double>(*cell.scout->cached_tokens);
  }
  if (cell.right + cell.wrong + cell.not_graded > 0) {
    m["answers_right"] = static_cast<double>(cell.right);
    m["answers_wrong"] = static_cast<double>(cell.wrong);
    m["answers_not_graded"] = static_cast<double>(cell.not_graded);
  }
  return out;
}

ReceiptCell prefill_cell(const PrefillResult& row) {
  ReceiptCell out{.id = format("prefill/ctx{}", row.context_tokens), .workload = "prefill"};
  out.concurrency = 1;
  out.context_tokens = row.context_tokens;
  out.requests = static_cast<int64_t>(row.samples.size());
  out.flags = row.flags;
  for (const ScoutResult& sample : row.samples) {
    out.errors += !sample.problem.empty();
    if (!sample.problem.empty() || !sample.ttft_s) continue;
    out.samples["ttft_ms"].push_back(*sample.ttft_s * 1e3);
    if (!sample.prompt_tokens) continue;
    out.samples["prompt_tokens"].push_back(static_cast<double>(*sample.prompt_tokens));
  }
  put(out.measures, "prefill_tok_s", row.tok_s);
  put(out.measures, "server_prefill_s", row.server_prefill_s);
  return out;
}

ReceiptCell burst_cell(const BurstResult& row) {
  ReceiptCell out{.id = format("burst/{}/C{}/ctx{}", row.workload, row.concurrency, row.context_tokens),
                  .workload = row.workload};
  out.concurrency = row.concurrency;
  out.context_tokens = row.context_tokens;
  out.requests = row.requests;
  out.errors = row.failed;
  out.flags = row.flags;
  if (row.tokens > 0) {
    out.window_s = out.last_token_s = row.wall_s;
    out.tokens = row.tokens;
    out.token_source = "usage";
  }
  out.samples["ttft_ms"] = milliseconds(row.ttft_s);
  out.samples["itl_ms"] = milliseconds(row.itl_s);
  out.samples["latency_ms"] = milliseconds(row.latency_s);
  return out;
}

ReceiptCell mixed_cell(const MixedResult& row) {
  ReceiptCell out{.id = format("mixed/ctx{}", row.context_tokens), .workload = "mixed"};
  out.concurrency = row.streams;
  out.context_tokens = row.context_tokens;
  out.requests = row.streams + 2;
  out.errors = static_cast<int64_t>(row.problems.size());
  out.max_gap_ms = row.longest_gap_s * 1e3;
  out.flags = row.flags;
  Measures& m = out.measures;
  put(m, "ttft_alone_s", row.ttft_alone_s);
  put(m, "ttft_under_load_s", row.ttft_under_load_s);
  put(m, "slowdown", row.slowdown);
  put(m, "prefill_tok_s_alone", row.prefill_tok_s_alone);
  put(m, "prefill_tok_s_under_load", row.prefill_tok_s_under_load);
  m["background_before_tok_s"] = row.before_tok_s;
  m["background_during_tok_s"] = row.during_tok_s;
  m["background_after_tok_s"] = row.after_tok_s;
  m["streams_decoding_at_arrival"] = row.decoding_at_arrival;
  out.samples["timeline_tok_s"] = row.timeline_tok_s;
  return out;
}

// The verdict and its reasons, from the cells that were written.
void judge(const BenchReport& report, Receipt& receipt) {
  bool failed = false, any = false;
  for (const ReceiptCell& cell : receipt.cells) {
    for (const std::string& flag : cell.flags) {
      if (flag == "skipped") continue;
      const std::string sentence = format("{}: {}: {}", cell.id, flag, window_flag_meaning(flag));
      if (flag_voids(flag)) {
        receipt.void_reasons.push_back(sentence);
      } else {
        failed = true;
        receipt.reasons.push_back(sentence);
      }
    }
    any = any || cell.requests > 0;
  }
  for (const CellResult& cell : report.cells) {
    if (!cell.measured()) receipt.reasons.push_back(format("{}: not measured: {}", cell.id, cell.skipped));
  }
  for (const std::string& skipped : report.skipped) receipt.reasons.push_back("not measured: " + skipped);
  if (!report.interrupted.empty()) receipt.reasons.push_back("ended early: " + report.interrupted);
  if (!receipt.void_reasons.empty()) {
    receipt.verdict = Verdict::kVoid;
    receipt.reasons.insert(receipt.reasons.end(), receipt.void_reasons.begin(), receipt.void_reasons.end());
  } else if (failed) {
    receipt.verdict = Verdict::kFail;
  } else if (!any || !report.interrupted.empty()) {
    receipt.verdict = Verdict::kNotRun;
    if (!any) receipt.reasons.push_back("no cell was measured");
  } else {
    receipt.verdict = Verdict::kPass;
  }
}

}  // namespace

Receipt bench_receipt(const BenchReport& report, const std::string& command) {
  const BenchOptions& o = report.options;
  const bool lib = o.mode == BenchMode::kLib;
  Receipt receipt;
  receipt.run_id = new_run_id();
  receipt.kind = ReceiptKind::kBench;
  receipt.title =
      format("{} bench of {} ({})", lib ? "lib" : "strict", report.server.model, report.server.engine_name());
  receipt.command = command;
  receipt.protocol = {.file = lib ? "llm-inference-bench" : builtin_workloads().protocol,
                      .mode = lib ? "lib" : "strict"};
  receipt.protocol.prompts_sha256 = report.prompts_sha256;
  name_server(report.server, receipt);
  receipt.resolved.sampling = {.temperature = o.temperature, .top_p = o.top_p, .seed = o.seed};
  receipt.resolved.sampling.max_tokens = o.max_tokens;
  receipt.resolved.sampling.ignore_eos = !o.respect_eos;
  receipt.resolved.settings["bench.window_s"] = format("{:g}", o.timing.window_s);
  receipt.resolved.settings["bench.characters_per_token"] = format("{:.3f}", report.characters_per_token);
  receipt.resolved.settings["bench.silence_s"] = format("{:g}", o.timing.silence_s);
  if (lib) receipt.resolved.settings["bench.texts"] = report.original_texts ? "original" : "own filler";
  receipt.machine = report.machine;
  receipt.environment = report.environment;
  for (const CellResult& cell : report.cells) {
    if (cell.window.lag_p99_s) {
      const double ms = *cell.window.lag_p99_s * 1e3;
      auto& worst = receipt.environment.client_lag_ms_p99;
      worst = std::max(worst.value_or(ms), ms);
    }
    receipt.cells.push_back(window_cell(cell));
  }
  for (const PrefillResult& row : report.prefill) receipt.cells.push_back(prefill_cell(row));
  for (const BurstResult& row : report.bursts) receipt.cells.push_back(burst_cell(row));
  for (const MixedResult& row : report.mixed) receipt.cells.push_back(mixed_cell(row));
  judge(report, receipt);
  return receipt;
}

}  // namespace onelane
