// The fields of lane-receipt/1, listed once (struct_json.h); the order here is the order in the file.
#pragma once

#include "lane/receipt.h"
#include "lane/struct_json.h"

namespace onelane {

inline const EnumNames<Verdict>& names_of(Verdict) {
  static const EnumNames<Verdict> names = {
      {Verdict::kPass, "PASS"}, {Verdict::kFail, "FAIL"}, {Verdict::kNotRun, "NOT_RUN"}, {Verdict::kVoid, "VOID"}};
  return names;
}

inline const EnumNames<ReceiptKind>& names_of(ReceiptKind) {
  static const EnumNames<ReceiptKind> names = {{ReceiptKind::kBench, "bench"}, {ReceiptKind::kGate, "gate"},
                                               {ReceiptKind::kSoak, "soak"},   {ReceiptKind::kAb, "ab"},
                                               {ReceiptKind::kDrill, "drill"}, {ReceiptKind::kPromotion, "promotion"}};
  return names;
}

inline const EnumNames<ArmRole>& names_of(ArmRole) {
  static const EnumNames<ArmRole> names = {
      {ArmRole::kNone, "NONE"}, {ArmRole::kControl, "CTL"}, {ArmRole::kCandidate, "CAND"}, {ArmRole::kNull, "NULL"}};
  return names;
}

template <class V>
void visit(V& v, Some<ReceiptProtocol> auto& x) {
  v("file", x.file);
  v("mode", x.mode);
  v("sha256", x.sha256);
  v("prompts_sha256", x.prompts_sha256);
}

template <class V>
void visit(V& v, Some<ReceiptArm> auto& x) {
  v("role", x.role);
  v("name", x.name);
  v("block", x.block);
  v("order", x.order);
  v("boot_id", x.boot_id);
}

template <class V>
void visit(V& v, Some<ReceiptBuild> auto& x) {
  v("id", x.id);
  v("engine", x.engine);
  v("git", x.git);
  v("dirty", x.dirty);
  v("binary_sha256", x.binary_sha256);
  v("cuda", x.cuda);
}

template <class V>
void visit(V& v, Some<ReceiptModel> auto& x) {
  v("name", x.name);
  v("weights_sha256", x.weights_sha256);
  v("tokenizer_sha256", x.tokenizer_sha256);
  v("template_sha256", x.template_sha256);
  v("kv_dtype", x.kv_dtype);
  v("draft", x.draft);
}

template <class V>
void visit(V& v, Some<ReceiptSampling> auto& x) {
  v("temperature", x.temperature);
  v("top_p", x.top_p);
  v("seed", x.seed);
  v("max_tokens", x.max_tokens);
  v("ignore_eos", x.ignore_eos);
}

template <class V>
void visit(V& v, Some<ReceiptResolved> auto& x) {
  v("sampling", x.sampling);
  v("settings", x.settings);
}

template <class V>
void visit(V& v, Some<ReceiptMachine> auto& x) {
  v("gpu", x.gpu);
  v("vbios", x.vbios);
  v("driver", x.driver);
  v("power_limit_w", x.power_limit_w);
  v("ecc", x.ecc);
  v("cpu", x.cpu);
  v("processors", x.processors);
  v("memory_bytes", x.memory_bytes);
  v("kernel", x.kernel);
}

template <class V>
void visit(V& v, Some<Percentiles> auto& x) {
  v("p50", x.p50);
  v("p95", x.p95);
  v("p99", x.p99);
}

template <class V>
void visit(V& v, Some<ReceiptEnvironment> auto& x) {
  v("samples_hz", x.samples_hz);
  v("clock_mhz_p5", x.clock_mhz_p5);
  v("clock_mhz_p50", x.clock_mhz_p50);
  v("throttle", x.throttle);
  v("temp_c_start", x.temp_c_start);
  v("temp_c_max", x.temp_c_max);
  v("power_w_mean", x.power_w_mean);
  v("xid", x.xid);
  v("foreign_processes", x.foreign_processes);
  v("client_lag_ms_p99", x.client_lag_ms_p99);
}

template <class V>
void visit(V& v, Some<ReceiptCell> auto& x) {
  v("id", x.id);
  v("workload", x.workload);
  v("concurrency", x.concurrency);
  v("context_tokens", x.context_tokens);
  v("window_s", x.window_s);
  v("last_token_s", x.last_token_s);
  v("token_source", x.token_source);
  v("tokens", x.tokens);
  v("tokens_server", x.tokens_server);
  v("tok_s", x.tok_s);
  v("steps_s", x.steps_s);
  v("accepted_per_step", x.accepted_per_step);
  v("ttft_ms", x.ttft_ms);
  v("itl_ms", x.itl_ms);
  v("max_gap_ms", x.max_gap_ms);
  v("requests", x.requests);
  v("errors", x.errors);
  v("loops", x.loops);
  v("fairness_min_mean", x.fairness_min_mean);
  v("flags", x.flags);
  v("measures", x.measures);
  v("samples", x.samples);
}

template <class V>
void visit(V& v, Some<ReceiptItem> auto& x) {
  v("id", x.id);
  v("outcome", x.outcome);
  v("detail", x.detail);
}

template <class V>
void visit(V& v, Some<ReceiptGate> auto& x) {
  v("id", x.id);
  v("verdict", x.verdict);
  v("reasons", x.reasons);
  v("range", x.range);
  v("observed", x.observed);
  v("bound", x.bound);
  v("null_arm", x.null_arm);
  v("planted_fault_caught", x.planted_fault_caught);
  v("items", x.items);
  v("samples", x.samples);
}

template <class V>
void visit(V& v, Some<ReceiptArtifact> auto& x) {
  v("path", x.path);
  v("sha256", x.sha256);
  v("bytes", x.bytes);
}

template <class V>
void visit(V& v, Some<Receipt> auto& x) {
  v("run_id", x.run_id);
  v("kind", x.kind);
  v("title", x.title);
  v("command", x.command);
  v("verdict", x.verdict);
  v("reasons", x.reasons);
  v("protocol", x.protocol);
  v("arm", x.arm);
  v("build", x.build);
  v("model", x.model);
  v("resolved", x.resolved);
  v("machine", x.machine);
  v("environment", x.environment);
  v("cells", x.cells);
  v("gates", x.gates);
  v("void", x.void_reasons);
  v("artifacts", x.artifacts);
}

}  // namespace onelane
