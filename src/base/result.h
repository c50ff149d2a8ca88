// Result<T>: a value or an Error, the way std::expected (C++23) spells it.
//
// Every function that can fail on bad input, I/O or a missing device returns one. An Error's message names the file,
// tensor, flag or field at fault and says what would be right. Broken invariants of our own are not errors but
// ONELANE_CHECK (check.h). Exceptions never cross a library boundary.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace onelane {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that cannot be: a flag, a field, a prompt
  kNotFound,         // a file, tensor or key is missing
  kCorrupt,          // data that contradicts itself or its format
  kUnsupported,      // well-formed, but not something this build or model does
  kIo,               // the operating system said no
  kResourceExhausted,
};

struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;

  // The same error seen from further out: "context: message".
  Error in(const std::string& context) && { return {code, context + ": " + message}; }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & { return check(), std::get<0>(state_); }
  const T& value() const& { return check(), std::get<0>(state_); }
  T&& value() && { return check(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  void check() const {
    if (!has_value()) check_failed("Result::value", __FILE__, __LINE__, error().message.c_str());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  bool has_value() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace onelane

#define ONELANE_CONCAT_INNER(a, b) a##b
#define ONELANE_CONCAT(a, b) ONELANE_CONCAT_INNER(a, b)

// ONELANE_TRY(expr): return the error of a Result<...>, or go on.
#define ONELANE_TRY(expr)                                    \
  do {                                                       \
    auto onelane_try = (expr);                               \
    if (!onelane_try) return std::move(onelane_try).error(); \
  } while (0)

// ONELANE_ASSIGN(auto x, expr): bind the value, or return the error.
#define ONELANE_ASSIGN(declaration, expr)                                                                              \
  auto ONELANE_CONCAT(onelane_result_, __LINE__) = (expr);                                                             \
  if (!ONELANE_CONCAT(onelane_result_, __LINE__)) return std::move(ONELANE_CONCAT(onelane_result_, __LINE__)).error(); \
  declaration = *std::move(ONELANE_CONCAT(onelane_result_, __LINE__))
