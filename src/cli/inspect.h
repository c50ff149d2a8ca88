// `onelane inspect DIR`: what a model is, what it costs to hold, and the least time that a decode step can take.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace onelane {

struct InspectOptions {
  std::string dir;
  bool config_only = false;      // read config.json alone: no weights are needed, none are checked
  bool json = false;             // one JSON object instead of tables
  int rows = 1;                  // rows of the decode step, 1..4096
  int64_t tokens = 32768;        // positions that the sequence holds, 0..max_position_embeddings
  double bandwidth_gb_s = 4800;  // memory bandwidth in 10^9 B/s; the default is one H200's
};

// The report, as text or as one JSON object, with a newline at its end.
//
// The object's keys: generation ("v4", "v4.1"), checked (whether the weights were), layer_count, layers[] (index,
// draft, ratio, kv_owner, index_owner, rope, experts, topk, ...), drafter, draft_stages[], tensor_count, weight_bytes,
// tensors_by_kind{kind: {tensors, bytes}}, rows, tokens, bandwidth_gb_s, kv_bytes_per_token, kv_bytes_per_sequence,
// kv_bytes_per_sequence_parts{entries, rings, state}, step_weight_bytes, step_kv_bytes, expected_distinct_experts,
// time_floor_us, draft{weight_bytes, kv_bytes, expected_distinct_experts, time_floor_us} or null, unknown_keys[].
// Owners are null where there is none. Bytes are of the model's stored formats (checkpoint/footprint.h).
Result<std::string> inspect_report(const InspectOptions& options);

// Prints the report to stdout, or an error to stderr. Returns the exit code: 0, 1 for a failure, 2 for options out of
// range.
int run_inspect(const InspectOptions& options);

}  // namespace onelane
