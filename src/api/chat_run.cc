#include "api/chat_run.h"

#include <utility>

#include "api/chat_prompt.h"
#include "api/event_stream.h"
#include "api/grammar_fields.h"
#include "api/openai_answer.h"
#include "api/sampling_fields.h"
#include "api/structured_output.h"
#include "base/format.h"

namespace onelane {
namespace {

using Kind = CompletionEvent::Kind;

class ChatRun : public std::enable_shared_from_this<ChatRun> {
 public:
  ChatRun(Services& services, std::shared_ptr<ApiExchange> exchange, std::shared_ptr<ProtocolAnswer> answer)
      : services_(services), exchange_(std::move(exchange)), answer_(std::move(answer)) {}

  void start(ChatJob job) {
    calls_ = job.calls;
    parallel_calls_ = job.parallel_calls;
    ignored_ = std::move(job.ignored);
    // The sink keeps this alive until its last delta; a generation that is cancelled drops it.
    auto started =
        TextGeneration::start(services_, std::move(job.request),
                              [self = shared_from_this()](const GenerationDelta& delta) { self->on_delta(delta); });
    if (!started) return exchange_->fail(to_api_error(started.error()));
    generation_ = *std::move(started);
    const auto closed = [weak = weak_from_this()] {
      if (const auto run = weak.lock()) run->cancel();
    };
    if (!job.stream) return exchange_->on_close(closed);
    stream_ = EventStream::start(services_, exchange_, closed, std::string(answer_->keep_alive()));
    answer_->stream_to([this](std::string_view type, const std::string& json) { stream_->event(type, json); });
    answer_->open();
  }

 private:
  void on_delta(const GenerationDelta& delta) {
    if (over_) return;
    answer_->use({delta.stats.prompt_tokens, delta.stats.cached_tokens, delta.stats.tokens, delta.reasoning_tokens});
    AnswerEnd end{.reason = delta.finish, .stop = delta.stop};
    if (end.failed()) end.error = generation_error(delta.finish, delta.error);
    if (end.failed() && !stream_) return finish(delta, end);
    if (!std::exchange(begun_, true)) answer_->begin();
    for (size_t i = 0; i < delta.events.size();) {
      CompletionEvent event = delta.events[i++];
      if (event.call >= 0 && !calls_) continue;
      // What came in one step goes out in one event.
      const bool text = event.kind != Kind::kCallBegin && event.kind != Kind::kCallEnd;
      while (text && i < delta.events.size() && delta.events[i].kind == event.kind &&
             delta.events[i].call == event.call) {
        event.text += delta.events[i++].text;
      }
      answer_->add(event);
      if (event.kind == Kind::kCallEnd && !parallel_calls_) return finish(delta, {});
    }
    if (end.reason != FinishReason::kNone) finish(delta, end);
  }

  void finish(const GenerationDelta& delta, const AnswerEnd& end) {
    exchange_->note(format("{}+{} tokens ({} cached), {}{}{}", delta.stats.prompt_tokens, delta.stats.tokens,
                           delta.stats.cached_tokens, finish_reason_name(end.reason),
                           ignored_.empty() ? "" : "; ignored: ", ignored_));
    cancel();
    if (end.failed() && !stream_) return exchange_->fail(end.error);
    answer_->end(end);
    if (stream_) return stream_->finish();
    exchange_->respond({.body = answer_->body()});
  }

  void cancel() {
    over_ = true;
    const auto self = shared_from_this();
    if (generation_) generation_->cancel();
  }

  Services& services_;
  std::shared_ptr<ApiExchange> exchange_;
  std::shared_ptr<ProtocolAnswer> answer_;
  std::shared_ptr<EventStream> stream_;
  std::shared_ptr<TextGeneration> generation_;
  std::string ignored_;
  bool calls_ = true;
  bool parallel_calls_ = true;
  bool begun_ = false;
  bool over_ = false;
};

ApiProblem in_client_words(ApiProblem problem, const ChatRequest& chat) {
  if (!problem) return problem;
  problem->message = chat.in_client_words(problem->message);
  problem->param = chat.in_client_words(problem->param);
  return problem;
}

ApiProblem prepare(const Services& services, const ChatRequest& chat, const std::string& prompt_field, ChatJob& out) {
  ApiProblem problem;
  JsonFields fields(chat.json, "", problem);
  if (auto unknown = check_model(fields, services, out.model)) return unknown;
  out.stream = fields.boolean("stream").value_or(false);
  out.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  out.calls = chat.tool_choice.mode != ToolChoice::Mode::kNone;
  out.ignored = format("{}", fmt::join(chat.ignored, ", "));
  std::optional<GrammarSource> grammar = read_grammar(fields);
  const SamplingFields sampling = read_sampling(fields, services);
  const auto max_tokens = fields.integer("max_tokens", 1, 1 << 30);
  if (problem) return problem;

  ChatPrompt prompt;
  if (auto refused = encode_chat(services, dump_json(chat.json), prompt)) return refused;
  if (auto refused = check_tool_choice(chat.tool_choice, prompt, "tool_choice")) return refused;
  out.request = sampling.base;
  out.request.chat = true;
  out.request.thinking = prompt.thinking;
  out.request.grammar = std::move(grammar);
  if (out.request.grammar) out.request.grammar->field = chat.in_client_words(out.request.grammar->field);
  apply_tool_choice(services, chat.tool_choice, prompt, out.request);
  return set_prompt(services, prompt_field, std::move(prompt.tokens), max_tokens, true, out.request.request);
}

}  // namespace

ApiProblem prepare_chat(const Services& services, const ChatRequest& chat, const std::string& prompt_field,
                        ChatJob& out) {
  return in_client_words(prepare(services, chat, prompt_field, out), chat);
}

ApiProblem count_prompt_tokens(const Services& services, const ChatRequest& chat, size_t& tokens) {
  ChatPrompt prompt;
  if (auto refused = encode_chat(services, dump_json(chat.json), prompt)) return in_client_words(refused, chat);
  tokens = prompt.tokens.size();
  return {};
}

void run_chat(Services& services, ChatJob job, std::shared_ptr<ApiExchange> exchange,
              std::shared_ptr<ProtocolAnswer> answer) {
  auto run = std::make_shared<ChatRun>(services, exchange, std::move(answer));
  std::vector<GenerationRequest> requests{std::move(job.request)};
  with_grammar(services, exchange, std::move(requests),
               [run = std::move(run), job = std::move(job)](std::vector<GenerationRequest> ready) mutable {
                 job.request = std::move(ready.front());
                 run->start(std::move(job));
               });
}

}  // namespace onelane
