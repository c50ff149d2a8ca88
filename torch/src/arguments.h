// Checks of an operator's arguments, each under its name: dtype, device, shape, layout. They throw what PyTorch turns
// into a RuntimeError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

namespace onelane::torch_operator {

using Tensor = torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

#define ONELANE_TORCH_CHECK(condition, ...) STD_TORCH_CHECK(condition, "onelane: ", __VA_ARGS__)

// A dtype as the shim knows it. Not ScalarType: converting one that the targeted ABI does not know throws a riddle.
struct DType {
  int32_t (*code)();
  const char* name;
};
inline constexpr DType kUInt8{aoti_torch_dtype_uint8, "uint8"};
inline constexpr DType kInt32{aoti_torch_dtype_int32, "int32"};
inline constexpr DType kInt64{aoti_torch_dtype_int64, "int64"};
inline constexpr DType kFloat16{aoti_torch_dtype_float16, "float16"};
inline constexpr DType kBFloat16{aoti_torch_dtype_bfloat16, "bfloat16"};
inline constexpr DType kFloat32{aoti_torch_dtype_float32, "float32"};
inline constexpr DType kFloat64{aoti_torch_dtype_float64, "float64"};
inline constexpr DType kFloat8{aoti_torch_dtype_float8_e4m3fn, "float8_e4m3fn"};

inline int32_t dtype_code(const Tensor& tensor) {
  int32_t code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  return code;
}

inline std::string dtype_name(const Tensor& tensor) {
  const int32_t code = dtype_code(tensor);
  for (const DType& each : {kUInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64, kFloat8}) {
    if (each.code() == code) return each.name;
  }
  return "another dtype (" + std::to_string(code) + ")";
}

inline bool has_dtype(const Tensor& tensor, const DType& dtype) { return dtype_code(tensor) == dtype.code(); }

inline void check_dtype(const char* name, const Tensor& tensor, std::initializer_list<DType> allowed) {
  std::string names;
  for (const DType& each : allowed) {
    if (has_dtype(tensor, each)) return;
    names += (names.empty() ? "" : " or ") + std::string(each.name);
  }
  ONELANE_TORCH_CHECK(false, name, " must be ", names, ", not ", dtype_name(tensor));
}

inline std::string shape_text(const int64_t* sizes, size_t count) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < count; ++i) text << (i == 0 ? "" : ", ") << sizes[i];
  text << ']';
  return text.str();
}
inline std::string shape_text(const Tensor& tensor) { return shape_text(tensor.sizes().data(), tensor.sizes().size()); }

// Same device as q.
inline void check_device(const char* name, const Tensor& tensor, const Tensor& q) {
  const bool same = tensor.is_cuda() == q.is_cuda() && tensor.is_cpu() == q.is_cpu() &&
                    (q.is_cpu() || tensor.get_device_index() == q.get_device_index());
  ONELANE_TORCH_CHECK(same, name, " must be on the device of q");
}

// Contiguous, of this very shape, on the device of q.
inline void check_dense(const char* name, const Tensor& tensor, const Tensor& q, std::initializer_list<int64_t> shape) {
  check_device(name, tensor, q);
  bool equal = tensor.sizes().size() == shape.size();
  for (size_t i = 0; equal && i < shape.size(); ++i) equal = tensor.size(static_cast<int64_t>(i)) == shape.begin()[i];
  ONELANE_TORCH_CHECK(equal, name, " must be ", shape_text(shape.begin(), shape.size()), ", not ", shape_text(tensor));
  ONELANE_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
}

// Whether dims from `first` on lie densely in memory, the last one fastest.
inline bool dense_from(const Tensor& tensor, int64_t first) {
  int64_t expected = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= first; --dim) {
    if (tensor.size(dim) != 1 && tensor.stride(dim) != expected) return false;
    expected *= tensor.size(dim);
  }
  return true;
}

template <class T>
const T* pointer(const OptionalTensor& tensor) {
  return tensor.has_value() ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

inline int32_t narrow_int(const char* name, int64_t value) {
  ONELANE_TORCH_CHECK(value >= INT32_MIN && value <= INT32_MAX, name, " is ", value, ", which does not fit an int32");
  return static_cast<int32_t>(value);
}

}  // namespace onelane::torch_operator
