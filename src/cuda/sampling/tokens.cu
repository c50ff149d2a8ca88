// What happens to tokens between two steps that the host does not come between: references, verdicts, Engram rows.
#include "base/check.h"
#include "cuda/stages.h"
#include "kernels/tokens.h"

namespace onelane::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int32_t meant(int32_t token, const int32_t* later) {
  return token >= 0 || token == kNoToken ? token : max(0, later[~token]);
}

// One block: rows are few, and whoever reads them waits for all of it.
__global__ void __launch_bounds__(kThreads) resolve_references(const StepRows rows, const ResolveArgs args) {
  ptx::wait_for_previous_kernel();
  const auto moved = [&](int run) { return rows.moved_by[run] < 0 ? 0 : rows.later[rows.moved_by[run]]; };
  for (int row = threadIdx.x; row < rows.count; row += kThreads) {
    args.token[row] = meant(args.token[row], rows.later);
    if (rows.moved_by != nullptr) args.position[row] += moved(rows.run_of[row]);
  }
  for (int run = threadIdx.x; run < rows.run_count && rows.moved_by != nullptr; run += kThreads) {
    args.runs[run].first_position += moved(run);
  }
  for (int i = threadIdx.x; i < rows.run_count * kHistory && args.before != nullptr; i += kThreads) {
    args.before[i] = meant(args.before[i], rows.later);
  }
}

// A thread a run.
__global__ void __launch_bounds__(kThreads) give_verdicts(const StepRows rows, const VerifyArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int run = blockIdx.x * kThreads + threadIdx.x;
  if (run < rows.run_count) give_verdict(rows, args, run);
}

// A thread a column of a row; Kernels::address says the same on the host.
__global__ void __launch_bounds__(kThreads) find_table_rows(const StepRows rows, const AddressArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int columns = (args.max_ngram - 1) * args.heads;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= rows.count * columns) return;
  const int row = i / columns, column = i % columns;
  const int run = rows.run_of[row];
  const int in_run = row - rows.runs[run].first_row;
  int64_t mixed = 0;
  for (int back = 0; back <= column / args.heads + 1; ++back) {
    mixed ^= compressed_token(rows, args, run, in_run - back) * args.multipliers[back];
  }
  int64_t offset = 0;
  for (int before = 0; before < column; ++before) offset += args.primes[before];
  args.table_rows[i] = static_cast<int32_t>(mixed % args.primes[column] + offset);
}

}  // namespace

void resolve(const Stage& stage, const ResolveArgs& args) {
  launch(stage, "resolve_references", resolve_references, dim3(1), dim3(kThreads), 0, stage.rows, args);
}

void verify(const Stage& stage, const VerifyArgs& args) {
  ONELANE_CHECK(stage.rows.before != nullptr, "a verdict goes on with the tokens before a run");
  const int blocks = (stage.rows.run_count + kThreads - 1) / kThreads;
  launch(stage, "give_verdicts", give_verdicts, dim3(blocks), dim3(kThreads), 0, stage.rows, args);
}

void address(const Stage& stage, const AddressArgs& args) {
  ONELANE_CHECK(stage.rows.before != nullptr && args.max_ngram <= kHistory + 1,
                "Engram looks at the tokens before a run");
  const int count = stage.rows.count * (args.max_ngram - 1) * args.heads;
  launch(stage, "find_table_rows", find_table_rows, dim3((count + kThreads - 1) / kThreads), dim3(kThreads), 0,
         stage.rows, args);
}

}  // namespace onelane::cuda
