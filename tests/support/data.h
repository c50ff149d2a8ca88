// Where tests find data, and how they read it.
#pragma once

#include <cmath>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "numerics/formats.h"

namespace onelane {

// Every access is checked in such builds, at ten times the price: tests that prove by length prove less there.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A file of the repository.
inline std::string repository_path(const std::string& relative) { return std::string(ONELANE_ROOT) + "/" + relative; }

// Published test data that lies beside the repository and may be absent.
inline std::string shared_path(const std::string& relative) {
  return std::string(ONELANE_ROOT) + "/../shared/data/" + relative;
}

#define ONELANE_SKIP_WITHOUT(path)                       \
  if (!std::filesystem::exists(path)) {                  \
    GTEST_SKIP() << "test data not present: " << (path); \
  }

// A safetensors file of test vectors. A missing tensor fails the test by name.
class Vectors {
 public:
  explicit Vectors(const std::string& path) : file_(MappedFile::open(path)) {
    EXPECT_TRUE(file_) << (file_ ? "" : file_.error().message);
    auto parsed = parse_safetensors(file_->bytes());
    EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
    tensors_ = std::move(parsed->tensors);
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  const TensorView& view(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      ADD_FAILURE() << "no tensor " << name;
      static const TensorView kEmpty;
      return kEmpty;
    }
    return found->second;
  }
  template <class T>
  std::vector<T> get(const std::string& name) const {
    const TensorView& tensor = view(name);
    if (tensor.bytes.empty()) return {};
    return copy_tensor<T>(tensor);
  }
  // F32 as it is, BF16 widened.
  std::vector<float> floats(const std::string& name) const {
    auto values = tensor_to_floats(view(name));
    EXPECT_TRUE(values) << name;
    return values ? *std::move(values) : std::vector<float>{};
  }

 private:
  Result<MappedFile> file_;
  std::map<std::string, TensorView> tensors_;
};

inline std::vector<float> widen(std::span<const uint16_t> codes) {
  std::vector<float> values(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) values[i] = bf16_to_float(codes[i]);
  return values;
}

inline double rms_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, a.size())));
}

}  // namespace onelane
