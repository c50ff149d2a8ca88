// TensorView: the type, shape and bytes of one stored tensor, wherever they begin.
//
// A tensor in a file may start at any byte, so its bytes are never read through a wider pointer without asking:
// copy_tensor always works, aligned_data says whether reading in place does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace onelane {

// Element types as safetensors spells them. kI8 is also the container of packed fp4: two e2m1 codes per byte, the low
// nibble first (spec/model.md 5.3).
enum class DType { kF8E4M3, kF8E8M0, kI8, kU8, kI32, kI64, kF32, kBF16, kF16 };

// "F8_E4M3", "F8_E8M0", "I8", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
// Bytes per element.
int dtype_bytes(DType dtype);

struct TensorView {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  std::span<const std::byte> bytes;

  int64_t count() const { return static_cast<int64_t>(bytes.size()) / dtype_bytes(dtype); }
};

// "[24, 1024]"
std::string shape_text(std::span<const int64_t> shape);

// Elements of `shape`, or nothing when a dimension is negative or the product does not fit.
std::optional<int64_t> element_count(std::span<const int64_t> shape);

// Whether T is how an element of `dtype` is held: float for F32, uint16_t for BF16 and F16 (codes), int64_t, int32_t,
// and uint8_t or int8_t for every one-byte type.
template <class T>
constexpr bool holds(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::is_same_v<T, float>;
    case DType::kBF16:
    case DType::kF16:
      return std::is_same_v<T, uint16_t>;
    case DType::kI64:
      return std::is_same_v<T, int64_t>;
    case DType::kI32:
      return std::is_same_v<T, int32_t>;
    default:
      return std::is_same_v<T, uint8_t> || std::is_same_v<T, int8_t>;
  }
}

// All elements, copied. T must hold the tensor's dtype (a mistake of ours otherwise: the inventory has checked it).
template <class T>
std::vector<T> copy_tensor(const TensorView& tensor) {
  ONELANE_CHECK(holds<T>(tensor.dtype), "tensor read as another type");
  std::vector<T> out(static_cast<size_t>(tensor.count()));
  if (!out.empty()) std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

// The elements in place, or nullptr where the bytes are not aligned for T.
template <class T>
const T* aligned_data(const TensorView& tensor) {
  ONELANE_CHECK(holds<T>(tensor.dtype), "tensor read as another type");
  if (reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(T) != 0) return nullptr;
  return reinterpret_cast<const T*>(tensor.bytes.data());
}

// F32 or BF16 as floats, exactly; other types are refused.
Result<std::vector<float>> tensor_to_floats(const TensorView& tensor);

}  // namespace onelane
