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

// What a run costs on one path, in microseconds. One table in plan.cc, fitted to measurements (docs/attention.md).
struct PathCost {
  int chunk_entries;     // a block walks its entries in chunks of so many
  double fixed_us;       // launch, queries, first loads, epilogue
  double chunk_us;       // of a chunk: gathering and decoding its records
  double chunk_head_us;  // of a chunk, per head of the block: the products
  double merge_us;       // of a split row: meeting of its parts, or the second kernel
  double merge_head_us;  // of a split row, per head and share of it that comes from elsewhere
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

// Shared memory that one block of the path asks for. constexpr, so that the kernels can hold themselves to it.
constexpr int block_shared_bytes(onelane_attention_path path, int block_heads) {
  switch (path) {
    case ONELANE_PATH_CPU:
      return 0;
    case ONELANE_PATH_CLUSTER:
      // Records decoded to bf16, queries, scores of a chunk in float, and a little for barriers, lengths and sinks.
      return 128 * 1024 + block_heads * (1024 + 128 * 4) + 2048;
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
