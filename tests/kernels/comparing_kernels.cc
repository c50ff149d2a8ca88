#include "kernels/comparing_kernels.h"

#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "numerics/formats.h"

namespace onelane::testing {
namespace {

using Bytes = std::vector<std::byte>;

size_t at(int row, int width) { return static_cast<size_t>(row) * static_cast<size_t>(width); }

template <class T>
T load(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

// The rounding of one output of sums in another order, and what one flipped code of an activation does to a product.
constexpr double kCosine = 0.9999;

}  // namespace

void ComparingKernels::add_record(Regions& regions, const char* name, const RecordBlock& block, int index) {
  regions.push_back({name, Region::Kind::kRecord, block.data(index), 1,
                     static_cast<size_t>(record_data_bytes(block.format)), block.format, block.scales(index)});
}

void ComparingKernels::run(const char* stage, const Regions& regions, Bound bound,
                           const std::function<void(Kernels&)>& call) {
  if (regions.empty()) return;
  const auto each = [&](auto visit) {
    for (const Region& region : regions) {
      visit(static_cast<std::byte*>(region.data), region.row_bytes * static_cast<size_t>(region.rows));
      if (region.scales != nullptr) {
        visit(static_cast<std::byte*>(region.scales), static_cast<size_t>(record_scale_bytes(region.format)));
      }
    }
  };
  Bytes before;
  each([&](std::byte* data, size_t size) { before.insert(before.end(), data, data + size); });
  call(candidate_);
  std::vector<Bytes> got;
  for (const Region& region : regions) {
    const auto* data = static_cast<const std::byte*>(region.data);
    Bytes bytes(data, data + region.row_bytes * static_cast<size_t>(region.rows));
    if (region.scales != nullptr) {
      const auto* scales = static_cast<const std::byte*>(region.scales);
      bytes.insert(bytes.end(), scales, scales + record_scale_bytes(region.format));
    }
    got.push_back(std::move(bytes));
  }
  size_t place = 0;
  each([&](std::byte* data, size_t size) {
    std::memcpy(data, before.data() + place, size);
    place += size;
  });
  call(reference_);
  for (size_t i = 0; i < regions.size(); ++i) {
    compare(std::string(stage) + "/" + regions[i].name, regions[i], got[i], bound);
  }
}

void ComparingKernels::compare(const std::string& what, const Region& region, const Bytes& got, Bound bound) {
  const auto* want = static_cast<const std::byte*>(region.data);
  if (region.kind == Region::Kind::kBytes) {
    ASSERT_EQ(std::memcmp(got.data(), want, got.size()), 0) << what << " must be equal to the bit";
    return;
  }
  if (region.kind == Region::Kind::kChoice || region.kind == Region::Kind::kBits) {
    for (size_t i = 0; i < got.size() / sizeof(uint32_t); ++i) {
      const auto a = load<uint32_t>(got.data(), i);
      const auto b = load<uint32_t>(want, i);
      const bool bits = region.kind == Region::Kind::kBits;
      choices.made += bits ? static_cast<size_t>(std::popcount(b)) : 1;
      choices.differing += bits ? static_cast<size_t>(std::popcount(a ^ b)) : a != b;
    }
    return;
  }
  for (int row = 0; row < region.rows; ++row) {
    std::vector<float> a;
    std::vector<float> b;
    if (region.kind == Region::Kind::kRecord) {
      a.resize(static_cast<size_t>(record_width(region.format)));
      b = a;
      const auto* bytes = reinterpret_cast<const uint8_t*>(got.data());
      decode_record(region.format, bytes, bytes + region.row_bytes, a.data());
      decode_record(region.format, static_cast<const uint8_t*>(region.data), static_cast<const uint8_t*>(region.scales),
                    b.data());
    } else {
      const bool is_bf16 = region.kind == Region::Kind::kBf16;
      const size_t width = region.row_bytes / (is_bf16 ? sizeof(bf16) : sizeof(float));
      for (size_t i = static_cast<size_t>(row) * width; i < static_cast<size_t>(row + 1) * width; ++i) {
        a.push_back(is_bf16 ? bf16_to_float(load<bf16>(got.data(), i)) : load<float>(got.data(), i));
        b.push_back(is_bf16 ? bf16_to_float(load<bf16>(want, i)) : load<float>(want, i));
      }
    }
    double aa = 0;
    double bb = 0;
    double ab = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      aa += static_cast<double>(a[i]) * a[i];
      bb += static_cast<double>(b[i]) * b[i];
      ab += static_cast<double>(a[i]) * b[i];
    }
    if (!std::isfinite(bb)) {
      ASSERT_FALSE(std::isfinite(aa)) << what << " row " << row << ": the reference is not finite";
      continue;
    }
    Tally& tally = values_of[what];
    tally.made += a.size();
    for (size_t i = 0; i < a.size(); ++i)
      tally.differing += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
    const double rms = std::sqrt(bb / static_cast<double>(b.size()));
    size_t worst = 0;
    double excess = -1;
    for (size_t i = 0; i < a.size(); ++i) {
      const double over =
          std::fabs(static_cast<double>(a[i]) - b[i]) - bound.relative * std::fabs(b[i]) - bound.of_rms * rms;
      if (!(over <= excess)) {
        excess = over;
        worst = i;
      }
    }
    ASSERT_LE(excess, 0) << what << " row " << row << " element " << worst << ": " << a[worst] << " instead of "
                         << b[worst] << ", rms of the row " << rms;
    const double cosine = bb > 0 ? ab / std::sqrt(aa * bb) : 1;
    ASSERT_GE(cosine, bound.cosine) << what << " row " << row;
  }
}

// Bounds: {1/128, 1e-3} is a bf16 rounded the other way; more where a quantised activation lies between the inputs and
// the output, because one flipped code moves a whole column's contribution.

void ComparingKernels::embed(const StepRows& rows, const EmbedArgs& args) {
  run("embed", {values("stream", Region::Kind::kBytes, args.stream, rows.count, kStreams * args.dim)}, {},
      [&](Kernels& k) { k.embed(rows, args); });
}

void ComparingKernels::mix_streams(const StepRows& rows, const MixArgs& args) {
  run("mix_streams",
      {values("pre", Region::Kind::kFloat, args.pre, rows.count, kStreams),
       values("post", Region::Kind::kFloat, args.post, rows.count, kStreams),
       values("comb", Region::Kind::kFloat, args.comb, rows.count, kStreams * kStreams)},
      {1e-4, 1e-5, 0.999999}, [&](Kernels& k) { k.mix_streams(rows, args); });
  run("mix_streams", {values("x", Region::Kind::kBf16, args.x, rows.count, args.dim)}, {1.0 / 64, 1e-3, kCosine},
      [&](Kernels& k) { k.mix_streams(rows, args); });
}

void ComparingKernels::expand_streams(const StepRows& rows, const ExpandArgs& args) {
  run("expand_streams", {values("stream", Region::Kind::kBf16, args.stream, rows.count, kStreams * args.dim)},
      {1.0 / 128, 1e-3, kCosine}, [&](Kernels& k) { k.expand_streams(rows, args); });
}

void ComparingKernels::tap(const StepRows& rows, const TapArgs& args) {
  run("tap", {values("taps", Region::Kind::kBf16, args.taps, rows.count, args.tap_width)}, {1.0 / 128, 1e-3, kCosine},
      [&](Kernels& k) { k.tap(rows, args); });
}

void ComparingKernels::project_qkv(const StepRows& rows, const QkvArgs& args) {
  Regions regions;
  if (args.wq_a) {
    regions = {values("qr", Region::Kind::kBf16, args.qr, rows.count, args.wq_a.out),
               values("q", Region::Kind::kBf16, args.q, rows.count * args.heads, kHeadDim)};
  }
  Regions exact;
  const auto add_side = [&](const char* name, const SideProduct& side) {
    if (side.exact != nullptr)
      exact.push_back(values(name, Region::Kind::kFloat, side.exact, rows.count, side.weights.out));
    if (side.rounded != nullptr)
      regions.push_back(values(name, Region::Kind::kBf16, side.rounded, rows.count, side.weights.out));
  };
  for (const SideProduct& side : args.of_x) add_side("of x", side);
  add_side("of qr", args.of_qr);
  run("project_qkv", regions, {1.0 / 32, 0.25, 0.999}, [&](Kernels& k) { k.project_qkv(rows, args); });
  run("project_qkv", exact, {1e-3, 1e-3, kCosine}, [&](Kernels& k) { k.project_qkv(rows, args); });
  if (!args.wkv) return;
  Regions records;
  for (int row = 0; row < rows.count; ++row) add_record(records, "kv", args.kv, row);
  run("project_qkv", records, {0.13, 0.01, 0.999}, [&](Kernels& k) { k.project_qkv(rows, args); });
}

void ComparingKernels::compress(const StepRows& rows, const CompressArgs& args) {
  Regions states;
  Regions records;
  const auto add_states = [&](const char* name, const Compressor& compressor) {
    if (compressor.state.base == nullptr || args.ratio == 1) return;
    for (int i = 0; i < rows.run_count; ++i) {
      const RowRun& run = rows.runs[i];
      const int width = 2 * compressor.stored();
      for (int r = std::max(0, run.count - compressor.state.capacity); r < run.count; ++r) {
        float* slot = compressor.state.base + static_cast<size_t>(run.slot) * compressor.state.slot_floats;
        const int place = (run.first_position + r) % compressor.state.capacity;
        states.push_back(values(name, Region::Kind::kFloat, slot + at(place, width), 1, width));
      }
    }
  };
  add_states("state", args.main);
  if (args.index_compressor != nullptr) add_states("index state", *args.index_compressor);
  for (int row = 0; row < rows.count; ++row) {
    if ((rows.position[row] + 1) % args.ratio != 0) continue;
    const int entry = rows.position[row] / args.ratio;
    const int page = rows.page_table[at(rows.runs[rows.run_of[row]].slot, rows.pages_per_slot) +
                                     static_cast<size_t>(entry / args.entries.per_page)];
    const int index = entry % args.entries.per_page;
    add_record(records, "entry", args.entries.block(page), index);
    if (args.keys.base != nullptr) add_record(records, "key", args.keys.block(page), index);
  }
  // The state is among the inputs: what the candidate wrote must not reach the reference.
  Regions all = states;
  all.insert(all.end(), records.begin(), records.end());
  // A code of e2m1 may be a third of its neighbour, and a flipped e4m3 scale moves 16 values at once.
  run("compress", all, {0.5, 0.25, 0.98}, [&](Kernels& k) { k.compress(rows, args); });
}

void ComparingKernels::index(const StepRows& rows, const IndexArgs& args) {
  Regions regions = {values("picks", Region::Kind::kChoice, args.picks, rows.count, args.topk)};
  if (args.mode == IndexArgs::Candidates::kPublish) {
    regions.push_back(values("candidates", Region::Kind::kBits, args.candidates, rows.count, args.candidate_words));
  }
  run("index", regions, {}, [&](Kernels& k) { k.index(rows, args); });
}

void ComparingKernels::attend(const StepRows& rows, const AttendArgs& args) {
  run("attend", {values("out", Region::Kind::kBf16, args.out, rows.count * args.heads, kHeadDim)},
      // Probabilities are rounded to bf16; against which maximum is each implementation's own affair.
      {1.0 / 64, 2.5e-2, kCosine}, [&](Kernels& k) { k.attend(rows, args); });
}

void ComparingKernels::commit(const StepRows& rows, const CommitArgs& args) {
  Regions regions;
  for (int i = 0; i < rows.run_count; ++i) {
    const RecordBlock block = args.ring.block(rows.runs[i].slot);
    regions.push_back({"ring", Region::Kind::kBytes, block.base, 1, RecordBlock::bytes(block.format, block.capacity)});
  }
  run("commit", regions, {}, [&](Kernels& k) { k.commit(rows, args); });
}

void ComparingKernels::project_out(const StepRows& rows, const ProjectOutArgs& args) {
  run("project_out", {values("y", Region::Kind::kBf16, args.y, rows.count, args.wo_b.out)}, {1.0 / 32, 0.25, 0.999},
      [&](Kernels& k) { k.project_out(rows, args); });
}

void ComparingKernels::route(const StepRows& rows, const RouteArgs& args) {
  run("route", {values("ids", Region::Kind::kChoice, args.ids, rows.count, args.topk)}, {},
      [&](Kernels& k) { k.route(rows, args); });
  // Weights belong to ids; where the choice differs they are another expert's, of nearly the same score.
  run("route", {values("weights", Region::Kind::kFloat, args.weights, rows.count, args.topk)}, {1e-3, 1e-3, kCosine},
      [&](Kernels& k) { k.route(rows, args); });
}

void ComparingKernels::experts(const StepRows& rows, const ExpertsArgs& args) {
  if (args.router != nullptr) route(rows, *args.router);
  // The same choice for both: where they differ, so do the experts.
  ExpertsArgs chosen = args;
  chosen.router = nullptr;
  run("experts", {values("y", Region::Kind::kBf16, args.y, rows.count, args.dim)}, {1.0 / 32, 0.25, 0.999},
      [&](Kernels& k) { k.experts(rows, chosen); });
}

void ComparingKernels::engram(const StepRows& rows, const EngramArgs& args) {
  run("engram", {values("stream", Region::Kind::kBf16, args.stream, rows.count, kStreams * args.dim)},
      {1.0 / 64, 2e-3, kCosine}, [&](Kernels& k) { k.engram(rows, args); });
}

void ComparingKernels::head(const StepRows& rows, const HeadArgs& args) {
  Regions regions = {values("logits", Region::Kind::kFloat, args.logits, args.count, args.head.out)};
  if (args.hidden != nullptr) {
    regions.push_back(values("hidden", Region::Kind::kBf16, args.hidden, args.count, args.dim));
  }
  if (args.best != nullptr) regions.push_back(values("best", Region::Kind::kChoice, args.best, 1, args.count));
  run("head", regions, {1.0 / 64, 5e-3, kCosine}, [&](Kernels& k) { k.head(rows, args); });
}

void ComparingKernels::main_input(const StepRows& rows, const MainInputArgs& args) {
  run("main_input", {values("main_x", Region::Kind::kBf16, args.main_x, rows.count, args.main_proj.out)},
      {1.0 / 64, 5e-3, kCosine}, [&](Kernels& k) { k.main_input(rows, args); });
}

void ComparingKernels::markov(const StepRows& rows, const MarkovArgs& args) {
  run("markov",
      {values("logits", Region::Kind::kFloat, args.logits, 1, args.w2.out),
       values("confidence", Region::Kind::kFloat, args.confidence_out, 1, 1)},
      {1e-4, 1e-4, kCosine}, [&](Kernels& k) { k.markov(rows, args); });
}

void ComparingKernels::choose(const StepRows& rows, const ChooseArgs& args) {
  run("choose", {values("best", Region::Kind::kBytes, args.best, 1, args.count)}, {},
      [&](Kernels& k) { k.choose(rows, args); });
}

}  // namespace onelane::testing
