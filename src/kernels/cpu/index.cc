// The lightning indexer and its two-level selection (spec/model.md 3.4, 3.5).
//
// Index queries and keys are e2m1 codes, so twice a value is a small integer and the dot product of a block of 32 fits
// 16 bits. Keys are unpacked into tiles with one entry per 16-bit lane: a tile serves every head of every row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/index.cc"
#include "kernels/cpu/targets.h"
//
#include <hwy/foreach_target.h>

#include "kernels/cpu/activations-inl.h"
#include "kernels/cpu/hadamard-inl.h"
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/stages.h"

HWY_BEFORE_NAMESPACE();
namespace onelane::cpu::HWY_NAMESPACE {
namespace {

enum : size_t { kQuerySlot = kStageSlot, kHeadSlot, kWeightSlot, kTileSlot, kScoreSlot, kOrderSlot };

constexpr int kBlock = 32;  // values that share a scale: as e2m1 codes, 16 bytes
constexpr int kBlocks = kIndexDim / kBlock;
constexpr int kRowsAtOnce = 64;       // bounds the scores kept
constexpr int kVectorBlocks = N / 4;  // 16-byte blocks in a vector
constexpr int kParts = kBlocks / kVectorBlocks;
constexpr int kGroups = 4;  // of eight entries, in a tile
constexpr int kTileEntries = 8 * kGroups;
using D16 = hn::Repartition<int16_t, DF>;

// Keys of 32 entries, values doubled. Block b of a vector belongs to block b of the part's scale blocks; its eight
// lanes are the group's entries 0, 4, 1, 5, 2, 6, 3, 7. Vector k of a part holds value k of every block.
struct KeyTile {
  alignas(64) int16_t key[kGroups][kParts][kBlock][2 * N];
  alignas(64) float scale[kGroups][2][kParts][N];  // of entries 0-3 and of 4-7: block, then entry
};

// Heads of all rows in the layout of the keys: every value repeated for the eight entries, scales for four.
struct QueryHead {
  alignas(64) int16_t code[kParts][kBlock][2 * N];
  alignas(64) float scale[kParts][N];  // a quarter of the block's (both factors of a product are doubled)
};
struct Queries {
  QueryHead* head;  // [rows, heads]
  float* weight;    // [rows, heads]
  int heads;
};

HWY_INLINE VF E8m0(hn::Vec<DI> code) {
  const DI d;
  const auto normal = hn::ShiftLeft<23>(code);
  const auto least = hn::IfThenElse(hn::Eq(code, hn::Zero(d)), hn::Set(d, 0x00400000), normal);
  return hn::BitCast(DF(), hn::IfThenElse(hn::Eq(code, hn::Set(d, int32_t{kE8m0Nan})), hn::Set(d, 0x7fc00000), least));
}

// `first`: of the tile's entries in the block; those past its end repeat the last.
void UnpackKeys(const RecordBlock& block, int first, KeyTile& tile) {
  const DU d;
  const D16 d16;
  const hn::Repartition<uint8_t, DF> d8;
  const hn::Repartition<uint16_t, DF> du16;
  alignas(16) static constexpr uint8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
  const auto table = hn::LoadDup128(d8, kTwice);
  const auto lower_half = hn::Set(d, 0xffffu);

  for (int group = 0; group < kGroups; ++group) {
    const uint8_t* record[8];
    alignas(16) uint8_t scales[2][4 * kBlocks];
    for (int i = 0; i < 8; ++i) {
      const int index = std::min(first + 8 * group + i, block.capacity - 1);
      record[i] = block.data(index);
      const uint8_t* codes = block.scales(index);
      for (int b = 0; b < kBlocks; ++b) scales[i / 4][4 * b + i % 4] = codes[b];
    }
    for (int half = 0; half < 2; ++half) {
      const hn::Rebind<uint8_t, DF> codes;
      for (int part = 0; part < kParts; ++part) {
        const VF scale = E8m0(hn::PromoteTo(DI(), hn::LoadU(codes, scales[half] + part * N)));
        hn::Store(scale, DF(), tile.scale[group][half][part]);
      }
    }
    for (int part = 0; part < kParts; ++part) {
      // The four words of every block, one word of four entries per block: a transposition inside blocks.
      using Word = hn::Vec<DU>;
      const auto words = [&](const uint8_t* const* r, Word* word) HWY_ATTR {
        Word row[4];
        for (int i = 0; i < 4; ++i) row[i] = hn::BitCast(d, hn::LoadU(d8, r[i] + part * 4 * N));
        TransposeBlocks(row, word);
      };
      Word a[4];
      Word b[4];
      words(record, a);
      words(record + 4, b);
      const auto unpack = [&](Word four, int k) HWY_ATTR {
        const auto nibbles = hn::BitCast(du16, four);
        const auto put = [&](int i, auto shifted) HWY_ATTR {
          const auto at = hn::And(shifted, hn::Set(du16, uint16_t{0x0f00}));
          const auto twice = hn::BitCast(d16, hn::TableLookupBytes(table, hn::BitCast(d8, at)));
          hn::Store(hn::ShiftRight<8>(twice), d16, tile.key[group][part][k + i]);
        };
        put(0, hn::ShiftLeft<8>(nibbles));
        put(1, hn::ShiftLeft<4>(nibbles));
        put(2, nibbles);
        put(3, hn::ShiftRight<4>(nibbles));
      };
      for (int word = 0; word < 4; ++word) {
        unpack(hn::Or(hn::And(a[word], lower_half), hn::ShiftLeft<16>(b[word])), 8 * word);
        unpack(hn::Or(hn::ShiftRight<16>(a[word]), hn::AndNot(lower_half, b[word])), 8 * word + 4);
      }
    }
  }
}

// sum += the blocks of v in order.
template <class D>
HWY_INLINE void AddInOrder([[maybe_unused]] D d, hn::Vec<D> v, V4& sum) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    sum = hn::Add(sum, v);
  } else {
    const hn::Half<D> half;
    AddInOrder(half, hn::LowerHalf(half, v), sum);
    AddInOrder(half, hn::UpperHalf(half, v), sum);
  }
}

// Scores of one row against a tile, heads in order.
HWY_INLINE void ScoreTile(const Queries& q, int row, const KeyTile& tile, float* scores, int valid) {
  const DF d;
  const D4 d4;
  const DI di;
  const D16 d16;
  const V4 zero = hn::Zero(d4);
  V4 sums[kGroups][2];
  for (auto& sum : sums) sum[0] = sum[1] = zero;
  for (int h = 0; h < q.heads; ++h) {
    const QueryHead& head = q.head[offset(row, q.heads) + static_cast<size_t>(h)];
    V4 dots[kGroups][2];
    for (auto& dot : dots) dot[0] = dot[1] = zero;
    for (int part = 0; part < kParts; ++part) {
      hn::Vec<D16> acc[kGroups];
      for (auto& sum : acc) sum = hn::Zero(d16);
      for (int k = 0; k < kBlock; ++k) {
        const auto code = hn::Load(d16, head.code[part][k]);
        for (int group = 0; group < kGroups; ++group) {
          acc[group] = hn::Add(acc[group], hn::Mul(code, hn::Load(d16, tile.key[group][part][k])));
        }
      }
      // Two exact products rather than one by the product of the scales, which may leave the range of a float.
      const VF scale = hn::Load(d, head.scale[part]);
      for (int group = 0; group < kGroups; ++group) {
        const auto words = hn::BitCast(di, acc[group]);
        const VF low = hn::ConvertTo(d, hn::ShiftRight<16>(hn::ShiftLeft<16>(words)));
        const VF high = hn::ConvertTo(d, hn::ShiftRight<16>(words));
        AddInOrder(d, hn::Mul(hn::Mul(low, scale), hn::Load(d, tile.scale[group][0][part])), dots[group][0]);
        AddInOrder(d, hn::Mul(hn::Mul(high, scale), hn::Load(d, tile.scale[group][1][part])), dots[group][1]);
      }
    }
    const V4 weight = hn::Set(d4, q.weight[offset(row, q.heads) + static_cast<size_t>(h)]);
    for (int group = 0; group < kGroups; ++group) {
      for (int half = 0; half < 2; ++half) {
        const V4 dot = dots[group][half];
        // A NaN passes: it is not below 0.
        const V4 relu = hn::IfThenElse(hn::Lt(dot, zero), zero, dot);
        sums[group][half] = hn::Add(sums[group][half], hn::Mul(relu, weight));
      }
    }
  }
  const V4 none = hn::Set(d4, -std::numeric_limits<float>::infinity());
  alignas(64) float lanes[kTileEntries];
  for (int i = 0; i < kTileEntries / 4; ++i) {
    const V4 sum = sums[i / 2][i % 2];
    hn::Store(hn::IfThenElse(hn::IsNaN(sum), none, sum), d4, lanes + 4 * i);
  }
  std::memcpy(scores, lanes, static_cast<size_t>(valid) * sizeof(float));
}

// -- queries
// -------------------------------------------------------------------------------------------------------------

// A.3 on one head.
void QuantiseQuery(const float* x, QueryHead& head) {
  const DF d;
  const DI di;
  const hn::Rebind<int16_t, DF> d16;
  constexpr float kFloor = kE2m1Max * std::numeric_limits<float>::min();
  for (int block = 0; block < kBlocks; ++block) {
    const float* values = x + block * kBlock;
    const int part = block / kVectorBlocks;
    const int lane = block % kVectorBlocks;
    alignas(64) int16_t code[kBlock] = {};
    float scale = std::numeric_limits<float>::quiet_NaN();
    VF amax = hn::Zero(d);
    bool finite = true;
    for (int i = 0; i < kBlock; i += N) {
      const VF magnitude = hn::Abs(hn::LoadU(d, values + i));
      finite = finite && hn::AllTrue(d, hn::Le(magnitude, hn::Set(d, std::numeric_limits<float>::max())));
      amax = hn::Max(amax, magnitude);
    }
    if (finite) {
      const uint8_t exponent = ceil_e8m0(std::max(hn::GetLane(hn::MaxOfLanes(d, amax)), kFloor) * (1.0f / kE2m1Max));
      scale = e8m0_to_float(exponent) * 0.25f;
      const VF inverse = hn::Set(d, 1.0f / e8m0_to_float(exponent));
      for (int i = 0; i < kBlock; i += N) {
        const VF v = hn::Mul(hn::LoadU(d, values + i), inverse);
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
        hn::Store(hn::DemoteTo(d16, whole), d16, code + i);
      }
    }
    const hn::FixedTag<int16_t, 8> eight;
    for (int k = 0; k < kBlock; ++k) hn::Store(hn::Set(eight, code[k]), eight, head.code[part][k] + 8 * lane);
    hn::Store(hn::Set(D4(), scale), D4(), head.scale[part] + 4 * lane);
  }
}

Queries MakeQueries(Context& context, const StepRows& rows, const IndexArgs& args) {
  const int heads = args.heads;
  const size_t row_heads = offset(rows.count, heads);
  float* qi = context.scratch<float>(kQuerySlot, row_heads * kIndexDim);
  float* weights = context.scratch<float>(kWeightSlot, row_heads);
  auto* queries = context.scratch<QueryHead>(kHeadSlot, row_heads);

  const auto head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kIndexDim) * heads));
  for (size_t i = 0; i < row_heads; ++i) weights[i] = round_bf16(bf16_to_float(args.head_weights[i]) * head_scale);

  const RopeAngles* angles = context.row_angles(*args.rope, rows);
  constexpr int kHeadWork = 16 * kIndexDim;
  const auto count = static_cast<int64_t>(row_heads);
  context.parallel(count, 1, count * kHeadWork, [&](int, int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t at = begin; at < end; ++at) {
      float* q = qi + offset(at, kIndexDim);
      WidenRow(args.queries + offset(at, kIndexDim), kIndexDim, q);
      RopeRow(q, kIndexDim, angles[at / heads]);
      if (args.hadamard) Hadamard(q);
      QuantiseQuery(q, queries[at]);
    }
  });
  return {queries, weights, heads};
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

// Rows [first, first + count) of one run, their scores against its entries, and what is done with them.
class IndexGroup {
 public:
  IndexGroup(const StepRows& rows, const IndexArgs& args, const Queries& queries, const RowRun& run, int first,
             int count)
      : rows_(rows), args_(args), queries_(queries), first_(first), count_(count), slot_(run.slot) {
    const int per_page = args.keys.per_page;
    most_ = visible(first + count - 1);
    if (args.mode != IndexArgs::Candidates::kNone) {
      ONELANE_CHECK((most_ + args.block_size - 1) / args.block_size <= 32 * args.candidate_words,
                    "the candidate bits of a row are too few");
    }
    const int pages = (most_ + per_page - 1) / per_page;
    ONELANE_CHECK(pages <= rows.pages_per_slot, "an entry beyond the sequence's page table");
    tiles_per_page_ = (per_page + kTileEntries - 1) / kTileEntries;
    tiles_ = scored(first + count - 1) ? pages * tiles_per_page_ : 0;
    stride_ = padded(pages * per_page);
  }

  int count() const { return count_; }
  int tiles() const { return tiles_; }
  int stride() const { return stride_; }
  int64_t tile_work() const { return kTileEntries * (int64_t{count_} * args_.heads * 4 + 64); }
  int64_t row_work() const { return int64_t{most_} * 12; }

  // Tiles [begin, end) of scores [count, stride].
  void Score(int begin, int end, KeyTile& tile, float* scores) const {
    const int per_page = args_.keys.per_page;
    for (int i = begin; i < end; ++i) {
      const int page = i / tiles_per_page_;
      const int in_page = i % tiles_per_page_ * kTileEntries;
      const int entry = page * per_page + in_page;
      if (entry >= most_) break;
      const int32_t number = rows_.page_table[offset(slot_, rows_.pages_per_slot) + static_cast<size_t>(page)];
      UnpackKeys(args_.keys.block(number), in_page, tile);
      const int valid = std::min(kTileEntries, per_page - in_page);
      for (int row = first_; row < first_ + count_; ++row) {
        if (visible(row) <= entry || !scored(row)) continue;
        ScoreTile(queries_, row, tile, scores + offset(row - first_, stride_) + entry, valid);
      }
    }
  }

  // Picks of rows [begin, end) of the group. `keys`: 2 * stride() integers of scratch, for what is selected by and, for
  // the blocks, their scores.
  void Pick(int begin, int end, float* scores, int32_t* keys) const {
    auto* block_scores = reinterpret_cast<float*>(keys + stride_);
    for (int i = begin; i < end; ++i) {
      const int row = first_ + i;
      float* row_scores = scores + offset(i, stride_);
      uint32_t* bits = args_.candidates == nullptr ? nullptr : args_.candidates + offset(row, args_.candidate_words);
      if (publish()) PublishCandidates(args_, row_scores, visible(row), block_scores, keys, bits);
      if (args_.mode == IndexArgs::Candidates::kApply && scored(row)) {
        ApplyCandidates(args_, bits, visible(row), row_scores);
      }
      int32_t* picks = args_.picks + offset(row, args_.topk);
      int taken = 0;
      SelectBest(row_scores, visible(row), args_.topk, keys, [&](int entry) HWY_ATTR { picks[taken++] = entry; });
      std::fill(picks + taken, picks + args_.topk, -1);
    }
  }

 private:
  bool publish() const { return args_.mode == IndexArgs::Candidates::kPublish; }
  int visible(int row) const { return (rows_.position[row] + 1) / args_.ratio; }
  bool scored(int row) const { return publish() || visible(row) > args_.topk; }

  const StepRows& rows_;
  const IndexArgs& args_;
  const Queries& queries_;
  int first_;
  int count_;
  int slot_;
  int most_ = 0;
  int tiles_per_page_ = 0;
  int tiles_ = 0;
  int stride_ = 0;
};

// One group by all threads.
void ShareGroup(Context& context, const IndexGroup& group) {
  const int stride = group.stride();
  float* scores = context.scratch<float>(kScoreSlot, offset(group.count(), stride));
  auto* tiles = context.scratch<KeyTile>(kTileSlot, static_cast<size_t>(context.threads()));
  context.parallel(group.tiles(), 1, group.tiles() * group.tile_work(), [&](int share, int64_t begin, int64_t end) {
    group.Score(static_cast<int>(begin), static_cast<int>(end), tiles[share], scores);
  });
  auto* keys = context.scratch<int32_t>(kOrderSlot, offset(2 * context.threads(), stride));
  context.parallel(group.count(), 1, group.count() * group.row_work(), [&](int share, int64_t begin, int64_t end) {
    group.Pick(static_cast<int>(begin), static_cast<int>(end), scores, keys + offset(2 * share, stride));
  });
}

// Every run by one thread; none has more than kRowsAtOnce rows.
void TakeRuns(Context& context, const StepRows& rows, const IndexArgs& args, const Queries& queries) {
  const auto group_of = [&](int64_t i) {
    return IndexGroup(rows, args, queries, rows.runs[i], rows.runs[i].first_row, rows.runs[i].count);
  };
  size_t scores = 0;
  int stride = 0;
  int64_t work = 0;
  for (int i = 0; i < rows.run_count; ++i) {
    const IndexGroup group = group_of(i);
    scores = std::max(scores, offset(group.count(), group.stride()));
    stride = std::max(stride, group.stride());
    work += group.tiles() * group.tile_work() + group.count() * group.row_work();
  }
  const auto threads = static_cast<size_t>(context.threads());
  float* score_spaces = context.scratch<float>(kScoreSlot, scores * threads);
  auto* tiles = context.scratch<KeyTile>(kTileSlot, threads);
  auto* keys = context.scratch<int32_t>(kOrderSlot, offset(2 * context.threads(), stride));
  context.take(rows.run_count, work, [&](int share, int64_t i) {
    const IndexGroup group = group_of(i);
    float* space = score_spaces + scores * static_cast<size_t>(share);
    group.Score(0, group.tiles(), tiles[share], space);
    group.Pick(0, group.count(), space, keys + offset(2 * share, stride));
  });
}

void Index(Context& context, const StepRows& rows, const IndexArgs& args) {
  const Queries queries = MakeQueries(context, rows, args);
  int largest = 0;
  for (int i = 0; i < rows.run_count; ++i) largest = std::max(largest, rows.runs[i].count);
  if (largest <= kRowsAtOnce && context.worth_taking(rows.run_count, largest, rows.count)) {
    return TakeRuns(context, rows, args, queries);
  }
  for (int i = 0; i < rows.run_count; ++i) {
    const RowRun& run = rows.runs[i];
    for (int first = 0; first < run.count; first += kRowsAtOnce) {
      ShareGroup(context,
                 IndexGroup(rows, args, queries, run, run.first_row + first, std::min(kRowsAtOnce, run.count - first)));
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
