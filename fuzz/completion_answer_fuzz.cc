// Any bytes as an answer of /v1/completions: refused with a message, or positions that a capture takes.
#include <cstdlib>

#include "lane/completion_answer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const std::vector<int32_t> prompt = {0, 5, 7};
  const auto answer = parse_completion({reinterpret_cast<const char*>(data), size}, prompt);
  if (!answer) {
    if (answer.error().message.empty()) std::abort();
    return 0;
  }
  for (const CompletionChoice& choice : answer->choices) {
    if (choice.tokens.size() != choice.positions.size()) std::abort();
    if (!choice.prompt.empty() && choice.prompt.size() + 1 != prompt.size()) std::abort();
    for (const auto* positions : {&choice.prompt, &choice.positions}) {
      for (const CapturePosition& at : *positions) {
        if (at.top.empty() || at.top.size() > kCaptureTop || at.rank == 0) std::abort();
        if (!(at.tail >= 0 && at.tail <= 1) || !(at.logprob <= 0)) std::abort();
        for (size_t i = 1; i < at.top.size(); ++i) {
          if (!(at.top[i].second <= at.top[i - 1].second)) std::abort();
        }
      }
    }
  }
  return 0;
}
