// What the stage tests share: implementations to test, steps, caches, matrices, and arrays that end at a fence.
//
// Every case runs on every implementation of `Kernels`: a hand-computed answer is an answer for all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/kernels.h"
#include "kernels/rope.h"
#include "numerics/formats.h"
#include "support/gpu.h"

namespace onelane::testing {

struct Implementation {
  const char* name;
  std::unique_ptr<Kernels> (*make)();
};

inline std::vector<Implementation> implementations() {
  std::vector<Implementation> all = {
      {"reference", make_reference_kernels},
      {"cpu", [] { return make_cpu_kernels(2); }},
  };
  if (has_gpu()) all.push_back({"cuda", make_gpu_kernels});
  return all;
}

class StageTest : public ::testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<Kernels> kernels = GetParam().make();
};

#define ONELANE_EVERY_IMPLEMENTATION(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(, suite, ::testing::ValuesIn(::onelane::testing::implementations()), \
                           [](const auto& test) { return std::string(test.param.name); })

// Values in a Buffer of their own, so that the fenced build sees an overrun; filled with `fill`.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(size_t count, T fill = T{}) : buffer_(count * sizeof(T)) { std::fill_n(data(), count, fill); }
  Array(std::initializer_list<T> values) : buffer_(values.size() * sizeof(T)) {
    std::copy(values.begin(), values.end(), data());
  }
  explicit Array(const std::vector<T>& values) : buffer_(values.size() * sizeof(T)) {
    std::copy(values.begin(), values.end(), data());
  }

  T* data() { return reinterpret_cast<T*>(buffer_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(buffer_.data()); }
  size_t size() const { return buffer_.size() / sizeof(T); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  std::vector<T> vector() const { return {data(), data() + size()}; }

 private:
  Buffer buffer_;
};

inline Array<bf16> to_bf16(const std::vector<float>& values) {
  Array<bf16> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = float_to_bf16(values[i]);
  return out;
}

inline Array<bf16> constant_bf16(size_t count, float value) { return Array<bf16>(count, float_to_bf16(value)); }

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  float normal(float scale = 1.0f) { return scale * normal_(engine_); }
  std::vector<float> floats(size_t count, float scale = 1.0f) {
    std::vector<float> out(count);
    for (float& value : out) value = normal(scale);
    return out;
  }
  Array<bf16> bf16s(size_t count, float scale = 1.0f) { return to_bf16(floats(count, scale)); }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// -- steps -----------------------------------------------------------------------------------------------------------

// A step and the arrays it points at. The page table hands out pages in falling order, so that nobody can mistake an
// entry's number for its place.
class Step {
 public:
  explicit Step(int slots = 1, int pages_per_slot = 4) : pages_per_slot_(pages_per_slot) {
    for (int i = 0; i < slots * pages_per_slot; ++i) page_table_.push_back(slots * pages_per_slot - 1 - i);
  }
  Step& run(int first_position, int count, int slot = 0) {
    runs_.push_back({static_cast<int>(position_.size()), count, first_position, slot});
    for (int i = 0; i < count; ++i) {
      token_.push_back(0);
      position_.push_back(first_position + i);
      run_of_.push_back(static_cast<int32_t>(runs_.size()) - 1);
    }
    return *this;
  }
  Step& tokens(const std::vector<int32_t>& tokens) {
    token_ = tokens;
    return *this;
  }
  StepRows rows() const {
    StepRows rows;
    rows.count = static_cast<int>(position_.size());
    rows.token = token_.data();
    rows.position = position_.data();
    rows.run_of = run_of_.data();
    rows.runs = runs_.data();
    rows.run_count = static_cast<int>(runs_.size());
    rows.page_table = page_table_.data();
    rows.pages_per_slot = pages_per_slot_;
    return rows;
  }
  int pages() const { return static_cast<int>(page_table_.size()); }

 private:
  int pages_per_slot_;
  std::vector<int32_t> token_, position_, run_of_, page_table_;
  std::vector<RowRun> runs_;
};

// -- caches ----------------------------------------------------------------------------------------------------------

// Records of a step, or any other planar block.
struct Records {
  Records(RecordFormat format, int count)
      : memory(RecordBlock::bytes(format, count)), block{memory.data(), format, count} {
    memory.zero();
  }
  void set(int index, const std::vector<float>& values) {
    encode_record(block.format, values.data(), block.data(index), block.scales(index));
  }
  Buffer memory;
  RecordBlock block;
};

struct Rings {
  Rings(RecordFormat format, int slots, int capacity = kWindow + 6)
      : memory(slots * RecordBlock::bytes(format, capacity)) {
    memory.zero();
    cache = {memory.data(), RecordBlock::bytes(format, capacity), capacity, format};
  }
  void set(int slot, int position, const std::vector<float>& values) const {
    const RecordBlock block = cache.block(slot);
    const int record = position % cache.capacity;
    encode_record(block.format, values.data(), block.data(record), block.scales(record));
  }
  Buffer memory;
  RingCache cache;
};

// A page pool that holds this owner's records after 64 bytes of somebody else's.
struct Pages {
  static constexpr size_t kOffset = 64;
  Pages(RecordFormat format, int pages, int ratio) {
    const int per_page = kPageTokens / ratio;
    const size_t page_bytes = (kOffset + RecordBlock::bytes(format, per_page) + 15) / 16 * 16;
    memory = Buffer(static_cast<size_t>(pages) * page_bytes);
    memory.zero();
    cache = {memory.data(), page_bytes, kOffset, per_page, format};
  }
  // Entry `entry` of sequence `slot`, decoded.
  std::vector<float> get(const StepRows& rows, int slot, int entry) const {
    const RecordBlock block = place(rows, slot, entry);
    std::vector<float> values(static_cast<size_t>(record_width(block.format)));
    const int record = entry % cache.per_page;
    decode_record(block.format, block.data(record), block.scales(record), values.data());
    return values;
  }
  void set(const StepRows& rows, int slot, int entry, const std::vector<float>& values) const {
    const RecordBlock block = place(rows, slot, entry);
    const int record = entry % cache.per_page;
    encode_record(block.format, values.data(), block.data(record), block.scales(record));
  }
  RecordBlock place(const StepRows& rows, int slot, int entry) const {
    return cache.block(rows.page_table[slot * rows.pages_per_slot + entry / cache.per_page]);
  }
  std::vector<std::byte> bytes() const { return {memory.data(), memory.data() + memory.size()}; }
  Buffer memory;
  PagedCache cache;
};

// Values of one record's width, all `value` but for the given dims.
inline std::vector<float> record_values(std::initializer_list<std::pair<int, float>> dims, int width = kHeadDim) {
  std::vector<float> values(static_cast<size_t>(width), 0.0f);
  for (const auto& [dim, value] : dims) values[static_cast<size_t>(dim)] = value;
  return values;
}

// -- weights ---------------------------------------------------------------------------------------------------------

// A matrix and its storage.
struct Weight {
  Matrix matrix;
  Buffer data, scale;
};

inline Weight bf16_weight(int out, int in, const std::function<float(int, int)>& value) {
  Weight w;
  w.data = Buffer(static_cast<size_t>(out) * in * sizeof(bf16));
  const std::span<bf16> codes = w.data.as<bf16>();
  for (int o = 0; o < out; ++o) {
    for (int k = 0; k < in; ++k) codes[static_cast<size_t>(o) * in + k] = float_to_bf16(value(o, k));
  }
  w.matrix.kind = Matrix::Kind::kBf16;
  w.matrix.out = out;
  w.matrix.in = in;
  w.matrix.data = w.data.data();
  return w;
}

// e4m3 codes of value(o, k) under scale exponents exponent(tile row, tile column).
inline Weight fp8_weight(
    int out, int in, int block, int act_block, const std::function<float(int, int)>& value,
    const std::function<int(int, int)>& exponent = [](int, int) { return 0; }) {
  Weight w;
  w.data = Buffer(static_cast<size_t>(out) * in);
  const int tiles = (in + block - 1) / block;
  w.scale = Buffer(static_cast<size_t>((out + block - 1) / block) * tiles);
  for (int o = 0; o < out; ++o) {
    for (int k = 0; k < in; ++k) {
      const int e = exponent(o / block, k / block);
      w.data.as<uint8_t>()[static_cast<size_t>(o) * in + k] = float_to_e4m3(std::ldexp(value(o, k), -e));
      w.scale.as<uint8_t>()[o / block * tiles + k / block] = static_cast<uint8_t>(127 + e);
    }
  }
  w.matrix = {Matrix::Kind::kFp8, out, in, block, act_block, w.data.data(), w.scale.as<uint8_t>().data()};
  return w;
}

inline Weight fp4_weight(
    int out, int in, int act_block, const std::function<float(int, int)>& value,
    const std::function<int(int, int)>& exponent = [](int, int) { return 0; }) {
  Weight w;
  w.data = Buffer(static_cast<size_t>(out) * in / 2);
  w.scale = Buffer(static_cast<size_t>(out) * in / 32);
  w.data.zero();
  for (int o = 0; o < out; ++o) {
    for (int k = 0; k < in; ++k) {
      const int e = exponent(o, k / 32);
      const uint8_t code = float_to_e2m1(std::ldexp(value(o, k), -e));
      w.data.as<uint8_t>()[(static_cast<size_t>(o) * in + k) / 2] |= static_cast<uint8_t>(code << (k % 2 * 4));
      w.scale.as<uint8_t>()[static_cast<size_t>(o) * in / 32 + k / 32] = static_cast<uint8_t>(127 + e);
    }
  }
  w.matrix = {Matrix::Kind::kFp4, out, in, 0, act_block, w.data.data(), w.scale.as<uint8_t>().data()};
  return w;
}

// value on the diagonal, else 0.
inline std::function<float(int, int)> diagonal(float value) {
  return [value](int o, int k) { return o == k ? value : 0.0f; };
}

inline std::function<float(int, int)> random_values(unsigned seed, float scale) {
  auto random = std::make_shared<Random>(seed);
  return [random, scale](int, int) { return random->normal(scale); };
}

inline const RopeFrequencies& table_a() {
  static const RopeFrequencies table = make_rope_frequencies(10000, 1, 32, 1, 65536);
  return table;
}
inline const RopeFrequencies& table_b() {
  static const RopeFrequencies table = make_rope_frequencies(160000, 16, 32, 1, 65536);
  return table;
}

// -- products that project_qkv makes for other stages
// ------------------------------------------------------------------

// round(weights x), x [rows, weights.in].
inline Array<bf16> rounded_product(Kernels& kernels, const StepRows& rows, const Matrix& weights, const bf16* x) {
  Array<bf16> y(static_cast<size_t>(rows.count) * static_cast<size_t>(weights.out));
  QkvArgs args{.x = x, .dim = weights.in, .rope = &table_a()};
  args.of_x[0] = {.weights = weights, .rounded = y.data()};
  kernels.project_qkv(rows, args);
  return y;
}

// What a compressor pools: kv and gate or, without wgate, latents.
struct PoolProducts {
  // Asks for them in the two places from `sides` on.
  void ask(int rows, const Matrix& wkv, const Matrix& wgate, SideProduct* sides, Compressor& compressor) {
    const auto count = static_cast<size_t>(rows) * static_cast<size_t>(wkv.out);
    if (!wgate) {
      latent = Array<bf16>(count);
      sides[0] = {.weights = wkv, .rounded = latent.data()};
      compressor.latent = latent.data();
      return;
    }
    kv = Array<float>(count);
    gate = Array<float>(count);
    sides[0] = {.weights = wkv, .exact = kv.data()};
    sides[1] = {.weights = wgate, .exact = gate.data()};
    compressor.kv = kv.data();
    compressor.gate = gate.data();
  }
  Array<float> kv, gate;
  Array<bf16> latent;
};

}  // namespace onelane::testing
