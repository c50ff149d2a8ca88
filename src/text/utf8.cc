#include "text/utf8.h"

#include "base/format.h"

namespace onelane {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Scan { kComplete, kUnfinished, kInvalid };

// Looks at the sequence that starts `text`. `length` is the bytes of the whole sequence (kComplete) or of the maximal
// prefix that could still have become one (at least 1). Table 3-7 of the Unicode standard.
Scan scan_sequence(std::string_view text, size_t& length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  length = 1;
  if (lead < 0x80) return Scan::kComplete;
  size_t need = 0;
  unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return Scan::kInvalid;
  }
  while (length < need) {
    if (length == text.size()) return Scan::kUnfinished;
    if (byte(length) < low || byte(length) > high) return Scan::kInvalid;
    low = 0x80;
    high = 0xBF;
    ++length;
  }
  return Scan::kComplete;
}

}  // namespace

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t length = 0;
    if (scan_sequence(text.substr(at), length) != Scan::kComplete) return at;
    at += length;
  }
  return std::nullopt;
}

Result<void> check_utf8(std::string_view text, std::string_view what) {
  if (const auto at = first_invalid_utf8(text)) {
    return Error{ErrorCode::kInvalidArgument, format("{} is not UTF-8: byte 0x{:02x} at offset {}", what,
                                                     static_cast<unsigned char>(text[*at]), *at)};
  }
  return {};
}

void append_code_point(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

char32_t first_code_point(std::string_view text, size_t& length) {
  const auto tail = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i]) & 0x3F); };
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return length = 1, lead;
  if (lead < 0xE0) return length = 2, static_cast<char32_t>(lead & 0x1F) << 6 | tail(1);
  if (lead < 0xF0) return length = 3, static_cast<char32_t>(lead & 0x0F) << 12 | tail(1) << 6 | tail(2);
  return length = 4, static_cast<char32_t>(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::string out;
  out.reserve(held_.size());
  std::string_view rest = held_;
  while (!rest.empty()) {
    size_t length = 0;
    const Scan scan = scan_sequence(rest, length);
    if (scan == Scan::kUnfinished) break;
    out.append(scan == Scan::kComplete ? rest.substr(0, length) : kReplacement);
    rest.remove_prefix(length);
  }
  held_ = std::string(rest);
  return out;
}

std::string Utf8Stream::flush() {
  const bool unfinished = !held_.empty();
  held_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace onelane
