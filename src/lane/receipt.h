// Receipt: what a measurement saw, in a form that can be checked later. Schema `lane-receipt/1` (docs/measuring.md).
//
// One receipt is one block: one boot of one arm with all its cells, or one run of gates. Numbers stand as measured and
// are rounded only where they are shown; units are in the names; what is not known is null, never 0. Summaries that
// follow from raw samples are computed here (summarise) and computed again by verify_receipt. The last field is a
// SHA-256 over everything else, so a receipt that was changed after it was written is refused by every reader.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace onelane {

inline constexpr std::string_view kReceiptSchema = "lane-receipt/1";

// kNotRun: a gate that could not be asked. kVoid: the instrument failed, so nothing follows. Both block as kFail does.
enum class Verdict { kPass, kFail, kNotRun, kVoid };
enum class ReceiptKind { kBench, kGate, kSoak, kAb, kDrill, kPromotion };
enum class ArmRole { kNone, kControl, kCandidate, kNull };

// For people: "NOT RUN".
inline std::string_view verdict_label(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "PASS";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kNotRun:
      return "NOT RUN";
    case Verdict::kVoid:
      return "VOID";
  }
  return "";
}

// Named figures with the unit in the name: {"ttft_alone_s", 0.8}. Absent: not known.
using Measures = std::map<std::string, double>;
using Series = std::map<std::string, std::vector<double>>;

struct ReceiptProtocol {
  std::string file;  // what was followed: a protocol file, or the name of a built-in one
  std::string mode;  // "lib", "strict", a gate profile
  std::optional<std::string> sha256, prompts_sha256;
};

struct ReceiptArm {
  ArmRole role = ArmRole::kNone;
  std::string name;                     // "split attention"; empty outside comparisons
  std::optional<int64_t> block, order;  // which block of the plan; the place in time among all blocks
  std::optional<std::string> boot_id;   // changes whenever the server starts
};

struct ReceiptBuild {
  std::string id;      // what the server calls its build
  std::string engine;  // "onelane", "vllm", "sglang"
  std::optional<std::string> git, binary_sha256, cuda;
  std::optional<bool> dirty;
};

struct ReceiptModel {
  std::string name;
  std::optional<std::string> weights_sha256, tokenizer_sha256, template_sha256, kv_dtype, draft;
};

struct ReceiptSampling {
  std::optional<double> temperature, top_p;
  std::optional<int64_t> seed, max_tokens;
  std::optional<bool> ignore_eos;
};

// Effective settings: what ran, not what was asked for.
struct ReceiptResolved {
  ReceiptSampling sampling;
  // "server.max_num_seqs": "16". What begins with "bench." is how it was measured, and equal between compared arms.
  std::map<std::string, std::string> settings;
};

struct ReceiptMachine {
  std::optional<std::string> gpu, vbios, driver, cpu, kernel;
  std::optional<int64_t> processors, memory_bytes;
  std::optional<double> power_limit_w;
  std::optional<bool> ecc;
};

// Percentiles by linear interpolation between order statistics (stats.h).
struct Percentiles {
  std::optional<double> p50, p95, p99;
};

struct ReceiptEnvironment {
  std::optional<double> samples_hz;
  std::optional<double> clock_mhz_p5, clock_mhz_p50, temp_c_start, temp_c_max, power_w_mean;
  std::vector<std::string> throttle, foreign_processes;
  std::vector<int64_t> xid;
  std::optional<double> client_lag_ms_p99;
};

struct ReceiptCell {
  std::string id;        // "prose/C1/ctx0"
  std::string workload;  // the class: "prose", "filler"
  std::optional<int64_t> concurrency, context_tokens;
  std::optional<double> window_s;           // wall time of the window
  std::optional<double> last_token_s;       // window start to the last token seen
  std::string token_source;                 // where `tokens` comes from: "usage", "chunks", "server", or empty
  std::optional<int64_t> tokens;            // in the window
  std::optional<int64_t> tokens_server;     // the server's own counter over its own interval
  std::optional<double> tok_s;              // derived: tokens / last_token_s
  std::optional<double> steps_s;            // verify steps per second and stream
  std::optional<double> accepted_per_step;  // drafts accepted; tok_s per stream = steps_s (1 + accepted_per_step)
  Percentiles ttft_ms, itl_ms;              // derived from samples "ttft_ms", "itl_ms"
  std::optional<double> max_gap_ms;         // longest silence of any stream
  int64_t requests = 0, errors = 0;
  std::optional<int64_t> loops;             // answers that repeat themselves; not known where nobody looked
  std::optional<double> fairness_min_mean;  // tokens of the slowest stream over the mean of all
  std::vector<std::string> flags;           // "underfilled", "stall_at_end"
  Measures measures;                        // whatever else the protocol measures
  Series samples;                           // raw, one entry a request or gap
};

// One question of a gate, for the page: what was asked of the server and how it went.
struct ReceiptItem {
  std::string id, outcome, detail;
};

struct ReceiptGate {
  std::string id;  // "needle/1"
  Verdict verdict = Verdict::kNotRun;
  std::vector<std::string> reasons;  // one sentence each; required unless PASS
  std::string range;                 // what was covered: "lengths 512-4096, 24 prompts"
  Measures observed, bound;
  std::optional<Verdict> null_arm;  // the gate on two equal arms
  std::optional<bool> planted_fault_caught;
  std::vector<ReceiptItem> items;
  Series samples;
};

struct ReceiptArtifact {
  std::string path;  // relative to the receipt's folder
  std::string sha256;
  int64_t bytes = 0;
};

struct Receipt {
  std::string run_id;  // new_run_id()
  ReceiptKind kind = ReceiptKind::kBench;
  std::string title;    // one line for lists
  std::string command;  // how it was made
  Verdict verdict = Verdict::kNotRun;
  std::vector<std::string> reasons;  // of the verdict; required unless PASS
  ReceiptProtocol protocol;
  ReceiptArm arm;
  ReceiptBuild build;
  ReceiptModel model;
  ReceiptResolved resolved;
  ReceiptMachine machine;
  ReceiptEnvironment environment;
  std::vector<ReceiptCell> cells;
  std::vector<ReceiptGate> gates;
  std::vector<std::string> void_reasons;  // "void": rules that were broken, one sentence each
  std::vector<ReceiptArtifact> artifacts;
};

// "20261130T101500Z-3f2a91c0": now in UTC and 32 random bits. Names sort by time.
std::string new_run_id();

// Fills what is derived from raw values: tok_s, and the percentiles of every samples entry that has a field.
void summarise(ReceiptCell& cell);

// What void rules and gates allow: VOID when a rule was broken, else the worst of the gates (FAIL, VOID, NOT_RUN), else
// PASS. A receipt may say worse of itself, for reasons of its own, but not better.
Verdict allowed_verdict(const Receipt& receipt);

// What is wrong with its verdicts, one sentence each: better than allowed_verdict, or not PASS and without a reason.
std::vector<std::string> verdict_problems(const Receipt& receipt);

// The receipt as JSON text with its digest: scrubbed of secrets, host names and addresses (scrub.h), with derived
// values filled in; without a run_id it gets one. Errors name the field: a number that is not finite, a verdict that
// verdict_problems objects to.
Result<std::string> receipt_json(Receipt receipt);

// Reads a receipt, strictly: unknown, missing and mistyped fields, another schema and a digest that does not fit are
// errors that name the field ("cells[2].tok_s: must be a number, not a string"). Optional fields may be left out.
Result<Receipt> parse_receipt(std::string_view json);

// The digest in the text of a receipt that parse_receipt accepts.
std::string receipt_digest(std::string_view json);

// Seals an outside text: the same JSON with a `digest` that fits. For arms that are scripts.
Result<std::string> seal_receipt(std::string_view json);

// receipt_json to a file, and back. Errors name the path.
Result<void> save_receipt(const Receipt& receipt, const std::string& path);
Result<Receipt> load_receipt(const std::string& path);

// Everything that is wrong with the receipt in `json`, one sentence each; empty when it holds: the form and the digest,
// derived values against raw samples, the verdict against gates and void rules, and the size and SHA-256 of artifacts
// below `folder` (empty: not looked at).
std::vector<std::string> verify_receipt(std::string_view json, const std::string& folder);

}  // namespace onelane
