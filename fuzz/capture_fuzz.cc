// Any bytes as a capture: refused with a message, or one that writes itself again byte by byte and equals itself.
#include <cstdlib>

#include "lane/divergence.h"
#include "lane/sha256.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  constexpr size_t kDigest = 64;
  const auto as_it_is = parse_capture(bytes);
  if (!as_it_is && as_it_is.error().message.empty()) std::abort();
  if (size < kDigest) return 0;
  // Sealed, so that a changed byte does not end at the digest.
  const std::string body(bytes.substr(0, size - kDigest));
  const std::string sealed = body + sha256(body);
  const auto capture = parse_capture(sealed);
  if (!capture) {
    if (capture.error().message.empty()) std::abort();
    return 0;
  }
  const auto again = capture_bytes(*capture);
  if (!again || *again != sealed) std::abort();
  const auto same = compare_captures(*capture, *capture);
  if (!same) std::abort();
  for (const ClassDivergence& of : *same) {
    if (of.flips() != 0 || !(of.kl() < 1e-2)) std::abort();
  }
  return 0;
}
