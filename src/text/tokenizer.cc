#include "text/tokenizer.h"

#include "base/format.h"
#include "text/utf8.h"

namespace onelane {

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  if (text.size() >= (size_t{1} << 31)) {
    return Error{ErrorCode::kInvalidArgument, format("text of {} bytes: at most 2^31-1 can be encoded", text.size())};
  }
  ONELANE_TRY(check_utf8(text, "text"));
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  std::vector<std::string_view> pieces;
  for (const AddedTokens::Segment& segment : added_.split(text)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    pieces.assign(1, segment.text);
    ONELANE_TRY(pretokenizer_.split(pieces));
    for (const std::string_view piece : pieces) {
      const auto whole = whole_pieces_.find(piece);
      if (whole != whole_pieces_.end()) {
        ids.push_back(whole->second);
      } else {
        bpe_->encode(piece, ids);
      }
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Utf8Stream stream;
  std::string text;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) text += stream.push(bytes(id));
  }
  return text + stream.flush();
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view raw) const {
  const auto found = ids_.find(std::string(raw));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace onelane
