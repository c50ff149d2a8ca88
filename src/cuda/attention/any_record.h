// Records whose format is known at run time only, on any device from compute capability 8.0 on. (records.h is the fast
// one: a format a template, and products of bf16 that came with 9.0.)
//
// A warp takes 64 dims of 8 entries at a time, its lane 4 g + t 16 dims of entry g: its stripe. Decoding is exact, by
// the bits: a code's exponent and mantissa are moved to where those of a bf16 lie, which reads as the value times a
// power of two, also for subnormals; two products take that power back and apply the scale.
#pragma once

#include <cstdint>

#include "cuda/attention/records.h"
#include "cuda/ptx/load.h"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"

namespace onelane::cuda {

// Sizes of a list's records, as kernel argument.
struct RecordShape {
  int32_t format;  // onelane_kv_format
  int32_t data_bytes, scale_bytes;
};

// Where a record lies; nulls when an index names none.
struct FoundRecord {
  const uint8_t* data;
  const uint8_t* scales;
};

__device__ __forceinline__ FoundRecord find_record(const EntryList& list, const RecordShape& record, int index) {
  if (!list.names_record(index)) return {nullptr, nullptr};
  const int page = list.page_of(index);
  const int64_t slot = index - page * list.page_records;
  const uint8_t* start = list.pages + page * list.page_bytes;
  return {start + slot * record.data_bytes,
          start + int64_t{list.page_records} * record.data_bytes + slot * record.scale_bytes};
}

enum class Coding : int { kPlain, kE4m3, kE2m1 };

// What a lane takes of a record: offsets from its data and its scales.
struct Stripe {
  Coding coding;
  int data, scale;
};

// Dims [64 block + 16 t, + 16).
__device__ __forceinline__ Stripe stripe_of(int format, int block, int t) {
  switch (format) {
    case ONELANE_KV_BF16:
      return {Coding::kPlain, 128 * block + 32 * t, 0};
    case ONELANE_KV_V4:
      if (block == 7) return {Coding::kPlain, 448 + 32 * t, 0};
      return {Coding::kE4m3, 64 * block + 16 * t, block};
    case ONELANE_KV_V41_FP8:
      return {Coding::kE4m3, 64 * block + 16 * t, 2 * block + t / 2};
    default:
      return {Coding::kE2m1, 32 * block + 8 * t, 4 * block + t};
  }
}

// A stripe as it lies in memory: 32, 16 or 8 bytes and the code of their scale. Zeros where there is no record.
struct RawStripe {
  uint4 low, high;
  uint32_t scale;
};

__device__ __forceinline__ RawStripe load_stripe(const FoundRecord& record, const Stripe& stripe) {
  const bool wanted = record.data != nullptr;
  const uint8_t* data = record.data + stripe.data;
  RawStripe raw = {};
  if (stripe.coding == Coding::kE2m1) {
    const uint2 half = ptx::load_once_or_zero(reinterpret_cast<const uint2*>(data), wanted);
    raw.low.x = half.x;
    raw.low.y = half.y;
  } else {
    raw.low = ptx::load_once_or_zero(reinterpret_cast<const uint4*>(data), wanted);
  }
  if (stripe.coding == Coding::kPlain) {
    raw.high = ptx::load_once_or_zero(reinterpret_cast<const uint4*>(data) + 1, wanted);
  } else {
    raw.scale = wanted ? ptx::load_byte_once(record.scales + stripe.scale) : 0;
  }
  return raw;
}

__device__ __forceinline__ uint32_t product_bf16(uint32_t a, uint32_t b) {
  return ptx::fma_bf16(a, b, 0x80008000u);  // adding -0 changes nothing, not even the sign of a zero
}

// The stripe as bf16. The NaN codes of e4m3 read as +-480: encoders mark a record with NaN by its scale.
__device__ __forceinline__ void decode_stripe(Coding coding, const RawStripe& raw, uint32_t (&out)[8]) {
  const uint32_t words[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                             raw.high.x, raw.high.y, raw.high.z, raw.high.w};
  if (coding == Coding::kPlain) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = words[i];
  } else if (coding == Coding::kE4m3) {
    // e8m0: the exponent of a bf16 as it is, but for its ends: 2^-127 is a subnormal, 255 a NaN.
    const uint32_t scale = raw.scale == 255 ? kTwoNan : raw.scale == 0 ? 0x00400040u : raw.scale * 0x00800080u;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = product_bf16(product_bf16(spread_e4m3(words[i / 2], i % 2 == 0 ? 0x9180 : 0xb3a2), kTwoTo120), scale);
    }
  } else {
    const bool is_nan = (raw.scale & 0x7f) == 0x7f;
    const uint32_t scale = is_nan ? kTwoNan : product_bf16(spread_e4m3(raw.scale, 0x8080), kTwoTo120);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = words[i / 4];
      const uint32_t bits = spread_e2m1(word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu, i % 4);
      out[i] = product_bf16(product_bf16(bits, kTwoTo126), scale);
    }
  }
}

}  // namespace onelane::cuda
