// PageKey: the name of a page of 128 tokens behind a given prefix.
//
// XXH3-128 of the parent's key and the page's tokens, so it stands for everything from the first token on. The root's
// key is the hash of the model's identity: pages of two models never share a name. Where a key finds a page, the tokens
// are compared as well; a collision costs a hit and nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kernels.h"

namespace onelane {

using PageTokens = std::array<int32_t, kPageTokens>;

struct PageKey {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const PageKey&) const = default;
};

struct PageKeyHash {
  size_t operator()(const PageKey& key) const { return key.low; }
};

PageKey hash_bytes(std::span<const std::byte> bytes);
PageKey root_key(std::string_view model_id);
// `tokens`: kPageTokens of them.
PageKey page_key(const PageKey& parent, std::span<const int32_t> tokens);

// 32 lower-case hexadecimal digits.
std::string to_hex(const PageKey& key);
std::optional<PageKey> key_from_hex(std::string_view text);

}  // namespace onelane
