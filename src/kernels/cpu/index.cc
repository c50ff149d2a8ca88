// The lightning indexer and its two-level selection (spec/model.md 3.4, 3.5).
//
// Index queries and keys are e2m1 codes, so twice a value is a small integer and the dot product of a block of 32 fits
// 16 bits. Keys are unpacked into tiles with one entry per 16-bit lane: a tile serves every head of every row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/index.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/hadamard-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kQuerySlot = kStageSlot, kCodeSlot, kQueryScaleSlot, kWeightSlot, kTileSlot, kScoreSlot, kOrderSlot };

constexpr int kBlock = 32;
constexpr int kBlocks = kIndexDim / kBlock;
constexpr int kRowsAtOnce = 64;  // bounds the scores kept
constexpr int T = 2 * N;         // entries of a tile
using D16 = hn::Repartition<int16_t, DF>;

// Keys of T entries: key[k] holds value k, doubled, of entry i in the lower half of word i and of entry N + i in the
// upper half. scale[b]: of block b for the entries 0..N-1, then the rest.
struct KeyTile {
  alignas(64) int16_t key[kIndexDim][T];
  alignas(64) float scale[kBlocks][T];
};

struct Queries {
  const int16_t* code;  // [rows, heads, 128], doubled
  const float* scale;   // [rows, heads, 4], a quarter of the block scale (both factors of a product are doubled)
  const float* weight;  // [rows, heads]
  int heads;
};

// Block scale floats of the low byte of each lane.
HWY_INLINE VF E8m0(hn::Vec<DI> code) {
  const DI d;
  const DF df;
  const auto normal = hn::ShiftLeft<23>(code);
  const auto least = hn::IfThenElse(hn::Eq(code, hn::Zero(d)), hn::Set(d, 0x00400000), normal);
  return hn::BitCast(df, hn::IfThenElse(hn::Eq(code, hn::Set(d, 255)), hn::Set(d, 0x7fc00000), least));
}

// `first`: of the tile's entries in the block; those past its end repeat the last.
void UnpackKeys(const RecordBlock& block, int first, KeyTile& tile) {
  const DI d;
  const D16 d16;
  const hn::Repartition<uint8_t, DF> d8;
  const hn::Repartition<uint16_t, DF> du16;
  alignas(16) static constexpr uint8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
  const auto table = hn::LoadDup128(d8, kTwice);
  const auto at_most = hn::Set(d, block.capacity - 1);
  const auto low = hn::Min(hn::Iota(d, first), at_most);
  const auto high = hn::Min(hn::Iota(d, first + N), at_most);
  const auto* data = reinterpret_cast<const int32_t*>(block.data(0));
  const auto* scales = reinterpret_cast<const int32_t*>(block.scales(0));
  static_assert(record_data_bytes(RecordFormat::kIndexMxfp4) == 64 &&
                record_scale_bytes(RecordFormat::kIndexMxfp4) == 4);

  const auto unpack = [&](auto four, int k) HWY_ATTR {
    const auto nibbles = hn::BitCast(du16, four);
    const auto put = [&](int i, auto shifted) HWY_ATTR {
      const auto at = hn::And(shifted, hn::Set(du16, uint16_t{0x0f00}));
      const auto twice = hn::BitCast(d16, hn::TableLookupBytes(table, hn::BitCast(d8, at)));
      hn::Store(hn::ShiftRight<8>(twice), d16, tile.key[k + i]);
    };
    put(0, hn::ShiftLeft<8>(nibbles));
    put(1, hn::ShiftLeft<4>(nibbles));
    put(2, nibbles);
    put(3, hn::ShiftRight<4>(nibbles));
  };
  const auto lower_half = hn::Set(d, 0xffff);
  for (int word = 0; word < 16; ++word) {
    const auto offset_bytes = hn::Set(d, 4 * word);
    const auto a = hn::GatherOffset(d, data, hn::Add(hn::ShiftLeft<6>(low), offset_bytes));
    const auto b = hn::GatherOffset(d, data, hn::Add(hn::ShiftLeft<6>(high), offset_bytes));
    unpack(hn::Or(hn::And(a, lower_half), hn::ShiftLeft<16>(b)), 8 * word);
    unpack(hn::Or(hn::And(hn::ShiftRight<16>(a), lower_half), hn::AndNot(lower_half, b)), 8 * word + 4);
  }
  const DF df;
  const auto byte = hn::Set(d, 0xff);
  auto a = hn::GatherOffset(d, scales, hn::ShiftLeft<2>(low));
  auto b = hn::GatherOffset(d, scales, hn::ShiftLeft<2>(high));
  for (int i = 0; i < kBlocks; ++i) {
    hn::Store(E8m0(hn::And(a, byte)), df, tile.scale[i]);
    hn::Store(E8m0(hn::And(b, byte)), df, tile.scale[i] + N);
    a = hn::ShiftRight<8>(a);
    b = hn::ShiftRight<8>(b);
  }
}

// Adds the heads [head, head + H) of one row to the scores of a tile, in order.
template <int H>
HWY_INLINE void AddHeads(const Queries& q, size_t row_head, const KeyTile& tile, VF& low, VF& high) {
  const DF d;
  const DI di;
  const D16 d16;
  const int16_t* code = q.code + row_head * kIndexDim;
  VF dot_low[H];
  VF dot_high[H];
  for (int h = 0; h < H; ++h) dot_low[h] = dot_high[h] = hn::Zero(d);
  for (int block = 0; block < kBlocks; ++block) {
    hn::Vec<D16> sum[H];
    for (int h = 0; h < H; ++h) sum[h] = hn::Zero(d16);
    for (int k = block * kBlock; k < (block + 1) * kBlock; ++k) {
      const auto key = hn::Load(d16, tile.key[k]);
      for (int h = 0; h < H; ++h) {
        sum[h] = hn::Add(sum[h], hn::Mul(key, hn::Set(d16, code[static_cast<size_t>(h) * kIndexDim + k])));
      }
    }
    const VF key_low = hn::Load(d, tile.scale[block]);
    const VF key_high = hn::Load(d, tile.scale[block] + N);
    for (int h = 0; h < H; ++h) {
      // Two exact products rather than one of the product of the scales, which may leave the range of a float.
      const VF scale = hn::Set(d, q.scale[(row_head + h) * kBlocks + block]);
      const auto words = hn::BitCast(di, sum[h]);
      const VF part_low = hn::ConvertTo(d, hn::ShiftRight<16>(hn::ShiftLeft<16>(words)));
      const VF part_high = hn::ConvertTo(d, hn::ShiftRight<16>(words));
      dot_low[h] = hn::Add(dot_low[h], hn::Mul(hn::Mul(part_low, scale), key_low));
      dot_high[h] = hn::Add(dot_high[h], hn::Mul(hn::Mul(part_high, scale), key_high));
    }
  }
  const VF zero = hn::Zero(d);
  for (int h = 0; h < H; ++h) {
    const VF weight = hn::Set(d, q.weight[row_head + h]);
    // A NaN passes: it is not below 0.
    const auto relu = [&](VF v) HWY_ATTR { return hn::IfThenElse(hn::Lt(v, zero), zero, v); };
    low = hn::Add(low, hn::Mul(relu(dot_low[h]), weight));
    high = hn::Add(high, hn::Mul(relu(dot_high[h]), weight));
  }
}

HWY_INLINE void ScoreTile(const Queries& q, int row, const KeyTile& tile, float* scores, int valid) {
  const DF d;
  VF low = hn::Zero(d);
  VF high = hn::Zero(d);
  size_t head = offset(row, q.heads);
  const size_t end = head + static_cast<size_t>(q.heads);
  for (; head + 4 <= end; head += 4) AddHeads<4>(q, head, tile, low, high);
  for (; head < end; ++head) AddHeads<1>(q, head, tile, low, high);
  const VF none = hn::Set(d, -std::numeric_limits<float>::infinity());
  low = hn::IfThenElse(hn::IsNaN(low), none, low);
  high = hn::IfThenElse(hn::IsNaN(high), none, high);
  if (valid == T) {
    hn::StoreU(low, d, scores);
    hn::StoreU(high, d, scores + N);
    return;
  }
  alignas(64) float lanes[T];
  hn::Store(low, d, lanes);
  hn::Store(high, d, lanes + N);
  for (int i = 0; i < valid; ++i) scores[i] = lanes[i];
}

// -- queries
// -------------------------------------------------------------------------------------------------------------

// A.3 on one head: doubled codes and quarter scales.
void QuantiseQuery(const float* x, int16_t* code, float* scale) {
  const DF d;
  const DI di;
  const hn::Rebind<int16_t, DF> d16;
  constexpr float kFloor = kE2m1Max * std::numeric_limits<float>::min();
  for (int block = 0; block < kBlocks; ++block) {
    const float* part = x + block * kBlock;
    VF amax = hn::Zero(d);
    bool finite = true;
    for (int i = 0; i < kBlock; i += N) {
      const VF magnitude = hn::Abs(hn::LoadU(d, part + i));
      finite = finite && hn::AllTrue(d, hn::Le(magnitude, hn::Set(d, std::numeric_limits<float>::max())));
      amax = hn::Max(amax, magnitude);
    }
    if (!finite) {
      scale[block] = std::numeric_limits<float>::quiet_NaN();
      std::memset(code + block * kBlock, 0, sizeof(int16_t) * kBlock);
      continue;
    }
    const uint8_t exponent = ceil_e8m0(std::max(hn::GetLane(hn::MaxOfLanes(d, amax)), kFloor) * (1.0f / kE2m1Max));
    scale[block] = e8m0_to_float(exponent) * 0.25f;
    const VF inverse = hn::Set(d, 1.0f / e8m0_to_float(exponent));
    for (int i = 0; i < kBlock; i += N) {
      const VF v = hn::Mul(hn::LoadU(d, part + i), inverse);
      const VF magnitude = hn::Abs(v);
      // Steps of twice the value at the midpoints of A.5.
      const auto over = [&](float bound, float step) HWY_ATTR {
        return hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(d, bound)), hn::Set(d, step));
      };
      const auto from = [&](float bound, float step) HWY_ATTR {
        return hn::IfThenElseZero(hn::Ge(magnitude, hn::Set(d, bound)), hn::Set(d, step));
      };
      VF twice = hn::Add(hn::Add(over(0.25f, 1), from(0.75f, 1)), hn::Add(over(1.25f, 1), from(1.75f, 1)));
      twice = hn::Add(twice, hn::Add(hn::Add(over(2.5f, 2), from(3.5f, 2)), over(5.0f, 4)));
      const auto whole = hn::ConvertTo(di, hn::CopySign(twice, v));
      hn::StoreU(hn::DemoteTo(d16, whole), d16, code + block * kBlock + i);
    }
  }
}

Queries MakeQueries(Context& context, const StepRows& rows, const IndexArgs& args) {
  const int heads = args.heads;
  const size_t row_heads = offset(rows.count, heads);
  float* qi = context.scratch<float>(kQuerySlot, row_heads * kIndexDim);
  float* weights = context.scratch<float>(kWeightSlot, row_heads);
  auto* codes = context.scratch<int16_t>(kCodeSlot, row_heads * kIndexDim);
  float* scales = context.scratch<float>(kQueryScaleSlot, row_heads * kBlocks);

  const Activations qr = MakeActivations(context, args.qr, rows.count, args.wq_b.in, args.wq_b.act_block);
  const Activations x = MakeActivations(context, args.x, rows.count, args.dim, args.weights_proj.act_block, kRow2Slot);
  SharedProduct(context, args.weights_proj, x, rows.count, ToFloat{weights, static_cast<size_t>(heads)});
  const auto head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * heads));
  for (size_t i = 0; i < row_heads; ++i) weights[i] = round_bf16(round_bf16(weights[i]) * head_scale);

  const RopeAngles* angles = context.row_angles(*args.rope, rows);
  const Panels panels = MakePanels(context, args.wq_b.in);
  context.parallel(heads, 1, ProductWork(args.wq_b, rows.count), [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    const ToFloat store{qi, static_cast<size_t>(heads) * kIndexDim};
    Product(args.wq_b, static_cast<int>(begin) * kIndexDim, static_cast<int>(end) * kIndexDim, qr.row, rows.count,
            panels.of(share), [&](int row, int output, int valid, V4 sums) HWY_ATTR {
              store(row, output, valid, RoundBf16(D4(), sums));
            });
    for (int row = 0; row < rows.count; ++row) {
      for (int64_t head = begin; head < end; ++head) {
        const size_t at = offset(row, heads) + static_cast<size_t>(head);
        float* q = qi + at * kIndexDim;
        RopeRow(q, kIndexDim, angles[row]);
        if (args.hadamard) Hadamard(q);
        QuantiseQuery(q, codes + at * kIndexDim, scales + at * kBlocks);
      }
    }
  });
  return {codes, scales, weights, heads};
}

// -- selection
// -----------------------------------------------------------------------------------------------------------

void PublishCandidates(const IndexArgs& args, const float* scores, int visible, float* best, int32_t* keys,
                       uint32_t* bits) {
  const int blocks = (visible + args.block_size - 1) / args.block_size;
  std::memset(bits, 0, sizeof(uint32_t) * static_cast<size_t>(args.candidate_words));
  for (int block = 0; block < blocks; ++block) {
    const int end = std::min((block + 1) * args.block_size, visible);
    float most = -std::numeric_limits<float>::infinity();
    for (int j = block * args.block_size; j < end; ++j) most = scores[j] > most ? scores[j] : most;
    best[block] = most;
  }
  if (blocks > 0) best[blocks - 1] = std::numeric_limits<float>::infinity();  // the newest always stays
  SelectBest(best, blocks, args.topk_blocks, keys, [&](int block) HWY_ATTR {
    if (best[block] > -std::numeric_limits<float>::infinity()) bits[block / 32] |= 1u << (block % 32);
  });
}

void ApplyCandidates(const IndexArgs& args, const uint32_t* bits, int visible, float* scores) {
  for (int first = 0; first < visible; first += args.block_size) {
    const int block = first / args.block_size;
    if ((bits[block / 32] >> (block % 32) & 1u) != 0) continue;
    std::fill(scores + first, scores + std::min(first + args.block_size, visible),
              -std::numeric_limits<float>::infinity());
  }
}

// Rows [first, first + count) of one run.
void IndexRows(Context& context, const StepRows& rows, const IndexArgs& args, const Queries& queries, int first,
               int count, int slot) {
  const bool publish = args.mode == IndexArgs::Candidates::kPublish;
  const auto visible = [&](int row) { return (rows.position[row] + 1) / args.ratio; };
  const int most = visible(first + count - 1);
  if (args.mode != IndexArgs::Candidates::kNone) {
    ONELANE_CHECK((most + args.block_size - 1) / args.block_size <= 32 * args.candidate_words,
                  "the candidate bits of a row are too few");
  }
  const int per_page = args.keys.per_page;
  const int tiles_per_page = (per_page + T - 1) / T;
  const int pages = (most + per_page - 1) / per_page;
  ONELANE_CHECK(pages <= rows.pages_per_slot, "an entry beyond the sequence's page table");
  const int stride = padded(pages * per_page);
  float* scores = context.scratch<float>(kScoreSlot, offset(count, stride));
  const auto scored = [&](int row) { return publish || visible(row) > args.topk; };

  if (scored(first + count - 1)) {
    auto* tiles = context.scratch<KeyTile>(kTileSlot, static_cast<size_t>(context.threads()));
    const int64_t all_tiles = int64_t{pages} * tiles_per_page;
    const int64_t work = all_tiles * T * (int64_t{count} * args.heads * 4 + 64);
    context.parallel(all_tiles, 1, work, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
      KeyTile& tile = tiles[share];
      for (int64_t i = begin; i < end; ++i) {
        const int page = static_cast<int>(i) / tiles_per_page;
        const int in_page = static_cast<int>(i) % tiles_per_page * T;
        const int entry = page * per_page + in_page;
        if (entry >= most) break;
        const int32_t number = rows.page_table[offset(slot, rows.pages_per_slot) + static_cast<size_t>(page)];
        UnpackKeys(args.keys.block(number), in_page, tile);
        const int valid = std::min(T, per_page - in_page);
        for (int row = first; row < first + count; ++row) {
          if (visible(row) <= entry || !scored(row)) continue;
          ScoreTile(queries, row, tile, scores + offset(row - first, stride) + entry, valid);
        }
      }
    });
  }

  // Per thread: keys to select by and, for the blocks, their scores.
  auto* order = context.scratch<int32_t>(kOrderSlot, offset(2 * context.threads(), stride));
  context.parallel(count, 1, int64_t{count} * most * 12, [&](int share, int64_t begin, int64_t end) HWY_ATTR {
    int32_t* keys = order + offset(2 * share, stride);
    auto* block_scores = reinterpret_cast<float*>(keys + stride);
    for (int64_t i = begin; i < end; ++i) {
      const int row = first + static_cast<int>(i);
      float* row_scores = scores + offset(i, stride);
      uint32_t* bits = args.candidates == nullptr ? nullptr : args.candidates + offset(row, args.candidate_words);
      if (publish) PublishCandidates(args, row_scores, visible(row), block_scores, keys, bits);
      if (args.mode == IndexArgs::Candidates::kApply && scored(row)) {
        ApplyCandidates(args, bits, visible(row), row_scores);
      }
      int32_t* picks = args.picks + offset(row, args.topk);
      int taken = 0;
      SelectBest(row_scores, visible(row), args.topk, keys, [&](int entry) HWY_ATTR { picks[taken++] = entry; });
      std::fill(picks + taken, picks + args.topk, -1);
    }
  });
}

void Index(Context& context, const StepRows& rows, const IndexArgs& args) {
  ONELANE_CHECK(args.wq_b.out == args.heads * kIndexDim, "wq_b must give 128 values per head");
  ONELANE_CHECK(args.weights_proj.out == args.heads, "one weight per head");
  const Queries queries = MakeQueries(context, rows, args);
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    for (int first = 0; first < run.count; first += kRowsAtOnce) {
      IndexRows(context, rows, args, queries, run.first_row + first, std::min(kRowsAtOnce, run.count - first),
                run.slot);
    }
  }
}

}  // namespace
}  // namespace onelane::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onelane::cpu {

HWY_EXPORT(Index);

void index(Context& context, const StepRows& rows, const IndexArgs& args) {
  HWY_DYNAMIC_DISPATCH(Index)(context, rows, args);
}

}  // namespace onelane::cpu
#endif
