// The byte-level alphabet of GPT-2 style tokenizers: each of the 256 bytes is written as one printable character, so
// that a vocabulary of byte strings can be stored as JSON text.
//
// Printable Latin-1 bytes stand for themselves; the other 68 take U+0100, U+0101, ... in byte order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace onelane {

// The character that stands for `byte`, as UTF-8.
std::string byte_level_character(uint8_t byte);

// The bytes that `token` (valid UTF-8) stands for; nothing when a character is outside the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace onelane
