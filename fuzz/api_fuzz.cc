// Any bytes as the body of any route: read, or refused with a message; a refusal names a field unless the body is no
// JSON object. Nothing is generated.
#include <cstdlib>
#include <memory>

#include "api/chat_fields.h"
#include "api/completion_fields.h"
#include "api/metrics.h"
#include "api/services.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "text/compressed_token_map.h"

namespace {

using namespace onelane;

// The limits come from a real engine; it stays idle.
struct Fixture {
  Tokenizer tokenizer = *Tokenizer::load(dir() + "/tokenizer.json");
  std::unique_ptr<Model> model = *Model::load(dir(), std::move(compressed_token_map(tokenizer)->number));
  std::unique_ptr<Kernels> kernels = make_cpu_kernels(1);
  std::unique_ptr<Engine> engine =
      *Engine::create(*model, *kernels, {.max_sequences = 1, .max_model_len = 512, .step_rows = 128});
  Metrics metrics{"m"};
  Services services{.engine = *engine,
                    .tokenizer = tokenizer,
                    .format = kPromptFormatV41,
                    .spec = model->spec,
                    .metrics = metrics,
                    .options = {.model_names = {"m"}},
                    .post = {},
                    .post_after = {}};

  static std::string dir() { return ONELANE_ROOT "/models/mini-v41"; }
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
  const auto refused = read_chat(fixture.services, body, chat);
  check(refused, body);
  if (!refused && chat.requests.empty()) std::abort();
  CompletionFields completion;
  const auto refused_too = read_completion(fixture.services, body, completion);
  check(refused_too, body);
  if (!refused_too && completion.requests.empty()) std::abort();
  return 0;
}
