#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace onelane {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, 0x144> byte{};  // by code point; -1 outside the alphabet
};

const Alphabet& alphabet() {
  static const Alphabet built = [] {
    Alphabet table;
    table.byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const char32_t c = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      table.character[static_cast<size_t>(b)] = c;
      table.byte[c] = static_cast<int16_t>(b);
    }
    return table;
  }();
  return built;
}

}  // namespace

std::string byte_level_character(uint8_t byte) {
  std::string out;
  append_code_point(out, alphabet().character[byte]);
  return out;
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  const Alphabet& table = alphabet();
  std::string out;
  while (!token.empty()) {
    size_t length = 0;
    const char32_t c = first_code_point(token, length);
    if (c >= table.byte.size() || table.byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(table.byte[c]));
    token.remove_prefix(length);
  }
  return out;
}

}  // namespace onelane
