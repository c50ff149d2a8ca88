// AddedTokens: the literal tokens of a tokenizer (BOS, role and tag tokens), found in raw text before anything else.
//
// At each position the longest token wins, and matching goes on after it. Hugging Face tokenizers does this in two
// passes, first for the tokens with "normalized": false, then for the others in what is left; so do we.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace onelane {

class AddedTokens {
 public:
  // A stretch of text: an added token (id >= 0) or ordinary text (id -1).
  struct Segment {
    std::string_view text;
    int32_t id = -1;
  };

  void add(std::string_view content, int32_t id, bool normalized);

  // The segments of `text` in order; together they cover it. No ordinary segment is empty.
  std::vector<Segment> split(std::string_view text) const;

 private:
  // A byte trie; an edge is (node << 8 | byte) -> node. Node 0 is the root.
  struct Trie {
    std::unordered_map<uint32_t, uint32_t> edges;
    std::vector<int32_t> ids = {-1};
    std::array<bool, 256> starts{};

    void add(std::string_view content, int32_t id);
    // The longest token that `text` starts with: its id (or -1) and, in `length`, its bytes.
    int32_t longest(std::string_view text, size_t& length) const;
    void split(std::string_view text, std::vector<Segment>& segments) const;
  };
  Trie literal_;     // "normalized": false
  Trie normalized_;  // "normalized": true
};

}  // namespace onelane
