#include "lane/text_flaws.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_set>

#include "base/format.h"
#include "text/utf8.h"

namespace onelane {
namespace {

constexpr size_t kLongestCycle = 2048;  // bytes, about 256 tokens of eight
constexpr size_t kRepeats = 4, kLoopBytes = 512;
constexpr size_t kRunWords = 8, kLeastRuns = 64;
constexpr double kRepeatedShare = 0.20;

// What no text of a user or a model holds, as long as the server takes its template apart.
constexpr std::array<std::string_view, 7> kMarkup = {"<think>", "</think>", "<\xef\xbd\x9c", "\xef\xbd\x9c>",
                                                     "<|",      "|>",       "\xef\xbf\xbd"};

enum class Script { kNone, kLatin, kCyrillic, kHan };

Script script_of(char32_t c) {
  if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= 0xc0 && c < 0x250)) return Script::kLatin;
  if (c >= 0x400 && c < 0x530) return Script::kCyrillic;
  if (c >= 0x3040 && c < 0xa000) return Script::kHan;
  return Script::kNone;
}

// Latin next to Cyrillic without anything between. Chinese and Japanese set Latin names without spaces, so those may.
bool switches_script(std::string_view text) {
  Script before = Script::kNone;
  for (size_t at = 0, length = 1; at < text.size(); at += length) {
    const Script now = script_of(first_code_point(text.substr(at), length));
    const bool both = (before == Script::kLatin && now == Script::kCyrillic) ||
                      (before == Script::kCyrillic && now == Script::kLatin);
    if (both) return true;
    before = now;
  }
  return false;
}

double repeated_share(std::string_view text) {
  std::vector<std::pair<size_t, size_t>> words;  // begin, end
  for (size_t at = 0; (at = text.find_first_not_of(" \t\r\n", at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(" \t\r\n", at), text.size());
    words.emplace_back(at, end);
    at = end;
  }
  if (words.size() < kLeastRuns + kRunWords - 1) return 0;
  const size_t runs = words.size() - kRunWords + 1;
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < runs; ++i) {
    // White space may differ between repeats.
    std::string run;
    for (size_t k = i; k < i + kRunWords; ++k) {
      run.append(text.substr(words[k].first, words[k].second - words[k].first)) += ' ';
    }
    seen.insert(std::move(run));
  }
  return static_cast<double>(runs - seen.size()) / static_cast<double>(runs);
}

}  // namespace

size_t ending_cycle(std::string_view text, size_t repeats, size_t least_bytes) {
  const size_t longest = std::min(kLongestCycle, text.size() / repeats);
  for (size_t period = 1; period <= longest; ++period) {
    const size_t wanted = std::max(period * repeats, least_bytes);
    if (wanted > text.size()) continue;
    const std::string_view tail = text.substr(text.size() - wanted);
    if (tail.substr(period) == tail.substr(0, tail.size() - period)) return period;
  }
  return 0;
}

TextFlaws find_flaws(std::string_view text) {
  TextFlaws flaws;
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  flaws.loop = ending_cycle(text, kRepeats, kLoopBytes) > 0 || repeated_share(text) >= kRepeatedShare;
  for (const std::string_view mark : kMarkup) {
    if (text.find(mark) != std::string_view::npos) flaws.garbled.push_back(format("has \"{}\" in it", mark));
  }
  if (switches_script(text)) flaws.garbled.push_back("changes the script within a word");
  return flaws;
}

}  // namespace onelane
