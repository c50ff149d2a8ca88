// Records by units of 8 entries: a warp takes 128 dims (a group) of a unit at a time, eight lanes an entry and two
// entries a lane. All lanes do the same, and ask for whole lines. Loading, and bringing to bf16 in shared memory.
//
// Decoding is exact. An e4m3 byte is spread so that its exponent and mantissa lie where those of a bf16 do: that reads
// as the value times 2^-120, also for subnormals, and one multiplication applies the record's scale and takes the 2^120
// back. The NaN codes of e4m3 read as +-480: encoders mark a record with NaN by its scale. e2m1 likewise, with 2^-126.
#pragma once

#include <cstdint>

#include "cuda/ptx/memory.h"
#include "kernels/attention/layout.h"

namespace onelane::cuda {

// An index list, ready for the kernel.
struct EntryList {
  const uint8_t* pages;
  const int32_t* indices;
  const int32_t* lengths;
  int64_t page_bytes;
  int64_t index_stride;
  int32_t width;
  int32_t records;  // in the pool
  int32_t page_records;
  uint32_t page_magic;  // index / page_records = index * page_magic >> page_shift, for any index >= 0
  int32_t page_shift;

  __device__ __forceinline__ int length(int row) const {
    return lengths == nullptr ? width : min(max(__ldcg(lengths + row), 0), width);
  }
  __device__ __forceinline__ bool names_record(int index) const { return index >= 0 && index < records; }
  // Of an index that names a record.
  __device__ __forceinline__ int page_of(int index) const {
    return static_cast<int>((static_cast<uint64_t>(index) * page_magic) >> page_shift);
  }
};

template <int kFormat>
inline constexpr int kDataBytes = attention::record_data_bytes(static_cast<onelane_kv_format>(kFormat));
template <int kFormat>
inline constexpr int kScaleBytes = attention::record_scale_bytes(static_cast<onelane_kv_format>(kFormat));

// Whether block `block` of 64 dims is stored as bf16: copied, not decoded.
template <int kFormat>
__device__ __forceinline__ bool is_plain(int block) {
  return kFormat == ONELANE_KV_BF16 || (kFormat == ONELANE_KV_V4 && block == 7);
}

// What is read where there is no entry. In every format that is zeros.
__device__ const uint4 kNoRecord[ONELANE_ATTENTION_DIM * 2 / sizeof(uint4)] = {};

// Its address, asked for where this is called: a miss of the constant cache, which had better not be between an index
// and its record.
__device__ __forceinline__ const uint8_t* no_record() {
  return static_cast<const uint8_t*>(ptx::hold_address(kNoRecord));
}

// Where a record's data begins, and how far behind its scales do.
struct RecordPlace {
  const uint8_t* data;
  int32_t to_scales;
  bool none;  // no entry: kNoRecord
};

template <int kFormat>
__device__ __forceinline__ RecordPlace place_of(const EntryList& list, int index, const uint8_t* nothing) {
  if (!list.names_record(index)) return {nothing, 0, true};
  constexpr int kData = kDataBytes<kFormat>;
  constexpr int kScales = kScaleBytes<kFormat>;
  const int page = list.page_of(index);
  const int slot = index - page * list.page_records;
  return {list.pages + page * list.page_bytes + slot * kData, list.page_records * kData + slot * (kScales - kData),
          false};
}

// What a lane has of a unit: dims [16 t, + 16) of block `block` of a group's two, of entries `entry` and `entry` + 4.
// Numbered so that 8 lanes in a row store to all banks.
struct UnitLane {
  int entry, block, t;

  explicit __device__ __forceinline__ UnitLane(int lane)
      : entry(lane / 16 * 2 + lane / 4 % 2), block(lane / 8 % 2), t(lane % 4) {}

  // Where in a unit's 8 rows of 128 swizzled bytes the 16 bytes `sixteenth` of entry `entry` go. For entry + 4 see
  // of_fourth, for the next 16 bytes ^ 16 (if `sixteenth` is even).
  __device__ __forceinline__ uint32_t place(int sixteenth) const { return entry * 128 + (sixteenth ^ entry) * 16; }
};
__device__ __forceinline__ uint32_t of_fourth(uint32_t place) { return (place ^ 64) + 512; }

// Bytes from a record's data and scales to those of 16 dims: quarter `t` of block `block` (of 8). Where a block is
// plain, to something in the record.
template <int kFormat>
__device__ __forceinline__ int data_offset(int block, int t) {
  return kFormat == ONELANE_KV_V41_FP4 ? 32 * block + 8 * t : 64 * block + 16 * t;
}
template <int kFormat>
__device__ __forceinline__ int scale_offset(int block, int t) {
  return kFormat == ONELANE_KV_V41_FP4   ? 4 * block + t
         : kFormat == ONELANE_KV_V41_FP8 ? 2 * block + t / 2
                                         : min(block, 6);
}

// A lane's part of a group as it lies in memory, of its two entries. bf16 is copied and has no part here.
struct GroupPart {
  uint4 data[2];  // of e2m1 the first half
};

template <int kFormat>
__device__ __forceinline__ void load_group(const RecordPlace (&place)[2], int group, const UnitLane& mine,
                                           GroupPart& part) {
  static_assert(kFormat != ONELANE_KV_BF16);
  const int block = 2 * group + mine.block;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint8_t* data = place[i].data + data_offset<kFormat>(block, mine.t);
    if constexpr (kFormat == ONELANE_KV_V41_FP4) {
      const uint2 half = ptx::load_once(reinterpret_cast<const uint2*>(data));
      part.data[i].x = half.x;
      part.data[i].y = half.y;
    } else {
      part.data[i] = ptx::load_once(reinterpret_cast<const uint4*>(data));
    }
  }
}

// The scales of the two entries' 16 dims.
template <int kFormat>
__device__ __forceinline__ void load_scales(const RecordPlace (&place)[2], int group, const UnitLane& mine,
                                            uint32_t (&scale)[2]) {
  const int offset = scale_offset<kFormat>(2 * group + mine.block, mine.t);
#pragma unroll
  for (int i = 0; i < 2; ++i) scale[i] = ptx::load_byte_once(place[i].data + place[i].to_scales + offset);
}

// The same of all four groups, on their way in four registers an entry, then a byte each.
template <int kFormat>
__device__ __forceinline__ void load_all_scales(const RecordPlace& place, const UnitLane& mine, uint32_t (&raw)[4]) {
  const uint8_t* scales = place.data + place.to_scales;
  if constexpr (kFormat == ONELANE_KV_V4) {
    const uint2 all = ptx::load_once(reinterpret_cast<const uint2*>(scales));
    raw[0] = all.x;
    raw[1] = all.y;
  } else if constexpr (kFormat == ONELANE_KV_V41_FP8) {
    const uint4 all = ptx::load_once(reinterpret_cast<const uint4*>(scales));
    raw[0] = all.x;
    raw[1] = all.y;
    raw[2] = all.z;
    raw[3] = all.w;
  } else {
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      raw[group] = ptx::load_byte_once(scales + scale_offset<kFormat>(2 * group + mine.block, mine.t));
    }
  }
}
template <int kFormat>
__device__ __forceinline__ uint32_t pack_scales(const uint32_t (&raw)[4], const UnitLane& mine) {
  if constexpr (kFormat == ONELANE_KV_V4) {
    return ptx::permute(raw[0], raw[1], mine.block == 0 ? 0x6420 : 0x6531);  // block 7 has none: 6 again
  } else {
    const uint32_t byte = kFormat == ONELANE_KV_V41_FP8 ? 2 * mine.block + mine.t / 2 : 0;
    const uint32_t both = byte | (byte + 4) << 4;
    return ptx::permute(ptx::permute(raw[0], raw[1], both), ptx::permute(raw[2], raw[3], both), 0x5410);
  }
}

// Two e4m3 bytes of `bytes` as bf16 times 2^-120; the selector extends their signs.
__device__ __forceinline__ uint32_t spread_e4m3(uint32_t bytes, uint32_t selector) {
  return (ptx::permute(bytes, 0, selector) * 16u) & 0x87f087f0u;
}

// Pair i of the 8 e2m1 values of a word (`even`: its low nibbles, a byte each; `odd`: the others) as bf16 times 2^-126.
__device__ __forceinline__ uint32_t spread_e2m1(uint32_t even, uint32_t odd, int i) {
  // Byte i of either in the low byte of a half; no byte has its sign set, so extending one gives zero.
  const uint32_t pair = ptx::permute(even, odd, 0xc480u + 0x1111u * i);
  return (pair * 0x1040u) & 0x81c081c0u;  // sign << 15 | value << 6
}

constexpr uint32_t kTwoNan = 0x7fc07fc0u;  // two bf16 each
constexpr uint32_t kTwoTo120 = 0x7b807b80u;
constexpr uint32_t kTwoTo126 = 0x7e807e80u;

// Scales above these codes take two multiplications, or the factor would be infinite: 2^7 and 2.
constexpr int kLargestE8m0Step = 134;
constexpr int kLargestE4m3Step = 0x3f;

template <int kFormat>
inline constexpr int kLargestStep = kFormat == ONELANE_KV_V41_FP4 ? kLargestE4m3Step : kLargestE8m0Step;

// Whether one of four packed scales is: not zero.
template <int kFormat>
__device__ __forceinline__ uint32_t above_largest_step(uint32_t scales) {
  static_assert(kLargestE4m3Step == 0x3f && kLargestE8m0Step == 0x7f + 7);
  if (kFormat == ONELANE_KV_V41_FP4) return scales & 0xc0c0c0c0u;
  return scales & ((scales & 0x7f7f7f7fu) + 0x79797979u) & 0x80808080u;
}

// 16 e4m3 values.
template <bool kTwoSteps>
__device__ __forceinline__ void decode_e4m3(const uint4& data, uint32_t scale, uint32_t (&out)[8]) {
  const uint32_t words[4] = {data.x, data.y, data.z, data.w};
  const int code = static_cast<int>(scale);
  const uint32_t factor = ((kTwoSteps ? min(code, kLargestE8m0Step) : code) + 120) * 0x00800080u;
  uint32_t rest = 0x3f803f80u;
  if (kTwoSteps && code > kLargestE8m0Step) rest = code == 255 ? kTwoNan : (code - 7) * 0x00800080u;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    out[i] = ptx::mul_bf16(spread_e4m3(words[i / 2], i % 2 == 0 ? 0x9180 : 0xb3a2), factor);
    if (kTwoSteps) out[i] = ptx::mul_bf16(out[i], rest);
  }
}

// 16 e2m1 values with one e4m3 scale, likewise.
template <bool kTwoSteps>
__device__ __forceinline__ void decode_e2m1(uint32_t low, uint32_t high, uint32_t code, uint32_t (&out)[8]) {
  uint32_t scale = ptx::mul_bf16(spread_e4m3(code, 0x8080), kTwoTo120);
  if (kTwoSteps && (code & 0x7f) == 0x7f) scale = kTwoNan;
  if (!kTwoSteps) scale = ptx::mul_bf16(scale, kTwoTo126);
  const uint32_t words[2] = {low, high};
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const uint32_t even = words[w] & 0x0f0f0f0fu;
    const uint32_t odd = (words[w] >> 4) & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = spread_e2m1(even, odd, i);
      out[4 * w + i] = ptx::mul_bf16(kTwoSteps ? ptx::mul_bf16(bits, kTwoTo126) : bits, scale);
    }
  }
}

// 16 dims to a tile.
__device__ __forceinline__ void store_sixteen(uint32_t at, const uint32_t (&v)[8]) {
  ptx::store_shared(at, make_uint4(v[0], v[1], v[2], v[3]));
  ptx::store_shared(at ^ 16, make_uint4(v[4], v[5], v[6], v[7]));
}

// A part, brought to bf16, to a tile: `to` is where the unit begins in the group's first block, the second is `apart`
// bytes on.
template <int kFormat, bool kTwoSteps>
__device__ __forceinline__ void store_group(const GroupPart& part, const uint32_t (&scale)[2], int group,
                                            const UnitLane& mine, uint32_t to, uint32_t apart) {
  const uint32_t first = to + mine.block * apart + mine.place(2 * mine.t);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t v[8];
    if constexpr (kFormat == ONELANE_KV_V41_FP4) {
      decode_e2m1<kTwoSteps>(part.data[i].x, part.data[i].y, scale[i], v);
    } else {
      decode_e4m3<kTwoSteps>(part.data[i], scale[i], v);
    }
    if (is_plain<kFormat>(2 * group + mine.block)) continue;
    store_sixteen(i == 0 ? first : of_fourth(first), v);
  }
}

}  // namespace onelane::cuda
