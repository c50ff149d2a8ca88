// From Result to the C interface's status and message.
#pragma once

#include <exception>
#include <utility>

#include <onelane/attention.h>

#include "base/result.h"

namespace onelane::attention {

// Keep `message` as the calling thread's, and return `status`.
int fail(int status, const char* message) noexcept;
int succeed() noexcept;
int status_of(const Error& error) noexcept;

// Runs body() -> Result<void> and returns its status; nothing is thrown past it.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    const Result<void> done = std::forward<Body>(body)();
    return done ? succeed() : status_of(done.error());
  } catch (const std::exception& thrown) {  // std::bad_alloc
    return fail(ONELANE_ATTENTION_FAILED, thrown.what());
  } catch (...) {
    return fail(ONELANE_ATTENTION_FAILED, "an unknown exception");
  }
}

}  // namespace onelane::attention
