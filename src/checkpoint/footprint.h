// What a model costs to hold and to run: bytes of weights, bytes of cache, bytes that one decode step must read.
//
// Pure arithmetic on a ModelSpec, so it answers for models that do not fit on the machine asking. A step that reads B
// bytes cannot be faster than B / bandwidth; every engine's step time is held against that floor.
#pragma once

#include <array>
#include <cstdint>

#include "checkpoint/inventory.h"
#include "checkpoint/model_spec.h"

namespace onelane {

struct KindTotal {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// Bytes read once from memory by one step; nothing is counted that a cache between kernels could keep.
struct StepBytes {
  double dense = 0;             // weights that every step reads whole
  double experts = 0;           // routed experts that are expected to be hit
  double rows = 0;              // rows of tables: embedding, hash routing, Engram, Markov
  double kv = 0;                // windows, compressed entries and index keys
  double distinct_experts = 0;  // expected number per layer (the same in all of them)

  double weights() const { return dense + experts + rows; }
  double total() const { return weights() + kv; }
  // The time that reading takes at `bytes_per_us`.
  double floor_us(double bytes_per_us) const { return total() / bytes_per_us; }
};

struct FootprintQuery {
  int rows = 1;            // rows of the step, all of one sequence: 1 to decode, 1 + drafts to verify
  int64_t tokens = 32768;  // positions that the sequence already holds
};

struct Footprint {
  std::array<KindTotal, kTensorKindCount> kinds;  // by TensorKind
  KindTotal weights;                              // their sum

  // Growth of one sequence, averaged over a whole group of every ratio: compressed entries and index keys.
  double kv_bytes_per_token = 0;
  // One sequence of `tokens`: what has grown, and what every sequence has from the start.
  int64_t entry_bytes = 0;  // completed compressed entries and index keys
  int64_t ring_bytes = 0;   // sliding-window rings of ModelSpec::ring_slots() slots, draft stages included
  int64_t state_bytes = 0;  // fp32 rows of groups that are being filled
  int64_t kv_bytes_per_sequence() const { return entry_bytes + ring_bytes + state_bytes; }

  StepBytes step;   // the model: `rows` rows
  StepBytes draft;  // one DSpark pass of its whole block; zero without a DSpark drafter
};

// Distinct experts hit by `rows` rows that each pick k of E uniformly and independently: E (1 - (1 - k/E)^rows). Real
// routing is neither, and neighbouring tokens share experts, so a measured count is usually lower.
double expected_distinct_experts(int n_experts, int topk, int rows);

// Assumptions beside those above: tensors are read as stored, each at most once per step, except that the Markov head
// is read once per draft (each depends on the one before); rows of one sequence share windows, index keys and entries
// that all of them attend, but no two rows are assumed to pick the same compressed entry.
Footprint footprint(const ModelSpec& spec, const FootprintQuery& query);

}  // namespace onelane
