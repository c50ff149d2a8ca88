// Any bytes as the body of any route: read, or refused with a message; a refusal names a field unless the body is no
// JSON object. Nothing is generated.
#include <cstdlib>

#include "api/chat_fields.h"
#include "api/completion_fields.h"
#include "api/services.h"

namespace {

using namespace onelane;

struct Fixture {
  Tokenizer tokenizer = *Tokenizer::load(ONELANE_ROOT "/models/mini-v41/tokenizer.json");
  ModelSpec spec = {.vocab = tokenizer.size(), .tokens = {.bos = 0, .eos = 1}};
  ApiContext context{.tokenizer = tokenizer,
                     .format = kPromptFormatV41,
                     .spec = spec,
                     .options = {.model_names = {"m"}},
                     .max_model_len = 512};
};

void check(const ApiProblem& problem, std::string_view body) {
  if (!problem) return;
  if (problem->message.empty() || problem->status < 400 || problem->status > 499) std::abort();
  JsonValue root;
  if (!parse_body(body, root) && problem->param.empty()) {
    // What the conversation reader refuses as a whole has no path.
    if (!problem->message.starts_with("request") && !problem->message.starts_with("invalid")) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Fixture fixture;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ChatFields chat;
  const auto refused = read_chat(fixture.context, body, chat);
  check(refused, body);
  if (!refused && chat.requests.empty()) std::abort();
  CompletionFields completion;
  const auto refused_too = read_completion(fixture.context, body, completion);
  check(refused_too, body);
  if (!refused_too && completion.requests.empty()) std::abort();
  return 0;
}
