// A server's life in small: graphs captured for many row counts and kinds of layers, then replayed step after step in
// any order while lengths, indices, queries and the number of live rows change under them.
//
// Published decode kernels broke here, and not in their unit tests (spec/attention.md section 4.2): counters zeroed
// outside the graph, buffers sized by configuration, plans that went stale, padded rows that carry garbage, scratch
// that two graphs share. Every step's outputs are checked. A fault can be planted to see that the harness notices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/compare.h"
#include "attention/operands.h"

namespace onelane::attention_test {

enum class Plant {
  kNone,
  kRowPastEnd,       // an operand of the captured call starts one row late: its last row is past the end
  kStalePlan,        // now and then the graph of another row count is replayed
  kUnzeroedCounter,  // the harness's own kernel counts arrivals in a counter that only the first run finds at zero
};

struct ReplayOptions {
  int steps = 738;
  uint64_t seed = 1;
  int rows_max = 128;
  int heads = 64;
  bool fence = true;
  bool combine = false;    // plans as for a device without clusters
  bool sanitizer = false;  // few, small shapes; scratch is left uninitialised for the tool to watch
  Plant plant = Plant::kNone;
  Operand plant_operand = kQ;
  bool verbose = false;
};

class Replay {
 public:
  Replay(Backend& backend, const ReplayOptions& options);

  // Captures everything.
  void capture();
  // All steps; dies with a sentence at the first output that is wrong.
  void run();
  // "738 steps, 700 of them with split rows, ...".
  std::string summary() const;
  int splitting_steps() const { return splitting_steps_; }

 private:
  // A kind of layer: its standing pools and where its operands lie, the same for all row counts.
  struct Layer {
    std::string name;
    Problem problem;
    std::unique_ptr<Operands> operands;
    Difference total;  // split against whole, over all steps
  };
  struct Call {
    onelane_attention_plan plan{}, whole_plan{};
    onelane_attention_args args{}, captured{};  // captured: with the planted fault
  };
  // The graph of one row count: every layer once, and the harness's own kernel.
  struct Bucket {
    int rows = 0;
    bool splits = false;
    std::vector<Call> calls;
    std::unique_ptr<Backend::Recording> graph;
  };

  void make_layers();
  void plan_bucket(Bucket& bucket);
  void capture_bucket(Bucket& bucket);
  void plant_row_past_end(onelane_attention_args& args, const onelane_attention_shape& shape) const;
  void step(int number);
  void check_layer(int number, const Bucket& bucket, size_t layer, int live_rows, const Output& output);
  void check_counter(int number);
  [[noreturn]] void fail(int number, const Bucket& bucket, const std::string& layer, const std::string& what) const;

  static constexpr int kCounterRows = 8, kCounterParts = 16;

  Backend& backend_;
  ReplayOptions options_;
  std::vector<Layer> layers_;
  std::vector<Bucket> buckets_;
  Region workspace_, counter_, counter_in_, counter_out_;
  int splitting_steps_ = 0, padded_steps_ = 0, oracle_checks_ = 0, steps_ = 0;
  double worst_l2_ = 0;
};

}  // namespace onelane::attention_test
