#include "checkpoint/safetensors.h"

#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include "base/format.h"
#include "base/mapped_file.h"

namespace onelane {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// A file with this header and `data_size` bytes 0, 1, 2, ... of data.
std::string image(const std::string& header, size_t data_size) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  file += header;
  for (size_t i = 0; i < data_size; ++i) file += static_cast<char>(i);
  return file;
}

std::string parse_refusal(const std::string& file) {
  const auto parsed = parse_safetensors(bytes_of(file));
  EXPECT_FALSE(parsed) << file;
  return parsed ? "" : parsed.error().message;
}

std::string scratch(const std::string& name) {
  return testing::TempDir() + "/" + std::to_string(::getpid()) + "_safetensors_" + name;
}

TEST(Safetensors, ReadsEveryTypeAtAnyOffset) {
  // b begins at byte 3: no element of it is aligned.
  const std::string file = image(
      R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]},
          "b": {"dtype": "F32", "shape": [1, 2], "data_offsets": [3, 11]},
          "s": {"dtype": "BF16", "shape": [], "data_offsets": [12, 14]},
          "e": {"dtype": "F8_E8M0", "shape": [0, 7], "data_offsets": [14, 14]}}   )",
      14);
  const auto parsed = parse_safetensors(bytes_of(file));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(copy_tensor<int8_t>(parsed->tensors.at("a")), (std::vector<int8_t>{0, 1, 2}));
  const TensorView& b = parsed->tensors.at("b");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{1, 2}));
  float expected[2];
  std::memcpy(expected, file.data() + file.size() - 14 + 3, 8);
  EXPECT_EQ(copy_tensor<float>(b), std::vector<float>(expected, expected + 2));
  EXPECT_EQ(*tensor_to_floats(b), std::vector<float>(expected, expected + 2));
  EXPECT_EQ(copy_tensor<uint16_t>(parsed->tensors.at("s")), std::vector<uint16_t>{0x0d0c});
  EXPECT_EQ(parsed->tensors.at("s").count(), 1);
  EXPECT_EQ(parsed->tensors.at("e").count(), 0);
  EXPECT_TRUE(copy_tensor<uint8_t>(parsed->tensors.at("e")).empty());
  EXPECT_FALSE(tensor_to_floats(parsed->tensors.at("a")));
}

TEST(Safetensors, AlignedDataOnlyWhereItIsAligned) {
  alignas(8) std::byte memory[16] = {};
  TensorView tensor{.dtype = DType::kF32, .shape = {2}, .bytes = std::span<const std::byte>(memory + 4, 8)};
  EXPECT_NE(aligned_data<float>(tensor), nullptr);
  tensor.bytes = std::span<const std::byte>(memory + 3, 8);
  EXPECT_EQ(aligned_data<float>(tensor), nullptr);
}

TEST(Safetensors, TruncatedAtEveryByte) {
  const std::string file = image(R"({"a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}})", 8);
  ASSERT_TRUE(parse_safetensors(bytes_of(file)));
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string message = parse_refusal(file.substr(0, size));
    if (size < 8) {
      EXPECT_THAT(message, HasSubstr("8-byte header length"));
    } else if (size < file.size() - 8) {
      EXPECT_THAT(message, HasSubstr("truncated"));
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr("tensor 'a'"), HasSubstr("do not lie within")));
    }
  }
}

TEST(Safetensors, AbsurdHeaderLengths) {
  for (const uint64_t size : {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7, kMaxSafetensorsHeader + 1}) {
    std::string file(64, '{');
    std::memcpy(file.data(), &size, 8);
    EXPECT_THAT(parse_refusal(file), HasSubstr(format("claims a header of {} bytes", size)));
  }
  EXPECT_THAT(parse_refusal(image("", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_refusal(std::string()), HasSubstr("has 0 bytes"));
}

TEST(Safetensors, HostileHeaders) {
  auto with = [](const std::string& entry) { return image(R"({"t": )" + entry + "}", 16); };
  const struct {
    const char* entry;
    const char* message;
  } cases[] = {
      {R"({"dtype": "F64", "shape": [2], "data_offsets": [0, 16]})", "dtype \"F64\" is not supported"},
      {R"({"dtype": 3, "shape": [2], "data_offsets": [0, 16]})", "dtype 3 is not supported"},
      {R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 16]})", "the dimension -1"},
      {R"({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]})", "the dimension 1.0"},
      {R"({"dtype": "F32", "shape": ["4"], "data_offsets": [0, 16]})", "the dimension \"4\""},
      {R"({"dtype": "F32", "shape": 4, "data_offsets": [0, 16]})", "shape is not an array"},
      {R"({"dtype": "I8", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 1]})", "at most 8 dimensions"},
      {R"({"dtype": "F32", "shape": [9223372036854775808], "data_offsets": [0, 16]})", "the dimension 922"},
      {R"({"dtype": "F32", "shape": [9223372036854775807, 2], "data_offsets": [0, 16]})", "overflows"},
      {R"({"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 16]})", "overflows"},
      {R"({"dtype": "F32", "shape": [4294967296, 4294967296, 0, 2], "data_offsets": [0, 0]})", "overflows"},
      {R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 16]})", "F32 [3] takes 12 bytes"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [1, 17]})", "do not lie within"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]})", "do not lie within"},
      {R"({"dtype": "F32", "shape": [0], "data_offsets": [17, 17]})", "do not lie within"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]})", "not a pair"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 18446744073709551615]})", "do not lie within"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 16, 32]})", "not a pair"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0]})", "not a pair"},
      {R"({"dtype": "F32", "shape": [4]})", "exactly the fields"},
      {R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 16], "x": 1})", "exactly the fields"},
      {"[]", "exactly the fields"},
      {"null", "exactly the fields"},
  };
  for (const auto& [entry, message] : cases) {
    EXPECT_THAT(parse_refusal(with(entry)), AllOf(HasSubstr("tensor 't'"), HasSubstr(message))) << entry;
  }
}

TEST(Safetensors, DuplicatesOverlapsAndNames) {
  const std::string one = R"({"dtype": "I8", "shape": [4], "data_offsets": [0, 4]})";
  const std::string two = R"({"dtype": "I8", "shape": [4], "data_offsets": [3, 7]})";
  const std::string inside = R"({"dtype": "I8", "shape": [1], "data_offsets": [2, 3]})";
  const std::string empty = R"({"dtype": "I8", "shape": [0], "data_offsets": [2, 2]})";
  EXPECT_THAT(parse_refusal(image(R"({"a": )" + one + R"(, "a": )" + one + "}", 8)),
              HasSubstr("key 'a' is given twice"));
  EXPECT_THAT(parse_refusal(image(R"({"a": {"dtype": "I8", "dtype": "U8", "shape": [], "data_offsets": [0, 1]}})", 8)),
              HasSubstr("key 'dtype' is given twice"));
  EXPECT_THAT(parse_refusal(image(R"({"a": )" + one + R"(, "b": )" + two + "}", 8)), HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(parse_refusal(image(R"({"a": )" + one + R"(, "b": )" + one + "}", 8)), HasSubstr("overlap"));
  EXPECT_THAT(parse_refusal(image(R"({"a": )" + one + R"(, "b": )" + inside + "}", 8)),
              HasSubstr("'a' and 'b' overlap"));
  EXPECT_TRUE(parse_safetensors(bytes_of(image(R"({"a": )" + one + R"(, "b": )" + empty + "}", 8))));
  EXPECT_THAT(parse_refusal(image(R"({"": )" + one + "}", 8)), HasSubstr("tensor name is empty"));
  EXPECT_THAT(parse_refusal(image("{\"" + std::string(513, 'x') + "\": " + one + "}", 8)),
              HasSubstr("longer than 512"));
  EXPECT_THAT(parse_refusal(image("{\"a\\u001b[2J\": " + one + "}", 8)), HasSubstr("control characters"));
  EXPECT_THAT(parse_refusal(image("{\"\xc3\x28\": " + one + "}", 8)), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_refusal(image("[1]", 8)), HasSubstr("not a JSON object"));
  EXPECT_THAT(parse_refusal(image(std::string(5000, '['), 8)), HasSubstr("nested deeper"));
  EXPECT_THAT(parse_refusal(image(R"({"__metadata__": 1})", 0)), HasSubstr("__metadata__ is not an object"));
  EXPECT_THAT(parse_refusal(image(R"({"__metadata__": {"k": 1}})", 0)), HasSubstr("'k' is not a string"));
  EXPECT_TRUE(parse_safetensors(bytes_of(image("{}", 0))));
}

TEST(Safetensors, WriterRefusesWhatReadersWould) {
  const std::vector<std::byte> data(4);
  auto message = [&](std::vector<TensorToWrite> tensors) {
    const auto written = write_safetensors(scratch("refused"), tensors);
    EXPECT_FALSE(written);
    return written ? "" : written.error().message;
  };
  EXPECT_THAT(message({{"a", DType::kI8, {4}, data}, {"a", DType::kI8, {4}, data}}), HasSubstr("'a': the name"));
  EXPECT_THAT(message({{"", DType::kI8, {4}, data}}), HasSubstr("the name"));
  EXPECT_THAT(message({{"__metadata__", DType::kI8, {4}, data}}), HasSubstr("the name"));
  EXPECT_THAT(message({{"a", DType::kF32, {2}, data}}), HasSubstr("F32 [2] does not take 4 bytes"));
  EXPECT_THAT(message({{"a", DType::kI8, {-4}, data}}), HasSubstr("does not take"));
  EXPECT_THAT(message({{"a\xff", DType::kI8, {4}, data}}), HasSubstr("UTF-8"));
  EXPECT_FALSE(write_safetensors(scratch("no/such/dir"), {}));
}

// What is written is read back, and lies where no reader can stumble: aligned to its item, without gaps.
TEST(Safetensors, WrittenFilesComeBack) {
  rc::check([](const std::vector<std::pair<uint8_t, uint8_t>>& plan) {
    std::vector<std::vector<std::byte>> storage;
    std::vector<TensorToWrite> tensors;
    for (size_t i = 0; i < plan.size(); ++i) {
      const auto dtype = static_cast<DType>(plan[i].first % 9);
      const int64_t rows = plan[i].second % 5, cols = plan[i].second / 5 % 7;
      storage.emplace_back(static_cast<size_t>(rows * cols * dtype_bytes(dtype)), static_cast<std::byte>(i));
      tensors.push_back({format("t{}", i), dtype, {rows, cols}, storage.back()});
    }
    const std::string path = scratch("round_trip");
    RC_ASSERT(write_safetensors(path, tensors, {{"note", "x"}}).has_value());
    const auto file = MappedFile::open(path);
    const auto parsed = parse_safetensors(file->bytes());
    RC_ASSERT(parsed.has_value());
    RC_ASSERT(parsed->tensors.size() == tensors.size());
    size_t total = 0;
    for (const TensorToWrite& tensor : tensors) {
      const TensorView& back = parsed->tensors.at(tensor.name);
      RC_ASSERT(back.dtype == tensor.dtype);
      RC_ASSERT(back.shape == tensor.shape);
      RC_ASSERT(std::ranges::equal(back.bytes, tensor.bytes));
      RC_ASSERT((back.bytes.data() - file->bytes().data()) % dtype_bytes(back.dtype) == 0);
      total += back.bytes.size();
    }
    uint64_t header = 0;
    std::memcpy(&header, file->bytes().data(), 8);
    RC_ASSERT((header + 8) % 64 == 0u);
    RC_ASSERT(header + 8 + total == file->bytes().size());
  });
}

// No flipped, lost or added byte of a small file may crash the reader.
TEST(Safetensors, DamagedFilesAreRefusedOrRead) {
  const std::string good = image(
      R"({"a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "I8", "shape": [2, 2], "data_offsets": [8, 12]}})",
      12);
  rc::check([&](uint16_t at, uint8_t value, uint16_t cut) {
    std::string bad = good;
    bad[at % bad.size()] = static_cast<char>(value);
    if (cut % 3 == 0) bad.resize(cut % bad.size());
    const auto parsed = parse_safetensors(bytes_of(bad));
    if (parsed) {
      for (const auto& [name, tensor] : parsed->tensors) {
        RC_ASSERT(tensor.bytes.empty() ||
                  tensor.bytes.data() + tensor.bytes.size() <= bytes_of(bad).data() + bad.size());
      }
    } else {
      RC_ASSERT(!parsed.error().message.empty());
    }
  });
}

}  // namespace
}  // namespace onelane
