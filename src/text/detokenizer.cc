#include "text/detokenizer.h"

namespace onelane {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  return stream_.push(tokenizer_->bytes(id));
}

}  // namespace onelane
