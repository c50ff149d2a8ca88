#include "model/synthetic_bytes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "numerics/formats.h"

namespace onelane {
namespace {

constexpr int kDraws = 1 << 16;    // distinct values of a content: what 16 random bits choose among
constexpr size_t kAlignment = 64;  // of views
constexpr size_t kLeastSpread = 1 << 16;
// Pools repeat themselves after so many bytes: an odd number of lines, so that no two rows of a matrix are the same.
constexpr size_t kPeriod = (size_t{1} << 24) + kAlignment;

// Quantiles of the standard normal distribution, evenly spread.
const std::vector<float>& normal_draws() {
  static const std::vector<float> draws = [] {
    std::vector<float> values(kDraws);
    for (int i = 0; i < kDraws / 2; ++i) {
      const auto z = static_cast<float>(normal_quantile((i + 0.5) / kDraws));
      values[static_cast<size_t>(i)] = z;
      values[static_cast<size_t>(kDraws - 1 - i)] = -z;
    }
    return values;
  }();
  return draws;
}

template <class T>
void fill_with(std::span<std::byte> out, Random& random, const std::vector<T>& table) {
  constexpr size_t kBatch = 4 * sizeof(T);  // bytes from one random word
  std::array<T, 4> batch;
  for (size_t at = 0; at < out.size(); at += kBatch) {
    const uint64_t word = random.next();
    for (size_t i = 0; i < 4; ++i) batch[i] = table[(word >> (16 * i)) & (kDraws - 1)];
    std::memcpy(out.data() + at, batch.data(), std::min(kBatch, out.size() - at));
  }
}

template <class T, class Encode>
std::vector<T> table_of(const Content& content, Encode encode) {
  std::vector<T> table;
  for (const float z : normal_draws())
    table.push_back(encode(static_cast<float>(content.mean + content.deviation * z)));
  return table;
}

// Sixteen bits are two draws of eight here.
std::vector<uint8_t> pairs_of_e2m1(const Content& content) {
  const auto code = [&](int draw) {
    const float z = normal_draws()[static_cast<size_t>(draw * (kDraws / 256) + kDraws / 512)];
    return float_to_e2m1(static_cast<float>(content.mean + content.deviation * z));
  };
  std::vector<uint8_t> table;
  for (int i = 0; i < kDraws; ++i) table.push_back(static_cast<uint8_t>(code(i & 255) | code(i >> 8) << 4));
  return table;
}

void fill_with_content(std::span<std::byte> out, Random& random, const Content& content) {
  switch (content.dtype) {
    case DType::kF32:
      return fill_with(out, random, table_of<float>(content, [](float value) { return value; }));
    case DType::kBF16:
      return fill_with(out, random, table_of<uint16_t>(content, float_to_bf16));
    case DType::kF8E4M3:
      return fill_with(out, random, table_of<uint8_t>(content, float_to_e4m3));
    case DType::kF8E8M0:
      return fill_with(out, random, table_of<uint8_t>(content, [](float value) {
                         return static_cast<uint8_t>(std::clamp(std::lround(value) + 127L, 1L, 254L));
                       }));
    case DType::kI8:
      return fill_with(out, random, pairs_of_e2m1(content));
    default:
      ONELANE_CHECK(false, "no synthetic content of this type");
  }
}

}  // namespace

double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

void BytePools::plan(const Content& content, size_t bytes) {
  Pool& pool = pools_[content];
  pool.largest = std::max(pool.largest, bytes);
}

void BytePools::fill(Random& random, Memory& memory) {
  for (auto& [content, pool] : pools_) {
    const size_t size = pool.largest + std::clamp(pool.largest, kLeastSpread, kPeriod);
    pool.bytes = Buffer((size + kAlignment - 1) / kAlignment * kAlignment, memory);
    const auto bytes = pool.bytes.as<std::byte>();
    const size_t first = std::min(bytes.size(), kPeriod);
    fill_with_content(bytes.first(first), random, content);
    for (size_t at = first; at < bytes.size(); at += first) {
      std::memcpy(bytes.data() + at, bytes.data(), std::min(first, bytes.size() - at));
    }
  }
}

std::span<const std::byte> BytePools::view(const Content& content, size_t bytes, Random& random) const {
  const auto found = pools_.find(content);
  ONELANE_CHECK(found != pools_.end() && bytes <= found->second.largest, "a view needs a plan");
  const auto pool = found->second.bytes.as<std::byte>();
  const size_t spread = (pool.size() - bytes) / kAlignment;
  return pool.subspan(random.below(std::min(spread, kPeriod / kAlignment - 1) + 1) * kAlignment, bytes);
}

std::span<const std::byte> BytePools::keep(std::vector<std::byte> bytes) {
  return kept_.emplace_back(std::move(bytes));
}

}  // namespace onelane
