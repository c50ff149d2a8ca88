// The byte formats of cached keys and values, and where a record lies in a ring or a page (spec/model.md section 4).
//
// Every cache block (one sequence's window ring, or one owner layer's part of one page) is planar: first the data of
// all its records, then their scales. A record therefore has no address of its own; `RecordBlock` finds its two halves.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onelane {

// Constants of the family that every published checkpoint has and the kernels are built for.
inline constexpr int kHeadDim = 512;   // one KV vector per token, key and value at once
inline constexpr int kRopeDim = 64;    // its last dims carry RoPE
inline constexpr int kIndexDim = 128;  // indexer query and key

enum class RecordFormat : uint8_t {
  kV4Fp8,      // 584 B: 448 e4m3 | 64 bf16 (rope); scales: 7 e8m0 (one per 64) + 1 zero byte. V4 window and compressed.
  kV41Fp8,     // 528 B: 512 e4m3; scales: 16 e8m0 (one per 32). V4.1 window.
  kV41Nvfp4,   // 288 B: 256 B of e2m1 pairs, low nibble = even dim; scales: 32 e4m3 (one per 16). V4.1 compressed.
  kIndexMxfp4  // 68 B: 64 B of e2m1 pairs; scales: 4 e8m0 (one per 32). Index keys of both generations.
};

constexpr int record_data_bytes(RecordFormat format) {
  switch (format) {
    case RecordFormat::kV4Fp8:
      return 576;
    case RecordFormat::kV41Fp8:
      return 512;
    case RecordFormat::kV41Nvfp4:
      return 256;
    case RecordFormat::kIndexMxfp4:
      return 64;
  }
  return 0;
}

constexpr int record_scale_bytes(RecordFormat format) {
  switch (format) {
    case RecordFormat::kV4Fp8:
      return 8;
    case RecordFormat::kV41Fp8:
      return 16;
    case RecordFormat::kV41Nvfp4:
      return 32;
    case RecordFormat::kIndexMxfp4:
      return 4;
  }
  return 0;
}

constexpr int record_bytes(RecordFormat format) { return record_data_bytes(format) + record_scale_bytes(format); }

// How many values a record holds: 512, or 128 for an index key.
constexpr int record_width(RecordFormat format) { return format == RecordFormat::kIndexMxfp4 ? 128 : 512; }

// A planar block of `capacity` records.
struct RecordBlock {
  std::byte* base = nullptr;
  RecordFormat format = RecordFormat::kV41Fp8;
  int capacity = 0;

  static constexpr size_t bytes(RecordFormat format, int capacity) {
    return static_cast<size_t>(capacity) * static_cast<size_t>(record_bytes(format));
  }
  uint8_t* data(int slot) const {
    return reinterpret_cast<uint8_t*>(base) + static_cast<size_t>(slot) * record_data_bytes(format);
  }
  uint8_t* scales(int slot) const {
    return reinterpret_cast<uint8_t*>(base) + static_cast<size_t>(capacity) * record_data_bytes(format) +
           static_cast<size_t>(slot) * record_scale_bytes(format);
  }
};

// Quantises one row of record_width(format) values into a record (appendix A.1, A.3, A.4; the rope part of kV4Fp8 is
// rounded to bf16). Values are taken as they are: norm, RoPE and Hadamard come before.
void encode_record(RecordFormat format, const float* values, uint8_t* data, uint8_t* scales);

// The record's values, each exactly a bf16 (products of the codes fit its mantissa). A NaN scale gives NaN values.
void decode_record(RecordFormat format, const uint8_t* data, const uint8_t* scales, float* values);

}  // namespace onelane
