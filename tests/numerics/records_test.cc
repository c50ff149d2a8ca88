#include "numerics/records.h"

#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "numerics/formats.h"

namespace onelane {
namespace {

constexpr RecordFormat kFormats[] = {RecordFormat::kV4Fp8, RecordFormat::kV41Fp8, RecordFormat::kV41Nvfp4,
                                     RecordFormat::kIndexMxfp4};

struct Record {
  explicit Record(RecordFormat f)
      : format(f), data(record_data_bytes(f), 0xa5), scales(record_scale_bytes(f), 0xa5), values(record_width(f)) {}
  void encode() { encode_record(format, values.data(), data.data(), scales.data()); }
  std::vector<float> decode() const {
    std::vector<float> out(record_width(format), -1.0f);
    decode_record(format, data.data(), scales.data(), out.data());
    return out;
  }
  RecordFormat format;
  std::vector<uint8_t> data, scales;
  std::vector<float> values;
};

TEST(Records, SizesAreTheSpecifications) {
  EXPECT_EQ(record_bytes(RecordFormat::kV4Fp8), 584);
  EXPECT_EQ(record_bytes(RecordFormat::kV41Fp8), 528);
  EXPECT_EQ(record_bytes(RecordFormat::kV41Nvfp4), 288);
  EXPECT_EQ(record_bytes(RecordFormat::kIndexMxfp4), 68);
}

TEST(RecordBlock, IsPlanarAndEveryByteBelongsToOneRecord) {
  for (const RecordFormat format : kFormats) {
    const int capacity = 5;
    std::vector<std::byte> memory(RecordBlock::bytes(format, capacity));
    const RecordBlock block{memory.data(), format, capacity};
    std::vector<int> owners(memory.size(), 0);
    const auto* base = reinterpret_cast<uint8_t*>(memory.data());
    for (int i = 0; i < capacity; ++i) {
      for (int b = 0; b < record_data_bytes(format); ++b) ++owners[block.data(i) - base + b];
      for (int b = 0; b < record_scale_bytes(format); ++b) ++owners[block.scales(i) - base + b];
      EXPECT_EQ(block.data(i) - base, i * record_data_bytes(format));
      EXPECT_EQ(block.scales(i) - base, capacity * record_data_bytes(format) + i * record_scale_bytes(format));
    }
    for (const int count : owners) EXPECT_EQ(count, 1);
  }
}

// Every code under a scale that the encoder would choose for it comes back as the same code and scale.
TEST(Records, EveryE4m3CodeSurvivesTheRoundTrip) {
  for (const RecordFormat format : {RecordFormat::kV4Fp8, RecordFormat::kV41Fp8}) {
    const int block = format == RecordFormat::kV4Fp8 ? 64 : 32;
    const int quantised = format == RecordFormat::kV4Fp8 ? 448 : 512;
    for (int first = 0; first < 256; first += block - 1) {
      Record record(format);
      for (int i = 0; i < quantised; ++i) {
        // The block's largest value is 448 * 2^e, so that its scale is 2^e; the rest are the codes under test.
        const int exponent = i / block - 4;
        const int code = first + i % block - 1;
        const bool nan = (code & 0x7f) == 0x7f;
        const float value = i % block == 0      ? kE4m3Max
                            : code > 255 || nan ? 0
                                                : e4m3_to_float(static_cast<uint8_t>(code));
        record.values[i] = std::ldexp(value, exponent);
      }
      record.encode();
      const std::vector<float> decoded = record.decode();
      for (int i = 0; i < quantised; ++i) {
        EXPECT_EQ(record.scales[i / block], 127 + i / block - 4);
        EXPECT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(record.values[i])) << i;
      }
    }
  }
}

TEST(Records, EveryE2m1CodeSurvivesTheRoundTripWithTheEvenDimInTheLowNibble) {
  for (const RecordFormat format : {RecordFormat::kV41Nvfp4, RecordFormat::kIndexMxfp4}) {
    Record record(format);
    for (size_t i = 0; i < record.values.size(); ++i) record.values[i] = e2m1_to_float(static_cast<uint8_t>(i % 16));
    record.encode();
    for (size_t i = 0; i < record.values.size(); i += 2) {
      EXPECT_EQ(record.data[i / 2], static_cast<uint8_t>(i % 16 | (i + 1) % 16 << 4));
    }
    const std::vector<float> decoded = record.decode();
    for (size_t i = 0; i < decoded.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(record.values[i])) << i;
    }
  }
}

TEST(Records, EveryNvfp4ScaleScalesItsOwnSixteenDims) {
  for (int first = 1; first < 0x7f; first += 32) {
    Record record(RecordFormat::kV41Nvfp4);
    for (int i = 0; i < 512; ++i) {
      const int scale = first + i / 16;
      record.values[i] = scale >= 0x7f ? 0 : 6.0f * e4m3_to_float(static_cast<uint8_t>(scale));
    }
    record.encode();
    const std::vector<float> decoded = record.decode();
    for (int block = 0; block < 32 && first + block < 0x7f; ++block) EXPECT_EQ(record.scales[block], first + block);
    EXPECT_EQ(decoded, record.values);
  }
}

TEST(Records, V4KeepsTheRopeDimsAsBf16AndPadsItsScales) {
  Record record(RecordFormat::kV4Fp8);
  for (int i = 448; i < 512; ++i) record.values[i] = 1.0f + static_cast<float>(i - 448) / 128;  // exact in bf16
  record.values[500] = 1.00390625f;  // a tie between 1 and 1 + 2^-7
  record.encode();
  EXPECT_EQ(record.scales[7], 0);
  const std::vector<float> decoded = record.decode();
  for (int i = 448; i < 512; ++i) EXPECT_EQ(decoded[i], i == 500 ? 1.0f : record.values[i]) << i;
}

// Quantisation blocks are independent: a fault marks its own block and no other.
TEST(Records, ANaNScaleGivesNaNInItsBlockOnly) {
  for (const RecordFormat format : kFormats) {
    for (const float fault : {std::nanf(""), INFINITY}) {
      Record record(format);
      std::fill(record.values.begin(), record.values.end(), 1.0f);
      record.values[5] = fault;
      record.encode();
      const std::vector<float> decoded = record.decode();
      const size_t block = format == RecordFormat::kV4Fp8 ? 64 : format == RecordFormat::kV41Nvfp4 ? 16 : 32;
      for (size_t i = 0; i < decoded.size(); ++i) {
        EXPECT_EQ(std::isnan(decoded[i]), i < block) << "format " << static_cast<int>(format) << " dim " << i;
      }
    }
  }
}

TEST(Records, DecodedValuesAreExactInBf16) {
  for (const RecordFormat format : kFormats) {
    Record record(format);
    for (size_t i = 0; i < record.values.size(); ++i) record.values[i] = std::sin(static_cast<float>(i)) * 3;
    record.encode();
    for (const float value : record.decode()) EXPECT_EQ(value, round_bf16(value));
  }
}

}  // namespace
}  // namespace onelane
