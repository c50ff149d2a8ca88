#include "lane/receipt_report.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "lane/plot.h"
#include "lane/receipt_fields.h"

namespace onelane {
namespace {

constexpr const char* kUnknown = "–";
constexpr size_t kMostDistributions = 6;  // stairs in one plot that can still be told apart

std::string figure(const std::optional<double>& value) { return value ? three_digits(*value) : kUnknown; }
std::string count(const std::optional<int64_t>& value) { return value ? format("{}", *value) : kUnknown; }
std::string setting(const std::optional<double>& value) { return value ? format("{:g}", *value) : kUnknown; }

std::string text(const std::optional<std::string>& value) { return value && !value->empty() ? *value : kUnknown; }

std::string pair(const std::optional<double>& a, const std::optional<double>& b) {
  return figure(a) + " / " + figure(b);
}

std::optional<double> measure(const Measures& measures, const char* name) {
  const auto found = measures.find(name);
  return found == measures.end() ? std::nullopt : std::optional(found->second);
}

bool has_flag(const ReceiptCell& cell, std::string_view flag) {
  return std::find(cell.flags.begin(), cell.flags.end(), flag) != cell.flags.end();
}

std::string short_sha(const std::optional<std::string>& sha) { return sha ? sha->substr(0, 12) : kUnknown; }

Table facts(const Receipt& r, const std::string& digest) {
  Table table{{"what", "value"}, {}, 2, ""};
  const auto row = [&](const char* what, const std::string& value) {
    if (!value.empty() && value != kUnknown) table.rows.push_back({what, value});
  };
  row("run", r.run_id);
  row("digest", digest);
  row("command", r.command);
  row("protocol", format("{} ({})", r.protocol.file, r.protocol.mode));
  row("protocol SHA-256", text(r.protocol.sha256));
  row("prompts SHA-256", text(r.protocol.prompts_sha256));
  if (r.arm.role != ArmRole::kNone) {
    row("arm", format("{} {}, block {}, place {}, boot {}", name_of(r.arm.role), r.arm.name, count(r.arm.block),
                      count(r.arm.order), text(r.arm.boot_id)));
  }
  row("build", format("{} {}", r.build.engine, r.build.id));
  row("commit", r.build.git ? format("{}{}", *r.build.git, r.build.dirty.value_or(false) ? ", dirty" : "") : kUnknown);
  row("binary SHA-256", text(r.build.binary_sha256));
  row("CUDA", text(r.build.cuda));
  row("model", r.model.name);
  row("weights, tokenizer, template", format("{}, {}, {}", short_sha(r.model.weights_sha256),
                                             short_sha(r.model.tokenizer_sha256), short_sha(r.model.template_sha256)));
  row("KV, draft", format("{}, {}", text(r.model.kv_dtype), text(r.model.draft)));
  const ReceiptSampling& s = r.resolved.sampling;
  const std::string eos = s.ignore_eos ? (*s.ignore_eos ? "ignored" : "respected") : kUnknown;
  row("sampling", format("temperature {}, top_p {}, seed {}, max_tokens {}, EOS {}", setting(s.temperature),
                         setting(s.top_p), count(s.seed), count(s.max_tokens), eos));
  for (const auto& [name, value] : r.resolved.settings) row(name.c_str(), value);
  row("GPU", text(r.machine.gpu));
  row("driver, VBIOS", format("{}, {}", text(r.machine.driver), text(r.machine.vbios)));
  row("power limit", r.machine.power_limit_w ? format("{:.0f} W", *r.machine.power_limit_w) : kUnknown);
  row("processor", r.machine.cpu ? format("{}, {} processors", *r.machine.cpu, count(r.machine.processors)) : kUnknown);
  row("kernel", text(r.machine.kernel));
  const ReceiptEnvironment& e = r.environment;
  row("clock p5 / p50", pair(e.clock_mhz_p5, e.clock_mhz_p50) + " MHz");
  row("temperature start / most", pair(e.temp_c_start, e.temp_c_max) + " °C");
  if (!e.throttle.empty()) row("throttled by", format("{}", fmt::join(e.throttle, ", ")));
  row("client lag p99", e.client_lag_ms_p99 ? figure(e.client_lag_ms_p99) + " ms" : kUnknown);
  for (const ReceiptArtifact& artifact : r.artifacts) {
    row("artifact", format("{}, {} bytes, SHA-256 {}", artifact.path, artifact.bytes, artifact.sha256));
  }
  return table;
}

Table cell_table(const Receipt& r) {
  Table table{{"cell", "C", "ctx", "tok/s", "step/s", "acc/step", "TTFT p50 / p95 ms", "ITL p50 / p99 ms", "max gap ms",
               "requests", "errors", "loops", "flags"},
              {},
              1,
              ""};
  for (const ReceiptCell& cell : r.cells) {
    const bool limited = has_flag(cell, "capacity_limited");
    table.rows.push_back({cell.id, count(cell.concurrency), count(cell.context_tokens),
                          limited ? "∅" : figure(cell.tok_s), figure(cell.steps_s), figure(cell.accepted_per_step),
                          pair(cell.ttft_ms.p50, cell.ttft_ms.p95), pair(cell.itl_ms.p50, cell.itl_ms.p99),
                          figure(cell.max_gap_ms), format("{}", cell.requests), format("{}", cell.errors),
                          count(cell.loops), format("{}", fmt::join(cell.flags, ", "))});
  }
  table.caption = format("Mode {}. Three significant digits; the receipt has them as measured. ∅: limited by capacity.",
                         r.protocol.mode);
  return table;
}

// Every other figure of the cells, one line each.
Table measures_table(const Receipt& r) {
  Table table{{"cell", "figure", "value"}, {}, 2, ""};
  for (const ReceiptCell& cell : r.cells) {
    for (const auto& [name, value] : cell.measures) table.rows.push_back({cell.id, name, three_digits(value)});
  }
  return table;
}

void distributions(const Receipt& r, Document& out) {
  for (const auto& [name, what] : {std::pair{"ttft_ms", "Time to first token"}, {"itl_ms", "Time between tokens"}}) {
    std::vector<PlotSeries> series;
    for (const ReceiptCell& cell : r.cells) {
      const auto found = cell.samples.find(name);
      if (found != cell.samples.end() && found->second.size() > 1 && series.size() < kMostDistributions) {
        series.push_back({cell.id, found->second});
      }
    }
    if (series.empty()) continue;
    out.push_back(Figure{
        distribution_plot(what, "ms", series),
        format("Share of values at or below x, for the first {} cells that have them. Dots: medians.", series.size())});
  }
}

void bench_section(const Receipt& r, Document& out) {
  if (r.cells.empty()) return;
  std::vector<Bar> bars;
  for (const ReceiptCell& cell : r.cells) {
    if (cell.tok_s) bars.push_back({cell.id, *cell.tok_s, has_flag(cell, "capacity_limited") ? size_t{7} : size_t{0}});
  }
  if (!bars.empty())
    out.push_back(Figure{bar_plot("Tokens per second", "tok/s", bars), "All streams of a cell together."});
  out.push_back(cell_table(r));
  distributions(r, out);
  Table measures = measures_table(r);
  if (!measures.rows.empty()) {
    out.push_back(Folded{format("{} more figures", measures.rows.size()), {std::move(measures)}});
  }
}

void gate_section(const Receipt& r, Document& out) {
  if (r.gates.empty()) return;
  Table table{{"gate", "verdict", "range", "null arm", "planted fault", "why"}, {}, 6, ""};
  for (const ReceiptGate& gate : r.gates) {
    const std::string planted =
        gate.planted_fault_caught ? (*gate.planted_fault_caught ? "caught" : "missed") : kUnknown;
    table.rows.push_back({gate.id, std::string(verdict_label(gate.verdict)), gate.range,
                          gate.null_arm ? std::string(verdict_label(*gate.null_arm)) : kUnknown, planted,
                          format("{}", fmt::join(gate.reasons, "; "))});
  }
  out.push_back(std::move(table));
  for (const ReceiptGate& gate : r.gates) {
    Folded folded{
        format("{}: {} figures, {} items", gate.id, gate.observed.size() + gate.bound.size(), gate.items.size()), {}};
    Table figures{{"figure", "observed", "bound"}, {}, 1, ""};
    for (const auto& [name, value] : gate.observed) {
      figures.rows.push_back({name, three_digits(value), figure(measure(gate.bound, name.c_str()))});
    }
    for (const auto& [name, value] : gate.bound) {
      if (!gate.observed.contains(name)) figures.rows.push_back({name, kUnknown, three_digits(value)});
    }
    Table items{{"item", "outcome", "detail"}, {}, 3, ""};
    for (const ReceiptItem& item : gate.items) items.rows.push_back({item.id, item.outcome, item.detail});
    if (!figures.rows.empty()) folded.tables.push_back(std::move(figures));
    if (!items.rows.empty()) folded.tables.push_back(std::move(items));
    if (!folded.tables.empty()) out.push_back(std::move(folded));
  }
}

std::string signed_percent(const std::optional<double>& value) {
  return value ? format("{:+.2f} %", *value) : kUnknown;
}

void comparison_section(const Receipt& r, Document& out) {
  Table table{{"cell", "effect", "95 % interval", "step rate", "accept length", "p, worse"}, {}, 1, ""};
  std::vector<ForestRow> forest;
  std::vector<double> marks;
  for (const ReceiptGate& gate : r.gates) {
    if (const auto bar = measure(gate.bound, kAbEffect)) marks.push_back(*bar);
    if (const auto level = measure(gate.bound, "level")) table.columns[2] = format("{:g} % interval", 100 * *level);
  }
  for (const ReceiptCell& cell : r.cells) {
    const auto effect = measure(cell.measures, kAbEffect), low = measure(cell.measures, kAbEffectLow),
               high = measure(cell.measures, kAbEffectHigh);
    if (cell.id == kAbBlocks || !effect) continue;
    const std::string interval = low && high ? format("[{:+.2f}, {:+.2f}]", *low, *high) : kUnknown;
    table.rows.push_back({cell.id, signed_percent(effect), interval, signed_percent(measure(cell.measures, kAbSteps)),
                          signed_percent(measure(cell.measures, kAbAccept)),
                          figure(measure(cell.measures, kAbWorseP))});
    forest.push_back({cell.id, {*effect, low.value_or(*effect), high.value_or(*effect)}});
  }
  if (!forest.empty()) {
    out.push_back(Figure{forest_plot("Candidate against control", "% better", forest, marks),
                         "Points and intervals over quads. Solid line: no difference; dashed: the bar."});
    table.caption = "Positive is better. Effect = step rate x accept length; p is adjusted over cells (Holm).";
    out.push_back(std::move(table));
  }
  for (const ReceiptCell& cell : r.cells) {
    if (cell.id != kAbBlocks) continue;
    const auto order = cell.samples.find("order"), arm = cell.samples.find("candidate"),
               y = cell.samples.find("metric");
    if (order == cell.samples.end() || arm == cell.samples.end() || y == cell.samples.end()) continue;
    const size_t count = std::min({order->second.size(), arm->second.size(), y->second.size()});
    std::vector<Point> points;
    Table blocks{{"block", "arm", cell.workload}, {}, 2, ""};
    for (size_t i = 0; i < count; ++i) {
      const bool candidate = arm->second[i] != 0;
      points.push_back({order->second[i], y->second[i], candidate ? size_t{1} : size_t{0}});
      blocks.rows.push_back({format("{}", order->second[i]), candidate ? "CAND" : "CTL", three_digits(y->second[i])});
    }
    out.push_back(Figure{point_plot("Blocks in time", "block", cell.workload, points, {"control", "candidate"}),
                         "One point a block, the centre of its cells: drift shows as a slope of both."});
    out.push_back(Folded{format("{} blocks", count), {std::move(blocks)}});
  }
}

void section(const NamedReceipt& named, Document& out) {
  const Receipt& r = named.receipt;
  out.push_back(Heading{2, r.title.empty() ? r.run_id : r.title});
  out.push_back(Paragraph{std::string(verdict_label(r.verdict))});
  std::vector<std::string> why = r.reasons;
  for (const std::string& rule : r.void_reasons) {
    if (std::find(why.begin(), why.end(), rule) == why.end()) why.push_back("void: " + rule);
  }
  if (!why.empty()) out.push_back(TextList{std::move(why)});
  if (r.kind == ReceiptKind::kAb) {
    comparison_section(r, out);
  } else {
    bench_section(r, out);
  }
  gate_section(r, out);
  out.push_back(Folded{"What ran, on what", {facts(r, named.digest)}});
}

}  // namespace

Document receipts_document(const std::string& title, std::span<const NamedReceipt> receipts) {
  Document out = {Heading{1, title}};
  Table summary{{"run", "kind", "what", "model", "build", "verdict"}, {}, 6, ""};
  for (const NamedReceipt& named : receipts) {
    const Receipt& r = named.receipt;
    summary.rows.push_back({r.run_id, std::string(name_of(r.kind)), r.title, r.model.name, r.build.id,
                            std::string(verdict_label(r.verdict))});
  }
  summary.caption = "A receipt is quoted by its run and digest.";
  out.push_back(std::move(summary));
  for (const NamedReceipt& named : receipts) section(named, out);
  return out;
}

}  // namespace onelane
