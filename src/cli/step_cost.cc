#include "cli/step_cost.h"

#include <algorithm>
#include <vector>

namespace onelane {
namespace {

// A vector of a row: bf16 values.
double values(double rows, double width) { return rows * width * sizeof(bf16); }

double stream_bytes(double rows, double dim) { return values(rows, kStreams * dim); }

// rows * W^T, the weights read once; inputs and outputs are the stage's to count.
StageCost product(double rows, const Matrix& matrix) { return {bytes_of(matrix), 2.0 * rows * matrix.out * matrix.in}; }

int entries_before(int end_position, int ratio) { return end_position / ratio; }

// Of an indexer: the entries that a row's scores are wanted of.
int scored(const IndexArgs& args, int position) {
  const int visible = entries_before(position + 1, args.ratio);
  if (args.mode != IndexArgs::Candidates::kApply) return visible;
  return std::min(visible, args.topk_blocks * args.block_size);
}

StageCost mix_weights(double rows, double dim, double mixes) {
  return {4 * (mixes * kStreams * dim + mixes), 2 * rows * mixes * kStreams * dim};
}

}  // namespace

double bytes_of(const Matrix& matrix) {
  const double out = matrix.out, in = matrix.in;
  switch (matrix.kind) {
    case Matrix::Kind::kNone:
      return 0;
    case Matrix::Kind::kFp8: {
      const auto tiles = [&](int edge) { return static_cast<double>((edge + matrix.block - 1) / matrix.block); };
      return out * in + tiles(matrix.out) * tiles(matrix.in);
    }
    case Matrix::Kind::kFp4:
      return out * in / 2 + out * in / 32;
    case Matrix::Kind::kBf16:
      return 2 * out * in;
  }
  return 0;
}

int distinct(std::span<const int32_t> numbers) {
  std::vector<int32_t> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  const auto end = std::unique(sorted.begin(), sorted.end());
  return static_cast<int>(end - std::lower_bound(sorted.begin(), end, 0));
}

StageCost cost_of(const StepRows& rows, const EmbedArgs& args) {
  return {values(rows.count, args.dim) + stream_bytes(rows.count, args.dim), 0};
}

StageCost cost_of(const StepRows& rows, const MixArgs& args) {
  StageCost cost = mix_weights(rows.count, args.dim, kMixes);
  cost.bytes += values(1, args.dim) + stream_bytes(rows.count, args.dim) + values(rows.count, args.dim);
  return cost;
}

StageCost cost_of(const StepRows& rows, const ExpandArgs& args) {
  return {2 * stream_bytes(rows.count, args.dim) + values(rows.count, args.dim), 0};
}

StageCost cost_of(const StepRows& rows, const TapArgs& args) {
  return {stream_bytes(rows.count, args.dim) + values(rows.count, args.dim), 0};
}

StageCost cost_of(const StepRows& rows, const QkvArgs& args) {
  StageCost cost = product(rows.count, args.wkv);
  cost.bytes += values(rows.count, args.dim) + values(1, kHeadDim) +
                static_cast<double>(rows.count) * record_bytes(args.kv.format);
  const auto add_side = [&](const SideProduct& side) {
    cost += product(rows.count, side.weights);
    cost.bytes += values(rows.count, side.weights.out) * (side.exact != nullptr ? 2 : 1);
  };
  for (const SideProduct& side : args.of_x) add_side(side);
  add_side(args.of_qr);
  if (!args.wq_a) return cost;
  cost += product(rows.count, args.wq_a);
  cost += product(rows.count, args.wq_b);
  cost.bytes += values(1, args.wq_a.out) + values(rows.count, args.wq_a.out) + values(rows.count, args.wq_b.out);
  return cost;
}

StageCost cost_of(const StepRows& rows, const CompressArgs& args) {
  StageCost cost;
  for (const Compressor* compressor : {&args.main, args.index_compressor}) {
    if (compressor == nullptr) continue;
    cost.bytes += values(1, compressor->width);
    // kv and gate of its rows, which are kept for later groups.
    cost.bytes += compressor->gate != nullptr ? 2 * rows.count * 8.0 * compressor->stored()
                                              : values(rows.count, compressor->width);
    if (compressor->ape != nullptr) cost.bytes += args.ratio * 4.0 * compressor->stored();
  }
  double groups = 0;
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    groups +=
        entries_before(run.first_position + run.count, args.ratio) - entries_before(run.first_position, args.ratio);
  }
  cost.bytes += groups * record_bytes(args.entries.format);
  if (args.keys.base != nullptr) cost.bytes += groups * record_bytes(args.keys.format);
  if (args.wk) {
    cost.bytes += bytes_of(args.wk) + values(1, kIndexDim);
    cost.flops += 2 * groups * args.wk.out * args.wk.in;
  }
  return cost;
}

StageCost cost_of(const StepRows& rows, const IndexArgs& args) {
  StageCost cost;
  cost.bytes = values(rows.count, args.heads * (kIndexDim + 1.0)) + 4.0 * rows.count * args.topk;
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    const int last = run.first_position + run.count - 1;
    cost.bytes += static_cast<double>(scored(args, last)) * record_bytes(args.keys.format);
    for (int row = 0; row < run.count; ++row) {
      cost.flops += 2.0 * args.heads * kIndexDim * scored(args, run.first_position + row);
    }
  }
  return cost;
}

StageCost cost_of(const StepRows& rows, const AttendArgs& args, std::span<const int32_t> picks) {
  StageCost cost;
  cost.bytes = 2 * values(rows.count, static_cast<double>(args.heads) * kHeadDim) + 4.0 * args.heads;
  const auto topk = static_cast<size_t>(args.topk);
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    const int ring = std::min(run.first_position, args.block_attention ? kWindow : kWindow - 1);
    cost.bytes += static_cast<double>(ring) * record_bytes(args.ring.format) +
                  static_cast<double>(run.count) * record_bytes(args.kv.format);
    double attended = 0;  // (row, entry) pairs
    for (int row = 0; row < run.count; ++row) {
      attended += args.block_attention ? ring + run.count : std::min(run.first_position + row + 1, kWindow);
    }
    if (args.ratio > 0 && args.picks != nullptr) {
      const auto of_run =
          picks.subspan(static_cast<size_t>(run.first_row) * topk, static_cast<size_t>(run.count) * topk);
      attended += static_cast<double>(std::count_if(of_run.begin(), of_run.end(), [](int32_t e) { return e >= 0; }));
      cost.bytes += static_cast<double>(distinct(of_run)) * record_bytes(args.entries.format) +
                    4.0 * static_cast<double>(of_run.size());
    } else if (args.ratio > 0) {
      for (int row = 0; row < run.count; ++row) attended += entries_before(run.first_position + row + 1, args.ratio);
      cost.bytes += static_cast<double>(entries_before(run.first_position + run.count, args.ratio)) *
                    record_bytes(args.entries.format);
    }
    cost.flops += 4.0 * args.heads * kHeadDim * attended;  // scores, and values
  }
  return cost;
}

StageCost cost_of(const StepRows& rows, const CommitArgs& args) {
  return {2.0 * rows.count * record_bytes(args.kv.format), 0};
}

StageCost cost_of(const StepRows& rows, const ProjectOutArgs& args) {
  StageCost cost = product(rows.count, args.wo_a);
  cost += product(rows.count, args.wo_b);
  cost.bytes += values(rows.count, static_cast<double>(args.heads) * kHeadDim) + values(rows.count, args.wo_b.out);
  return cost;
}

StageCost cost_of(const StepRows& rows, const RouteArgs& args) {
  StageCost cost = product(rows.count, args.gate);
  cost.bytes += values(rows.count, args.dim) + 8.0 * rows.count * args.topk;  // ids and weights
  if (args.bias != nullptr) cost.bytes += 4.0 * args.experts;
  if (args.tid2eid != nullptr) cost.bytes += 8.0 * rows.count * args.topk;
  return cost;
}

StageCost cost_of(const StepRows& rows, const ExpertsArgs& args, std::span<const int32_t> ids) {
  const auto matrices = [&](const ExpertWeights& expert, double of_rows) {
    StageCost cost = product(of_rows, expert.w1);
    cost += product(of_rows, expert.w2);
    return cost += product(of_rows, expert.w3);
  };
  StageCost cost = matrices(args.shared, rows.count);
  cost.bytes += 2 * values(rows.count, args.dim) + 8.0 * rows.count * args.topk;
  if (args.router != nullptr) {
    cost += cost_of(rows, *args.router);
    cost.bytes -= values(rows.count, args.dim);  // x, which is read once
  }
  // All routed experts have one shape.
  const StageCost one = matrices(args.experts[0], 1);
  cost.bytes += distinct(ids) * one.bytes;
  cost.flops += static_cast<double>(ids.size()) * one.flops;
  return cost;
}

StageCost cost_of(const StepRows& rows, const EngramArgs& args) {
  StageCost cost = product(rows.count, args.wkv);
  cost.bytes += static_cast<double>(rows.count) * args.columns * (4 + args.width + args.width / 32) +
                2 * stream_bytes(rows.count, args.dim) + values(2 * kStreams, args.dim);
  return cost;
}

StageCost cost_of(const StepRows& /*rows*/, const HeadArgs& args) {
  StageCost cost = product(args.count, args.head);
  cost.bytes += stream_bytes(args.count, args.dim) + values(1, args.dim) + 4.0 * args.count * args.head.out;
  if (args.hidden != nullptr) cost.bytes += values(args.count, args.dim);
  if (args.best != nullptr) cost.bytes += 4.0 * args.count;
  if (args.collapse_with == nullptr) cost += mix_weights(args.count, args.dim, kStreams);
  return cost;
}

StageCost cost_of(const StepRows& rows, const MainInputArgs& args) {
  StageCost cost = product(rows.count, args.main_proj);
  cost.bytes +=
      values(rows.count, args.main_proj.in) + values(1, args.main_proj.out) + values(rows.count, args.main_proj.out);
  return cost;
}

StageCost cost_of(const MarkovArgs& args) {
  StageCost cost = product(1, args.w2);
  cost.bytes += values(1, args.rank) + 8.0 * args.w2.out;  // logits in and out
  if (args.confidence) {
    cost += product(1, args.confidence);
    cost.bytes += values(1, args.dim);
  }
  return cost;
}

StageCost cost_of(const ChooseArgs& args) { return {.bytes = 4.0 * args.count * args.vocab}; }

}  // namespace onelane
