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
// Whether a lane copies a row's scales of a whole unit at once, and what a warp needs for those of two units.
template <int kQuads>
inline constexpr bool kScalesByUnit = kStages<kQuads> == 2 || kStages<kQuads> == 4;
template <int kQuads>
inline constexpr int kUnitScaleBytes = kScalesByUnit<kQuads> ? kScaleBytes * kStages<kQuads> : 0;
template <int kQuads>
inline constexpr int kSlotBytes = kWeightBytes + (kScalesByUnit<kQuads> ? 0 : kScaleBytes);

// The copying end of a warp's ring.
template <bool kDown, int kWidth, int kSlots, int kQuads>
class Copier {
 public:
  // `unit_scales`: of kScalesByUnit, places for those of two units.
  __device__ __forceinline__ Copier(const ProductArgs<kWidth>& args, const Tile<kWidth>* tiles, const Walk& walk,
                                    uint32_t ring, uint32_t unit_scales)
      : args_(args),
        tiles_(tiles),
        place_(piece_place(threadIdx.x % 32 / 4, threadIdx.x % 4)),
        unit_scales_(unit_scales + threadIdx.x % 32 * 4 * kStages<kQuads>),
        both_unit_scales_(2 * unit_scales_ + kUnitScaleBytes<kQuads>),
        walk_(walk) {
    enter();
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) copy_next(ring + i * kSlotBytes<kQuads>);
  }

  // The next stage into `slot`. For all lanes, which are done with what the slot had.
  __device__ __forceinline__ void copy_next(uint32_t slot) {
    if (stage_ == stages_) next_unit();
    if (walk_.left > 0) {
      const uint32_t to = slot + place_;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const std::byte* from = weights_[m] + stage_ * kStageBytes;
        ptx::copy_async<16>(to + m * 1024, from);
        ptx::copy_async<16>(to + m * 1024 + 512, from + half_);
      }
      if (fp4_) copy_scales(slot, stage_);
      ++stage_;
    }
    ptx::copies_commit();
  }
  // The same where it is known that the stage is of fp4.
  __device__ __forceinline__ void copy_next_fp4(uint32_t slot) {
    if constexpr (kQuads == 0) return copy_next(slot);
    if (stage_ == stages_) next_unit();
    if (walk_.left > 0) {
      const uint32_t to = slot + place_;
      constexpr int kHalf = 8 * kRowBytes<kQuads>;
      const int from = stage_ * kStageBytes;
      ptx::copy_async_at<0, 0>(to, weights_[0] + from);
      ptx::copy_async_at<512, kHalf>(to, weights_[0] + from);
      ptx::copy_async_at<1024, 0>(to, weights_[1] + from);
      ptx::copy_async_at<1536, kHalf>(to, weights_[1] + from);
      copy_scales(slot, stage_);
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
      constexpr int kFrom = kStage % kStages<kQuads> * kStageBytes, kHalf = kFrom + 8 * kRowBytes<kQuads>;
      const uint32_t to = slot + place_;
      ptx::copy_async_at<0, kFrom>(to, weights_[0]);
      ptx::copy_async_at<512, kHalf>(to, weights_[0]);
      ptx::copy_async_at<1024, kFrom>(to, weights_[1]);
      ptx::copy_async_at<1536, kHalf>(to, weights_[1]);
      copy_scales(slot, kStage % kStages<kQuads>);
      stage_ = kStage % kStages<kQuads> + 1;
    }
    ptx::copies_commit();
  }

 private:
  __device__ __forceinline__ void copy_scales(uint32_t slot, int stage) {
    if constexpr (kScalesByUnit<kQuads>) {
      if (stage == 0) ptx::copy_async<4 * kStages<kQuads>>(unit_scales_, scale_);
    } else {
      ptx::copy_async<4>(slot + kWeightBytes + threadIdx.x % 32 * 4, scale_ + 4 * stage);
    }
  }
  __device__ __forceinline__ void next_unit() {
    unit_scales_ = both_unit_scales_ - unit_scales_;
    if (!walk_.next(args_) || !fp4_) return enter();
    const Layout& layout = layout_of(args_, tiles_[walk_.tile]);
    const int row_bytes = kQuads == 0 ? layout.row_bytes : kRowBytes<kQuads>;
    const int scale_row = kQuads == 0 ? layout.scale_row : kScaleRow<kQuads>;
#pragma unroll
    for (int m = 0; m < 2; ++m) weights_[m] += kUnitRows<kDown> * row_bytes;
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
    half_ = 8 * layout.row_bytes;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      weights_[m] = rows.data[m] + static_cast<int64_t>(g) * layout.row_bytes + (segment.first * kStageBytes + 16 * t);
    }
    const int row = threadIdx.x % 32;
    scale_ = (row < kTileRows ? rows.scale[0] : rows.scale[1]) + row % kTileRows * layout.scale_row + 4 * segment.first;
  }

  const ProductArgs<kWidth>& args_;
  const Tile<kWidth>* tiles_;
  uint32_t place_, unit_scales_, both_unit_scales_;
  Walk walk_;
  int stage_ = 0, stages_ = -1;  // of the unit: to be copied next, all
  bool fp4_ = false;
  int half_ = 0;  // bytes of 8 rows
  const std::byte* weights_[2] = {};
  const uint8_t* scale_ = nullptr;
};

}  // namespace onelane::cuda::moe
