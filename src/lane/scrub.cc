#include "lane/scrub.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <arpa/inet.h>
#include <unistd.h>

namespace onelane {
namespace {

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-.:%").find(c) != std::string_view::npos;
}

bool is_address(int family, const std::string& word) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return ::inet_pton(family, word.c_str(), address.data()) == 1;
}

bool is_key(std::string_view word) {
  constexpr size_t kShortest = 12;  // "sk-" begins ordinary words too
  constexpr std::array<std::string_view, 5> kPrefixes = {"sk-", "sk_", "hf_", "ghp_", "xoxb-"};
  return word.size() >= kShortest && std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                                 [&](std::string_view prefix) { return word.starts_with(prefix); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// One word, a port behind an address or name included.
std::string scrub_word(const std::string& word, std::string_view host) {
  if (is_address(AF_INET6, word)) return word == "::1" || word == "::" ? word : "[address]";
  const size_t colon = std::min(word.find(':'), word.size());
  const std::string name = word.substr(0, colon), port = word.substr(colon);
  if (is_address(AF_INET, name)) {
    return name.starts_with("127.") || name == "0.0.0.0" ? word : "[address]" + port;
  }
  if (is_key(word)) return "[key]";
  if (!host.empty() && (name == host || name.starts_with(std::string(host) + "."))) return "[host]" + port;
  return word;
}

}  // namespace

std::string scrub(std::string_view text, std::string_view host) {
  std::string out;
  bool bearer = false;  // the word before was "Bearer"
  for (size_t at = 0; at < text.size();) {
    if (!in_word(text[at])) {
      out += text[at++];
      continue;
    }
    size_t end = at;
    while (end < text.size() && in_word(text[end])) ++end;
    std::string word(text.substr(at, end - at)), tail;
    at = end;
    // A sentence's full stop or a label's colon is no part of an address or a name.
    if (!is_address(AF_INET6, word)) {
      const size_t kept = word.find_last_not_of(".:-") + 1;
      tail = word.substr(kept);
      word.resize(kept);
    }
    out += bearer && !word.empty() ? "[key]" : scrub_word(word, host);
    out += tail;
    bearer = lower(word) == "bearer";
  }
  return out;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

bool is_secret_name(std::string_view name) {
  const std::string text = lower(name);
  constexpr std::array<std::string_view, 6> kEnds = {"api_key", "api-key",  "apikey",
                                                     "secret",  "password", "authorization"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return text.ends_with(end); });
}

}  // namespace onelane
