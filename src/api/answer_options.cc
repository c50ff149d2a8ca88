#include "api/answer_options.h"

namespace onelane {

AnswerOptions read_answer_options(JsonFields& fields) {
  AnswerOptions out;
  out.stream = fields.boolean("stream").value_or(false);
  if (auto options = fields.object("stream_options")) {
    out.include_usage = options->boolean("include_usage").value_or(false);
    out.continuous_usage = options->boolean("continuous_usage_stats").value_or(false);
  }
  return out;
}

}  // namespace onelane
