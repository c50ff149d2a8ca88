// How an OpenAI answer is to be sent.
#pragma once

#include <string>

#include "api/json_fields.h"

namespace onelane {

struct AnswerOptions {
  std::string id;
  std::string model;
  bool stream = false;
  bool include_usage = false;     // a last chunk with usage
  bool continuous_usage = false;  // usage so far in every chunk
};

// Reads stream and stream_options; id and model are the route's.
AnswerOptions read_answer_options(JsonFields& fields);

}  // namespace onelane
