// commit: the step's window records into their sequences' rings, a block a row.
#include "base/check.h"
#include "cuda/stages.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 160;  // a word each, of records of 66 to 146

// A planar block of records as the device finds it.
struct Records {
  std::byte* base;
  int capacity;
  int data_words, scale_words;

  __device__ __forceinline__ uint32_t* word(std::byte* block, int record, int i) const {
    auto* words = reinterpret_cast<uint32_t*>(block);
    if (i < data_words) return words + int64_t{record} * data_words + i;
    return words + int64_t{capacity} * data_words + int64_t{record} * scale_words + (i - data_words);
  }
};

__global__ __launch_bounds__(kThreads) void commit_records(const int32_t* run_of, const int4* runs, Records kv,
                                                           Records ring, size_t slot_bytes) {
  ptx::let_next_kernel_start();
  const int row = blockIdx.x;
  const int4 words = __ldcg(runs + __ldcg(run_of + row));  // the host's, there since before the step
  const RowRun run = {.first_row = words.x, .count = words.y, .first_position = words.z, .slot = words.w};
  ptx::wait_for_previous_kernel();
  const int step = row - run.first_row;
  if (step < run.count - ring.capacity) return;  // a later row of the run takes its place
  std::byte* slot = ring.base + static_cast<size_t>(run.slot) * slot_bytes;
  const int record = (run.first_position + step) % ring.capacity;
  for (int i = threadIdx.x; i < kv.data_words + kv.scale_words; i += kThreads) {
    *ring.word(slot, record, i) = *kv.word(kv.base, row, i);
  }
}

}  // namespace

void commit(const Stage& stage, const CommitArgs& args) {
  ONELANE_CHECK(args.kv.format == args.ring.format, "a ring keeps records of its own format");
  const int data_words = record_data_bytes(args.kv.format) / 4, scale_words = record_scale_bytes(args.kv.format) / 4;
  const Records kv = {args.kv.base, args.kv.capacity, data_words, scale_words};
  const Records ring = {args.ring.base, args.ring.capacity, data_words, scale_words};
  launch(stage, "commit_records", commit_records, dim3(stage.rows.count), dim3(kThreads), 0, stage.rows.run_of,
         reinterpret_cast<const int4*>(stage.rows.runs), kv, ring, args.ring.slot_bytes);
}

}  // namespace onelane::cuda
