#include "text/added_tokens.h"

namespace onelane {

void AddedTokens::Trie::add(std::string_view content, int32_t id) {
  if (content.empty()) return;
  starts[static_cast<unsigned char>(content[0])] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const auto fresh = static_cast<uint32_t>(ids.size());
    const auto [edge, inserted] = edges.try_emplace(node << 8 | static_cast<unsigned char>(c), fresh);
    if (inserted) ids.push_back(-1);
    node = edge->second;
  }
  ids[node] = id;
}

int32_t AddedTokens::Trie::longest(std::string_view text, size_t& length) const {
  int32_t found = -1;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges.find(node << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges.end()) break;
    node = edge->second;
    if (ids[node] >= 0) {
      found = ids[node];
      length = i + 1;
    }
  }
  return found;
}

void AddedTokens::Trie::split(std::string_view text, std::vector<Segment>& segments) const {
  size_t begin = 0;
  size_t at = 0;
  while (at < text.size()) {
    size_t length = 0;
    const bool possible = starts[static_cast<unsigned char>(text[at])];
    const int32_t id = possible ? longest(text.substr(at), length) : -1;
    if (id < 0) {
      ++at;
      continue;
    }
    if (at > begin) segments.push_back({text.substr(begin, at - begin), -1});
    segments.push_back({text.substr(at, length), id});
    at += length;
    begin = at;
  }
  if (at > begin) segments.push_back({text.substr(begin, at - begin), -1});
}

void AddedTokens::add(std::string_view content, int32_t id, bool normalized) {
  (normalized ? normalized_ : literal_).add(content, id);
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text) const {
  std::vector<Segment> first;
  literal_.split(text, first);
  if (normalized_.ids.size() == 1) return first;
  std::vector<Segment> segments;
  for (const Segment& segment : first) {
    if (segment.id >= 0) {
      segments.push_back(segment);
    } else {
      normalized_.split(segment.text, segments);
    }
  }
  return segments;
}

}  // namespace onelane
