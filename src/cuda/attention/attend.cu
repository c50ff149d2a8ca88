// Attention of a step (kernels.h AttendArgs) by the attention library: lists made on the device, one call.
//
// A row's window lies in two places, the ring and the step's own records; the library takes one pool a list. So every
// run's 128 ring records and all rows' records are copied to a pool of the step, once a run and a row.
//
// Batch invariance: how a row's entries are cut into parts, and how many heads a block takes, come from a plan for
// always the same number of rows. Where the cuts are follows on the device from the row's own list lengths: neither the
// width of the lists nor the size of the pool moves them.
#include <algorithm>

#include <onelane/attention.h>

#include "base/check.h"
#include "cuda/stages.h"
#include "kernels/attention/plan.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kPieces = 8;  // blocks that copy a run's ring records
constexpr int kPieceRecords = kWindow / kPieces;
constexpr int kSharedPages = 2048;  // of a row's page table

struct Params {
  StepRows rows;
  RecordBlock kv;
  RingCache ring;
  int data_bytes, scale_bytes;  // of a window record
  bool block_attention;
  uint8_t* pool;  // one block of records: [runs][128] of the rings, [rows] of the step
  int pool_records;
  int32_t* window;  // [rows, window_width]
  int window_width;
  int32_t* window_lengths;  // [rows]
  int ratio;                // 0: nothing from here on
  int per_page;
  const int32_t* picks;
  int extra_width;
  int32_t* extra;          // [rows, extra_width]
  int32_t* extra_lengths;  // [rows]
  int32_t* row_numbers;    // [rows]: 0, 1, ...
};

// A planar block of records.
struct Records {
  uint8_t* base;
  int capacity;

  __device__ __forceinline__ uint2* word(const Params& p, int record, int i) const {
    const int data_words = p.data_bytes / 8;
    uint8_t* record_base = i < data_words
                               ? base + static_cast<int64_t>(record) * p.data_bytes
                               : base + static_cast<int64_t>(capacity) * p.data_bytes +
                                     static_cast<int64_t>(record) * p.scale_bytes - static_cast<int64_t>(p.data_bytes);
    return reinterpret_cast<uint2*>(record_base) + i;  // eight bytes divide everything
  }
};

// Copies `count` records to the pool from `to` on; the i-th is record place(i) of `from`. They are asked for before the
// previous kernel has ended, which may have written them, and read when it has.
template <int kMost, class Place>
__device__ __forceinline__ void copy_records(const Params& p, int to, int count, const Records& from, Place place) {
  constexpr int kMostWords = kMost * (576 + 8) / 8;  // of the largest format
  constexpr int kTurns = (kMostWords + kThreads - 1) / kThreads;
  const int words = (p.data_bytes + p.scale_bytes) / 8;
  const Records pool = {p.pool, p.pool_records};
  const uint2* source[kTurns];
  uint2* target[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * kThreads + threadIdx.x;
    const int record = i / words, word = i - record * words;
    source[turn] = nullptr;
    if (record >= count) continue;
    source[turn] = from.word(p, place(record), word);
    target[turn] = pool.word(p, to + record, word);
    ptx::prefetch(source[turn]);
  }
  ptx::wait_for_previous_kernel();
  uint2 words_of[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (source[turn] != nullptr) words_of[turn] = *source[turn];
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (source[turn] != nullptr) *target[turn] = words_of[turn];
  }
}

// Records of 16 of the 128 positions before a run; those before position 0 stay as they are.
__device__ __forceinline__ void copy_ring_piece(const Params& p, int number, int piece) {
  const RowRun run = p.rows.runs[number];
  const int from = run.first_position - kWindow + piece * kPieceRecords;  // the piece's first position
  const int skipped = min(max(-from, 0), kPieceRecords);
  const int first_place = (from + skipped) % p.ring.capacity;  // no less than the window: one turn at most
  const Records ring = {reinterpret_cast<uint8_t*>(p.ring.base) + run.slot * p.ring.slot_bytes, p.ring.capacity};
  copy_records<kPieceRecords>(p, number * kWindow + piece * kPieceRecords + skipped, kPieceRecords - skipped, ring,
                              [&](int i) {
                                const int place = first_place + i;
                                return place < p.ring.capacity ? place : place - p.ring.capacity;
                              });
}

// The row's list of window records, and its own record to the pool.
__device__ __forceinline__ void list_window(const Params& p, int row, int number, const RowRun& run, int position) {
  const Records step = {reinterpret_cast<uint8_t*>(p.kv.base), p.kv.capacity};
  copy_records<1>(p, p.rows.run_count * kWindow + row, 1, step, [&](int) { return row; });
  const int end = p.block_attention ? run.first_position + run.count : position + 1;
  const int begin = max(0, p.block_attention ? run.first_position - kWindow : end - kWindow);
  int32_t* to = p.window + static_cast<int64_t>(row) * p.window_width;
  for (int i = threadIdx.x; i < end - begin; i += kThreads) {
    const int from_first = begin + i - run.first_position;
    to[i] =
        from_first < 0 ? (number + 1) * kWindow + from_first : p.rows.run_count * kWindow + run.first_row + from_first;
  }
  if (threadIdx.x == 0) {
    p.window_lengths[row] = end - begin;
    p.row_numbers[row] = row;
  }
}

// The row's list of compressed entries. Picks end where only -1 follow.
__device__ __forceinline__ void list_entries(const Params& p, int row, const RowRun& run, int position) {
  __shared__ int length;
  __shared__ int32_t page[kSharedPages];
  const int32_t* pages = p.rows.page_table + static_cast<int64_t>(run.slot) * p.rows.pages_per_slot;
  const int visible = (position + 1) / p.ratio;
  if (threadIdx.x == 0) length = 0;
  // Those pages that are in use, ahead of picks, which the kernel before may still be making.
  const int used = min((visible + p.per_page - 1) / p.per_page, p.rows.pages_per_slot);
  if (used <= kSharedPages) {
    for (int i = threadIdx.x; i < used; i += kThreads) page[i] = pages[i];
    pages = page;
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  const int count = p.picks == nullptr ? min(visible, p.extra_width) : p.extra_width;
  const int32_t* picks = p.picks + static_cast<int64_t>(row) * p.extra_width;
  int32_t* to = p.extra + static_cast<int64_t>(row) * p.extra_width;
  int mine = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int entry = p.picks == nullptr ? i : picks[i];
    to[i] = entry < 0 ? -1 : pages[entry / p.per_page] * p.per_page + entry % p.per_page;
    if (entry >= 0) mine = i + 1;
  }
  mine = __reduce_max_sync(0xffffffff, mine);
  if (threadIdx.x % 32 == 0 && mine > 0) atomicMax(&length, mine);
  __syncthreads();
  if (threadIdx.x == 0) p.extra_lengths[row] = length;
}

// grid: rows, rows with compressed entries, then kPieces a run. What the step is (StepRows) was there before its first
// kernel.
__global__ void __launch_bounds__(kThreads) make_lists(const __grid_constant__ Params p) {
  ptx::let_next_kernel_start();
  const int lists = p.ratio > 0 ? 2 * p.rows.count : p.rows.count;
  const int block = blockIdx.x;
  if (block >= lists) {
    copy_ring_piece(p, (block - lists) / kPieces, (block - lists) % kPieces);
    return;
  }
  const int row = block < p.rows.count ? block : block - p.rows.count;
  const int number = p.rows.run_of[row];
  const RowRun run = p.rows.runs[number];
  const int position = p.rows.position[row];
  if (block < p.rows.count) {
    list_window(p, row, number, run, position);
  } else {
    list_entries(p, row, run, position);
  }
}

constexpr int kHeadWords = kHeadDim * sizeof(bf16) / sizeof(uint4);

// A head a block: head h of `heads_to` from head h of `heads_from`, zeros if there is none; sinks likewise, if any.
__global__ void __launch_bounds__(kHeadWords)
    copy_heads(const uint4* from, int heads_from, uint4* to, int heads_to, const float* sink, float* sink_to) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int row = blockIdx.x, head = blockIdx.y;
  const bool there = head < heads_from;
  to[(static_cast<int64_t>(row) * heads_to + head) * kHeadWords + threadIdx.x] =
      there ? from[(static_cast<int64_t>(row) * heads_from + head) * kHeadWords + threadIdx.x] : make_uint4(0, 0, 0, 0);
  if (sink != nullptr && row == 0 && threadIdx.x == 0) sink_to[head] = there ? sink[head] : 0.0f;
}

void check_attention(int status) {
  if (status != ONELANE_ATTENTION_OK) check_failed("attention", __FILE__, __LINE__, onelane_attention_message());
}

onelane_kv_format format_of(RecordFormat format) {
  switch (format) {
    case RecordFormat::kV4Fp8:
      return ONELANE_KV_V4;
    case RecordFormat::kV41Fp8:
      return ONELANE_KV_V41_FP8;
    case RecordFormat::kV41Nvfp4:
      return ONELANE_KV_V41_FP4;
    case RecordFormat::kIndexMxfp4:
      break;
  }
  check_failed("an attention format", __FILE__, __LINE__, "index keys are not attended to");
}

const onelane_attention_device& current_device() {
  thread_local int known = -1;
  thread_local onelane_attention_device device;
  int id = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  if (id != known) check_attention(onelane_attention_describe_cuda(&device));
  known = id;
  return device;
}

// The plan of a few rows, as decoding has them, for any number of rows and any width.
onelane_attention_plan make_plan(onelane_attention_shape shape, bool block_attention) {
  constexpr int kRows = 8;
  constexpr int kDraftRows = 8;
  constexpr int kEntries = 512;  // more are there in long sequences only
  // Six parts, where the planner wants them, would be as fast for a few rows, but of many rows each part costs the same
  // again, and six blocks beside each other leave a quarter of the chip idle.
  constexpr int kMostSplits = 4;
  onelane_attention_shape usual = shape;
  usual.rows = kRows;
  usual.window_width = std::min(shape.window_width, kWindow + (block_attention ? kDraftRows : 0));
  usual.extra_width = std::min(shape.extra_width, kEntries);
  onelane_attention_plan plan;
  const auto choose = [&] { check_attention(onelane_attention_make_plan(&usual, &current_device(), &plan)); };
  choose();
  if (plan.splits > kMostSplits) {
    usual.splits = kMostSplits;
    choose();
  }
  plan.shape = shape;
  if (plan.path != ONELANE_PATH_CLUSTER) return plan;
  // Blocks of 64 heads decode an entry once where those of 16 do four times. The parts stay, and with them the bits.
  // Blocks of 32 are of two kinds, by the list's width, and add up in two ways.
  constexpr int kManyRows = 16;
  const bool many = plan.splits > 1 && shape.rows >= kManyRows && shape.heads % 64 == 0;
  plan.block_heads = many ? 64 : std::min(plan.block_heads, 16);
  plan.chunks_as_few = many ? 1 : 0;
  plan.shared_bytes = attention::block_shared_bytes(plan.path, plan.block_heads, plan.splits);
  return plan;
}

int padded_heads(int heads) {
  for (const int possible : {8, 16, 32, 64, 128}) {
    if (heads <= possible) return possible;
  }
  check_failed("heads", __FILE__, __LINE__, "attention takes at most 128 heads");
}

}  // namespace

void attend(const Stage& lists, const Stage& stage, const AttendArgs& args) {
  const StepRows& rows = stage.rows;
  Workspace& workspace = *stage.workspace;
  Workspace& listed = *lists.workspace;
  const float* angles = stage.angles(*args.rope);
  const size_t count = rows.count;

  Params params = {.rows = rows,
                   .kv = args.kv,
                   .ring = args.ring,
                   .data_bytes = record_data_bytes(args.ring.format),
                   .scale_bytes = record_scale_bytes(args.ring.format),
                   .block_attention = args.block_attention,
                   .pool_records = rows.run_count * kWindow + rows.count,
                   .window_width = args.block_attention ? kWindow + rows.count : kWindow,
                   .ratio = args.ratio,
                   .per_page = args.entries.per_page,
                   .picks = args.picks};
  const size_t pool_bytes = (RecordBlock::bytes(args.ring.format, params.pool_records) + 15) / 16 * 16;
  params.pool = listed.take<uint8_t>(pool_bytes);
  params.window = listed.take<int32_t>(count * params.window_width);
  params.window_lengths = listed.take<int32_t>(count);
  params.row_numbers = listed.take<int32_t>(count);
  if (args.ratio > 0) {
    params.extra_width = args.picks != nullptr ? args.topk : rows.pages_per_slot * args.entries.per_page;
    params.extra = listed.take<int32_t>(count * params.extra_width);
    params.extra_lengths = listed.take<int32_t>(count);
  }
  const int row_lists = args.ratio > 0 ? 2 * rows.count : rows.count;
  launch(lists, "make_lists", make_lists, dim3(row_lists + rows.run_count * kPieces), dim3(kThreads), 0, params);
  lists.reach();

  const int heads = padded_heads(args.heads);
  const bf16* q = args.q;
  const float* sink = args.sink;
  bf16* out = args.out;
  if (heads != args.heads) {
    bf16* padded = workspace.take<bf16>(count * heads * kHeadDim);
    float* padded_sink = workspace.take<float>(heads);
    out = workspace.take<bf16>(count * heads * kHeadDim);
    launch(stage, "copy_heads", copy_heads, dim3(rows.count, heads), dim3(kHeadWords), 0,
           reinterpret_cast<const uint4*>(q), args.heads, reinterpret_cast<uint4*>(padded), heads, sink, padded_sink);
    q = padded;
    sink = padded_sink;
  }

  onelane_attention_shape shape = {};
  shape.rows = rows.count;
  shape.heads = heads;
  shape.window_width = params.window_width;
  shape.extra_width = params.extra_width;
  shape.window_format = format_of(args.ring.format);
  shape.extra_format = args.ratio > 0 ? format_of(args.entries.format) : shape.window_format;
  shape.output = ONELANE_OUT_BF16;
  onelane_attention_plan plan = make_plan(shape, args.block_attention);

  // Partial results of many rows would want gigabytes: then some rows after the others.
  constexpr size_t kMostPartials = size_t{1} << 28;
  shape.rows = 1;
  const size_t row_bytes = attention::workspace_bytes(shape, plan.path, plan.splits);
  const int at_once =
      row_bytes == 0 ? rows.count : std::min<int>(rows.count, std::max<size_t>(1, kMostPartials / row_bytes));
  std::byte* partials = row_bytes == 0 ? nullptr : workspace.take<std::byte>(row_bytes * at_once);

  onelane_attention_args call = {};
  call.window.pages = params.pool;
  call.window.page_bytes = static_cast<int64_t>(pool_bytes);
  call.window.page_records = params.pool_records;
  call.window.pages_count = 1;
  call.window.index_stride = params.window_width;
  if (args.ratio > 0) {
    call.extra.pages = args.entries.base + args.entries.offset;
    call.extra.page_bytes = static_cast<int64_t>(args.entries.page_bytes);
    call.extra.page_records = args.entries.per_page;
    call.extra.pages_count = INT32_MAX / args.entries.per_page;  // the table names none that is not there
    call.extra.index_stride = params.extra_width;
  }
  call.scale = 0.044194173824159216f;  // 512^-0.5
  call.sink = sink;
  call.angles = angles;
  call.angles_count = rows.count;
  call.workspace = partials;
  stage.await();
  for (int first = 0; first < rows.count; first += at_once) {
    plan.shape.rows = std::min(at_once, rows.count - first);
    plan.workspace_bytes = attention::workspace_bytes(plan.shape, plan.path, plan.splits);
    const int64_t head_offset = static_cast<int64_t>(first) * heads * kHeadDim;
    call.q = q + head_offset;
    call.out = out + head_offset;
    call.window.indices = params.window + static_cast<int64_t>(first) * params.window_width;
    call.window.lengths = params.window_lengths + first;
    if (args.ratio > 0) {
      call.extra.indices = params.extra + static_cast<int64_t>(first) * params.extra_width;
      call.extra.lengths = params.extra_lengths + first;
    }
    call.positions = params.row_numbers + first;
    check_attention(onelane_attention_run_cuda(&plan, &call, stage.stream));
  }
  if (heads != args.heads) {
    launch(stage, "copy_heads", copy_heads, dim3(rows.count, args.heads), dim3(kHeadWords), 0,
           reinterpret_cast<const uint4*>(out), heads, reinterpret_cast<uint4*>(args.out), args.heads, nullptr,
           nullptr);
  }
}

}  // namespace onelane::cuda
