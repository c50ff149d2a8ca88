// Records in registers: a warp reads an entry at a time, a lane 16 of its dims, so that an entry costs the memory
// system as few requests as it can. Loading one, and bringing it to bf16.
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
    return lengths == nullptr ? width : min(max(__ldg(lengths + row), 0), width);
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

// Where a record's data begins, and how far behind its scales do. data null: no entry.
struct RecordPlace {
  const uint8_t* data;
  int32_t to_scales;
};

template <int kFormat>
__device__ __forceinline__ RecordPlace place_of(const EntryList& list, int index) {
  if (!list.names_record(index)) return {nullptr, 0};
  constexpr int kData = kDataBytes<kFormat>;
  constexpr int kScales = kScaleBytes<kFormat>;
  const int page = list.page_of(index);
  const int slot = index - page * list.page_records;
  return {list.pages + page * list.page_bytes + slot * kData, list.page_records * kData + slot * (kScales - kData)};
}

// A lane's share of a record, as it lies in memory.
struct RawShare {
  uint4 data;
  uint32_t scale;
};

// Of a block that is not plain. Where there is no entry nothing is read, data is whatever it was, which decodes to
// something finite, and the scale is one that makes it zero.
template <int kFormat>
__device__ __forceinline__ RawShare load_share(const RecordPlace& place, int block, int t) {
  const bool wanted = place.data != nullptr;
  RawShare raw;
  if constexpr (kFormat == ONELANE_KV_V41_FP4) {
    const uint2 half = ptx::load_stream(reinterpret_cast<const uint2*>(place.data) + 4 * block + t, wanted);
    raw.data = make_uint4(half.x, half.y, 0, 0);
    raw.scale = ptx::load_byte(place.data + place.to_scales + 4 * block + t, wanted, 0);
  } else {
    raw.data = ptx::load_stream(reinterpret_cast<const uint4*>(place.data) + 4 * block + t, wanted);
    const int at = kFormat == ONELANE_KV_V4 ? block : 2 * block + t / 2;
    raw.scale = ptx::load_byte(place.data + place.to_scales + at, wanted, static_cast<uint32_t>(-120));
  }
  return raw;
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

// kTwoSteps: codes above kLargestE8m0Step occur. `turned`: the last 8 of the 16 values first.
template <bool kTwoSteps>
__device__ __forceinline__ void decode_e4m3(const RawShare& raw, bool turned, uint32_t (&out)[8]) {
  const uint4 d = raw.data;
  const uint32_t words[4] = {turned ? d.z : d.x, turned ? d.w : d.y, turned ? d.x : d.z, turned ? d.y : d.w};
  const int code = static_cast<int>(raw.scale);
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
__device__ __forceinline__ void decode_e2m1(const RawShare& raw, bool turned, uint32_t (&out)[8]) {
  uint32_t scale = ptx::mul_bf16(spread_e4m3(raw.scale, 0x8080), kTwoTo120);
  if (kTwoSteps && (raw.scale & 0x7f) == 0x7f) scale = kTwoNan;
  if (!kTwoSteps) scale = ptx::mul_bf16(scale, kTwoTo126);
  const uint32_t words[2] = {turned ? raw.data.y : raw.data.x, turned ? raw.data.x : raw.data.y};
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

}  // namespace onelane::cuda
