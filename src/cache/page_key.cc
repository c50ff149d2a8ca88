#include "cache/page_key.h"

#include <algorithm>
#include <charconv>

#include <xxhash.h>

#include "base/check.h"
#include "base/format.h"

namespace onelane {
namespace {

PageKey from_xxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

PageKey hash_bytes(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }

PageKey root_key(std::string_view model_id) {
  // Seeded apart from file checksums and page keys.
  return from_xxh(XXH3_128bits_withSeed(model_id.data(), model_id.size(), kPageTokens));
}

PageKey page_key(const PageKey& parent, std::span<const int32_t> tokens) {
  ONELANE_CHECK(tokens.size() == kPageTokens, "a page has 128 tokens");
  // One message: the parent's key, then the tokens.
  struct {
    PageKey parent;
    PageTokens tokens;
  } message{parent, {}};
  static_assert(sizeof(message) == sizeof(PageKey) + sizeof(PageTokens));
  std::copy(tokens.begin(), tokens.end(), message.tokens.begin());
  return from_xxh(XXH3_128bits(&message, sizeof(message)));
}

std::string to_hex(const PageKey& key) { return format("{:016x}{:016x}", key.high, key.low); }

std::optional<PageKey> key_from_hex(std::string_view text) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  PageKey key;
  std::from_chars(text.data(), text.data() + 16, key.high, 16);
  std::from_chars(text.data() + 16, text.data() + 32, key.low, 16);
  return key;
}

}  // namespace onelane
