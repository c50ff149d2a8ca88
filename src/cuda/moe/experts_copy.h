// How the experts' products (experts_product.cu) get at weights: each warp copies its segment's stages into a ring of
// its own, ahead of the one that it works on.
#pragma once

#include "cuda/moe/experts_few.h"
#include "cuda/moe/experts_weights.h"
#include "cuda/ptx/cluster.h"

namespace onelane::cuda::moe {

template <int kWidth>
struct ProductArgs {
  FewPairs few;
  const Tile<kWidth>* tiles;  // unless few
  const int32_t* tile_count;  // unless few
  Activations x;
  const bf16* plain_x;  // to be quantised
  Layout routed, shared;
  ExpertPointers shared_expert;
  int most_stages;  // of a segment
  int units_per_tile;
  int shared_tiles;
  int routed_pairs;
  uint64_t row_magic;  // pair / topk = pair * row_magic >> 32
  // up: of a pair
  const float* weights;
  float limit;
  bf16* out;  // [pairs, out_width]
  int out_width;
};

template <class Tile, class Args>
__device__ __forceinline__ const Layout& layout_of(const Args& args, const Tile& tile) {
  return tile.shared != 0 ? args.shared : args.routed;
}

// The two times 16 rows of a unit, from the same matrix or from two.
struct Rows {
  const std::byte* data[2];  // at the first row
  const uint8_t* scale[2];   // at the first row's
};
template <bool kDown>
inline constexpr int kUnitRows = kDown ? 2 * kTileRows : kTileRows;  // of a matrix
template <bool kDown, int kWidth>
__device__ __forceinline__ Rows rows_of(const ProductArgs<kWidth>& args, const Tile<kWidth>& tile, int part) {
  const Layout& layout = layout_of(args, tile);
  const ExpertPointers& expert = tile.expert;
  const int first = part * kUnitRows<kDown>, second = first + (kDown ? kTileRows : 0);
  const auto row = [&](const std::byte* data, int at) { return data + static_cast<int64_t>(at) * layout.row_bytes; };
  const auto scales = [&](const uint8_t* scale, int at) {
    return scale + static_cast<int64_t>(at >> layout.row_shift) * layout.scale_row;
  };
  return {{row(kDown ? expert.w2 : expert.w1, first), row(kDown ? expert.w2 : expert.w3, second)},
          {scales(kDown ? expert.w2_scale : expert.w1_scale, first),
           scales(kDown ? expert.w2_scale : expert.w3_scale, second)}};
}

// Shapes that the products of few columns know beforehand: rows of kQuads stages of fp4. 0: any shape.
template <int kQuads>
inline constexpr int kRowBytes = kQuads * kStageBytes;
template <int kQuads>
inline constexpr int kScaleRow = kRowBytes<kQuads> / 16;
// Stages of every warp's segment. 0: not known, or not the same.
template <int kQuads>
inline constexpr int kStages = kQuads % kSegments == 0 ? kQuads / kSegments : 0;
// Which segment the calling warp has. If some are longer, they go to the schedulers of warps 0 to 3 in order, and in
// the later half of the blocks, of which a multiprocessor has one, to the others first.
template <int kQuads>
__device__ __forceinline__ int own_segment() {
  const int warp = threadIdx.x / 32;
  return kStages<kQuads> > 0 || 2 * blockIdx.x < gridDim.x ? warp : (warp + 2) % kSegments;
}
// Scales of fp4 are copied for a whole unit at once: of each row so many words.
inline constexpr int kWordBytes = 2 * kTileRows * 4;  // one of each

// The lane's row in a warp's places for them, one unit's after the other. Whoever copies is ahead by as many stages as
// there are slots but one, which may be as many units.
template <int kSlots>
class ScalePlaces {
 public:
  __device__ __forceinline__ ScalePlaces(uint32_t of_warp, int words)
      : at_(of_warp + threadIdx.x % 32 * 4 * words),
        apart_(kWordBytes * words),
        end_(ptx::hold(at_ + kSlots * apart_)) {}
  static constexpr __host__ __device__ int bytes(int words) { return kSlots * kWordBytes * words; }
  __device__ __forceinline__ uint32_t at() const { return at_; }
  __device__ __forceinline__ void next() {
    at_ += apart_;
    if (at_ == end_) at_ -= kSlots * apart_;
  }

 private:
  uint32_t at_, apart_, end_;
};
template <int kQuads, class Args>
__device__ __forceinline__ int most_stages(const Args& args) {
  return kQuads > 0 ? (kQuads + kSegments - 1) / kSegments : args.most_stages;
}

// The copying end of a warp's ring.
template <bool kDown, int kWidth, int kSlots, int kQuads>
class Copier {
 public:
  __device__ __forceinline__ Copier(const ProductArgs<kWidth>& args, const Tile<kWidth>* tiles, const Walk& walk,
                                    uint32_t ring, const ScalePlaces<kSlots>& scales)
      : args_(args),
        tiles_(tiles),
        place_(ptx::hold(piece_place(threadIdx.x % 32 / 4, threadIdx.x % 4))),
        scales_(scales),
        walk_(walk) {
    enter();
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy_next(ring + i * kWeightBytes);
  }

  // The next stage into `slot`. For all lanes, which are done with what the slot had.
  __device__ __forceinline__ void copy_next(uint32_t slot) {
    if (stage_ == stages_) next_unit();
    if (walk_.left > 0) {
      const uint32_t to = slot + place_;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          ptx::copy_async<16>(to + m * 1024 + half * 512, weights_[m][half] + stage_ * kStageBytes);
        }
      }
      if (fp4_ && stage_ == 0) copy_scales();
      ++stage_;
    }
    ptx::copies_commit();
  }
  // The same of a unit with kStages, where it is known that kStage is the next, or the first of the unit behind
  // it if kStage is kStages, and so on.
  template <int kStage>
  __device__ __forceinline__ void copy_known(uint32_t slot) {
    if constexpr (kStage == kStages<kQuads>) next_unit();
    if (walk_.left > 0) {
      constexpr int kFrom = kStage % kStages<kQuads> * kStageBytes;
      const uint32_t to = slot + place_;
      ptx::copy_async_at<0, kFrom>(to, weights_[0][0]);
      ptx::copy_async_at<512, kFrom>(to, weights_[0][1]);
      ptx::copy_async_at<1024, kFrom>(to, weights_[1][0]);
      ptx::copy_async_at<1536, kFrom>(to, weights_[1][1]);
      if constexpr (kStage % kStages<kQuads> == 0) copy_scales();
      // Nobody asks but after a unit's last stage.
      if constexpr (kStage == kStages<kQuads> + kSlots - 2) stage_ = kStage % kStages<kQuads> + 1;
    }
    ptx::copies_commit();
  }

 private:
  // Of the unit that was entered.
  __device__ __forceinline__ void copy_scales() {
    if constexpr (kStages<kQuads> == 2 || kStages<kQuads> == 4) {
      ptx::copy_async<4 * kStages<kQuads>>(scales_.at(), scale_);
    } else {
      for (int i = 0; i < stages_; ++i) ptx::copy_async<4>(scales_.at() + 4 * i, scale_ + 4 * i);
    }
  }
  __device__ __forceinline__ void next_unit() {
    scales_.next();
    if (!walk_.next(args_) || !fp4_) return enter();
    const Layout& layout = layout_of(args_, tiles_[walk_.tile]);
    const int row_bytes = kQuads == 0 ? layout.row_bytes : kRowBytes<kQuads>;
    const int scale_row = kQuads == 0 ? layout.scale_row : kScaleRow<kQuads>;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) weights_[m][half] += kUnitRows<kDown> * row_bytes;
    }
    scale_ += kUnitRows<kDown> * scale_row;
    stage_ = 0;
  }
  __device__ __forceinline__ void enter() {
    if (walk_.left <= 0) return;
    const Tile<kWidth>& tile = tiles_[walk_.tile];
    const Layout& layout = layout_of(args_, tile);
    const Segment segment(layout, own_segment<kQuads>());
    const Rows rows = rows_of<kDown>(args_, tile, walk_.part);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    stage_ = 0;
    stages_ = segment.count;
    if (stages_ == 0) walk_.left = 0;  // nor has the warp any in another unit
    fp4_ = layout.fp4;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights_[m][half] = rows.data[m] + static_cast<int64_t>(g + 8 * half) * layout.row_bytes +
                            (segment.first * kStageBytes + 16 * t);
      }
    }
    const int row = threadIdx.x % 32;
    scale_ = (row < kTileRows ? rows.scale[0] : rows.scale[1]) + row % kTileRows * layout.scale_row + 4 * segment.first;
  }

  const ProductArgs<kWidth>& args_;
  const Tile<kWidth>* tiles_;
  uint32_t place_;
  ScalePlaces<kSlots> scales_;  // of the unit that is copied
  Walk walk_;
  int stage_ = 0, stages_ = -1;  // of the unit: to be copied next, all
  bool fp4_ = false;
  const std::byte* weights_[2][2] = {};  // of row g and g + 8
  const uint8_t* scale_ = nullptr;
};

}  // namespace onelane::cuda::moe
