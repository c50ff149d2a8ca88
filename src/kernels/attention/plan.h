// The split plan of the attention library: how many parts a row is cut into, and how many heads a block takes.
//
// Pure host code on captured quantities only (row count, heads, list widths, formats, device). Lengths and indices are
// not among them: a CUDA graph is replayed with the plan it was captured with, whatever they are by then. Free of CUDA,
// fmt and allocation on success, so that a bare CUDA machine and the kernels' host code can use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <onelane/attention.h>

#include "base/result.h"
#include "kernels/attention/layout.h"

namespace onelane::attention {

// What a block of so many heads costs on one path, in microseconds. One table in plan.cc, fitted to measurements
// (docs/kernels/attention-plan.md).
struct BlockCost {
  int block_heads;
  bool wide = false;    // is_wide()
  int chunk_entries;    // a block walks its entries in chunks of so many
  double fixed_us;      // launch, queries, first loads, epilogue
  double split_us;      // more, when the row has several parts: their merge
  double entry_us = 0;  // of an entry: reading and decoding it, its products
  double chunk_us = 0;  // of a chunk after the first: what does not overlap
};

// One way to run a shape.
struct Candidate {
  int splits = 1;
  int block_heads = 8;
};

// What a candidate is thought to cost: time until a block is done, and until all are.
struct Estimate {
  double block_us;
  double full_us;
  double cost_us;  // what the plan minimises
};
Estimate estimate(const onelane_attention_shape& shape, const onelane_attention_device& device,
                  onelane_attention_path path, const Candidate& candidate);

// Entries of a row, both lists together.
int entries_of(const onelane_attention_shape& shape);

// Bytes of the partial results: float [rows, splits, heads, 512], then a running maximum and a sum for each, float
// [rows, splits, heads, 2]. 0 unless the path is COMBINE and splits > 1.
size_t workspace_bytes(const onelane_attention_shape& shape, onelane_attention_path path, int splits);

// Most units (8 entries of one list) that a block of a row's `splits` walks.
constexpr int share_units(const onelane_attention_shape& shape, int splits) {
  return ((shape.window_width + 7) / 8 + (shape.extra_width + 7) / 8 + splits - 1) / splits;
}

// Whether a row's blocks of the cluster path are those for many entries (wide.cu), which stream them; else those for
// few (cluster.cu), which take up to 14 units of 32 heads at once, or 20 of fewer.
constexpr bool is_wide(const onelane_attention_shape& shape, int block_heads, int splits) {
  return block_heads == 64 || (block_heads == 32 && share_units(shape, splits) > 14);
}

// Most items that the blocks of a cluster receive, if each has room for the largest share of `items` from each.
constexpr int most_received(int items) {
  int most = 0;
  for (int splits = 2; splits <= 8; ++splits) {
    const int received = (items + splits - 1) / splits * splits;
    most = received > most ? received : most;
  }
  return most;
}

// Shared memory that one block of the path asks for. constexpr, so that the kernels can hold themselves to it.
constexpr int block_shared_bytes(onelane_attention_path path, int block_heads, int splits) {
  const int head_bytes = ONELANE_ATTENTION_DIM * 2;  // a query, or a record as bf16
  switch (path) {
    case ONELANE_PATH_CPU:
      return 0;
    case ONELANE_PATH_CLUSTER: {
      // Rotation, barriers; per head sink, factor and what 8 parts make of it; per entry place and mask.
      const int ends = 4 * ONELANE_ATTENTION_ROPE_DIM + block_heads * (4 + 4 + 8 * 8);
      // For many entries: two tiles, queries, weights, a part of a chunk as it was; masks, factors, barriers.
      const int wide = block_heads < 32 ? 0
                                        : (2 * 64 + 64) * head_bytes + 64 * 64 * 2 + 8 * 1536 + 2 * 64 + 64 * 4 +
                                              4 * ONELANE_ATTENTION_ROPE_DIM + block_heads * (4 + 8 * 8) + 64;
      if (block_heads == 64) return wide;
      // A tile, weights, and scores in four parts or the sums received.
      const int entries = block_heads == 32 ? 112 : 160;
      const int scores = 4 * block_heads * ((entries + 31) / 32 * 32) * 4;
      const int received = splits > 1 ? most_received(2 * block_heads) * 1024 : 0;
      const int few = (entries + block_heads) * head_bytes + (entries + 63) / 64 * block_heads * 128 +
                      (scores > received ? scores : received) + entries * (16 + 2) + ends + 8;
      return few > wide ? few : wide;
    }
    case ONELANE_PATH_COMBINE:
      // Of a chunk of 32: records in bf16, where they lie, queries, scores in four parts, weights, and a factor a head.
      return 32 * (1024 + 2 * 16) + block_heads * (1024 + 4 * 32 * 4 + (2 * 32 + 16) + 4);
  }
  return 0;
}

// Formats of both lists. That of a list that is not there does not matter: it is one that goes with the other's.
struct ListFormats {
  onelane_kv_format window, extra;
};
ListFormats formats_of(const onelane_attention_shape& shape);

// Whether the Hopper kernel takes records of these formats together; COMBINE takes all.
bool cluster_takes(const ListFormats& formats);

// Whether rows, heads, widths, formats, output and splits are within the library's limits; a sentence that names the
// field and what would be right if not.
Result<void> check_shape(const onelane_attention_shape& shape);

// The same of a device; kUnsupported for one that is too old.
Result<void> check_device(const onelane_attention_device& device);

// The plan, or kInvalidArgument for a field that is off, or kUnsupported when no path fits the device.
Result<onelane_attention_plan> make_plan(const onelane_attention_shape& shape, const onelane_attention_device& device);

}  // namespace onelane::attention
