// What attention_bench runs: one shape, with enough sets of queries, indices and outputs that a set's records have left
// the cache when its turn comes again.
//
// Real decode is cold: between two uses of a record lie the other layers' records and gigabytes of weights. So a graph
// holds one node for every set, no record is named twice in a graph, and at least 240 MB of records lie between two
// uses of one (spec/attention.md section 5). Warm is the first set again and again.
#pragma once

#include <cstdint>
#include <vector>

#include <onelane/attention.h>

#include "attention/timing.h"

namespace onelane::bench {

// Bytes that a call must move: every named record, the indices, queries and outputs, once each.
double floor_bytes(const onelane_attention_shape& shape);

class Workload {
 public:
  // Memory is kept from one shape to the next.
  void prepare(const onelane_attention_shape& shape, Timer& timer);

  int sets() const { return sets_; }
  // Nodes of a graph that goes through all sets, perhaps more than once so that its launch does not show.
  int nodes() const { return nodes_; }
  // The call of node i; with `warm`, always the first set's.
  onelane_attention_args args(int node, bool warm) const;
  // Room for a plan's partial results; ends with what the largest plan asks for.
  void reserve_workspace(size_t bytes) { workspace_.reserve(bytes); }

 private:
  struct Pool {
    DeviceMemory pages, indices;
    onelane_attention_list list{};
    int width = 0;
  };
  void prepare_constants(Timer& timer);
  void prepare_pool(Pool& pool, onelane_kv_format format, int width, int page_records, Timer& timer);

  onelane_attention_shape shape_{};
  int sets_ = 0, nodes_ = 0;
  Pool window_, extra_;
  DeviceMemory q_, sink_, positions_, angles_, out_, out_scales_, lse_, workspace_;
};

}  // namespace onelane::bench
