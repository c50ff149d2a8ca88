// The C interface, but for the runs (run_cpu.cc and src/cuda/attention/run.cu).
#include <onelane/attention.h>

#include "kernels/attention/plan.h"
#include "kernels/attention/status.h"

namespace onelane::attention {
namespace {

// A fixed buffer: remembering why something failed must not fail itself.
thread_local char last_message[512] = "";

}  // namespace

int fail(int status, const char* message) noexcept {
  size_t length = 0;
  for (; length + 1 < sizeof(last_message) && message[length] != '\0'; ++length) last_message[length] = message[length];
  last_message[length] = '\0';
  return status;
}

int succeed() noexcept {
  last_message[0] = '\0';
  return ONELANE_ATTENTION_OK;
}

int status_of(const Error& error) noexcept {
  switch (error.code) {
    case ErrorCode::kUnsupported:
      return fail(ONELANE_ATTENTION_UNSUPPORTED, error.message.c_str());
    case ErrorCode::kIo:
    case ErrorCode::kNotFound:
    case ErrorCode::kResourceExhausted:
      return fail(ONELANE_ATTENTION_FAILED, error.message.c_str());
    default:
      return fail(ONELANE_ATTENTION_INVALID, error.message.c_str());
  }
}

}  // namespace onelane::attention

extern "C" {

const char* onelane_attention_message(void) { return onelane::attention::last_message; }

int onelane_attention_make_plan(const onelane_attention_shape* shape, const onelane_attention_device* device,
                                onelane_attention_plan* plan) {
  using namespace onelane::attention;
  return guarded([&]() -> onelane::Result<void> {
    if (shape == nullptr || device == nullptr || plan == nullptr) {
      return onelane::Error{onelane::ErrorCode::kInvalidArgument, "shape, device and plan must not be null"};
    }
    ONELANE_ASSIGN(*plan, make_plan(*shape, *device));
    return {};
  });
}

}  // extern "C"
