// Any text as a routing trace: refused with a message, or what is written as it was read.
#include <cstdlib>

#include "checkpoint/routing_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const auto trace = parse_routing_trace({reinterpret_cast<const char*>(data), size});
  if (!trace) {
    if (trace.error().message.empty()) std::abort();
    return 0;
  }
  const auto again = parse_routing_trace(routing_trace_json(*trace));
  if (trace->empty() || !again || *again != *trace) std::abort();
  return 0;
}
