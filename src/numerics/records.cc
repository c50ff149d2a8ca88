#include "numerics/records.h"

#include <cstring>
#include <span>

#include "numerics/formats.h"
#include "numerics/quantize.h"

namespace onelane {
namespace {

constexpr int kV4Nope = 448;
constexpr int kV4Block = 64;

void encode_v4(const float* values, uint8_t* data, uint8_t* scales) {
  for (int block = 0; block < kV4Nope / kV4Block; ++block) {
    const std::span<const float> part(values + block * kV4Block, kV4Block);
    scales[block] = quantize_fp8_block(part, data + block * kV4Block);
  }
  scales[kV4Nope / kV4Block] = 0;
  for (int i = kV4Nope; i < 512; ++i) {
    const uint16_t code = float_to_bf16(values[i]);
    std::memcpy(data + kV4Nope + 2 * (i - kV4Nope), &code, sizeof(code));
  }
}

void decode_v4(const uint8_t* data, const uint8_t* scales, float* values) {
  for (int i = 0; i < kV4Nope; ++i) values[i] = e4m3_to_float(data[i]) * e8m0_to_float(scales[i / kV4Block]);
  for (int i = kV4Nope; i < 512; ++i) {
    uint16_t code;
    std::memcpy(&code, data + kV4Nope + 2 * (i - kV4Nope), sizeof(code));
    values[i] = bf16_to_float(code);
  }
}

float unpack(const uint8_t* packed, int i) {
  return e2m1_to_float(static_cast<uint8_t>(packed[i / 2] >> (4 * (i & 1))));
}

}  // namespace

void encode_record(RecordFormat format, const float* values, uint8_t* data, uint8_t* scales) {
  const auto blocks = [&](int width, int block, int bytes_per_block, auto quantize) {
    for (int i = 0; i < width / block; ++i) {
      scales[i] =
          quantize(std::span<const float>(values + i * block, static_cast<size_t>(block)), data + i * bytes_per_block);
    }
  };
  switch (format) {
    case RecordFormat::kV4Fp8:
      return encode_v4(values, data, scales);
    case RecordFormat::kV41Fp8:
      return blocks(512, 32, 32, quantize_fp8_block);
    case RecordFormat::kV41Nvfp4:
      return blocks(512, 16, 8, quantize_nvfp4_block);
    case RecordFormat::kIndexMxfp4:
      return blocks(128, 32, 16, quantize_fp4_block);
  }
}

void decode_record(RecordFormat format, const uint8_t* data, const uint8_t* scales, float* values) {
  switch (format) {
    case RecordFormat::kV4Fp8:
      return decode_v4(data, scales, values);
    case RecordFormat::kV41Fp8:
      for (int i = 0; i < 512; ++i) values[i] = e4m3_to_float(data[i]) * e8m0_to_float(scales[i / 32]);
      return;
    case RecordFormat::kV41Nvfp4:
      for (int i = 0; i < 512; ++i) values[i] = unpack(data, i) * e4m3_to_float(scales[i / 16]);
      return;
    case RecordFormat::kIndexMxfp4:
      for (int i = 0; i < 128; ++i) values[i] = unpack(data, i) * e8m0_to_float(scales[i / 32]);
      return;
  }
}

}  // namespace onelane
