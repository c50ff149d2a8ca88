#include "cli/chat.h"

#include <algorithm>
#include <iostream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/format.h"
#include "text/completion_parser.h"
#include "text/detokenizer.h"
#include "text/prompt_encoder.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

class Chat {
 public:
  Chat(Runtime runtime, const ChatCommand& command, std::unique_ptr<Session> session)
      : runtime_(std::move(runtime)),
        command_(command),
        session_(std::move(session)),
        terminal_(::isatty(STDOUT_FILENO) != 0) {
    reset();
  }

  Result<void> run() {
    std::string line;
    while (prompt(), std::getline(std::cin, line)) {
      if (line == "/exit" || line == "/quit") return {};
      if (line == "/reset") {
        reset();
        std::cout << "(conversation forgotten)" << std::endl;
      } else if (line.starts_with("/")) {
        std::cout << "commands: /reset forgets the conversation, /exit leaves" << std::endl;
      } else if (!line.empty()) {
        auto answered = answer(line);
        // A prompt that is too long or badly encoded costs this message, not the conversation.
        if (!answered) {
          messages_.erase(messages_.end() - 1);
          fail(answered.error());
        }
      }
    }
    if (terminal_) std::cout << std::endl;
    return {};
  }

 private:
  void prompt() const {
    if (terminal_) std::cout << "> " << std::flush;
  }

  void reset() {
    messages_ = Json::array();
    if (!command_.system.empty()) messages_.push_back({{"role", "system"}, {"content", command_.system}});
    session_->truncate(0);
  }

  Result<void> answer(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Json request;
    request["messages"] = messages_;
    request["thinking_mode"] = command_.thinking ? "thinking" : "chat";
    if (!command_.effort.empty()) request["reasoning_effort"] = command_.effort;
    ONELANE_ASSIGN(const EncodedPrompt encoded,
                   encode_prompt(request.dump(-1, ' ', false, Json::error_handler_t::replace), *runtime_.format));
    ONELANE_ASSIGN(std::vector<int32_t> ids, runtime_.encode(encoded.text, false));

    // What the session already holds is kept when the new prompt goes on from it, and read again otherwise: encoding
    // drops the reasoning of earlier turns, so the text before the last answer can change.
    const auto held = session_->tokens();
    const bool extends = ids.size() > held.size() && std::equal(held.begin(), held.end(), ids.begin());
    if (!extends) session_->truncate(0);
    const auto fresh = std::span<const int32_t>(ids).subspan(session_->tokens().size());

    CompletionParser parser(*runtime_.format, encoded.starts_in_thinking);
    Detokenizer detokenizer(runtime_.tokenizer);
    const TokenSink sink = [&](int32_t token) {
      show(parser.feed(detokenizer.push(token)));
      return static_cast<bool>(std::cout);
    };
    ONELANE_ASSIGN(const GenerateResult result,
                   generate(*session_, fresh, command_.options, runtime_.model->spec.tokens.eos, sink,
                            progress_line("reading prompt:")));
    show(parser.feed(detokenizer.flush()));
    show(parser.finish(result.reason == FinishReason::kLength));
    dim(false);
    std::cout << std::endl;
    if (terminal_) report(result);
    messages_.push_back(Json::parse(message_json(parser.message())));
    return {};
  }

  void show(const std::vector<CompletionEvent>& events) {
    for (const CompletionEvent& event : events) {
      dim(event.kind == CompletionEvent::Kind::kReasoning);
      switch (event.kind) {
        case CompletionEvent::Kind::kCallBegin:
          std::cout << "\n[call " << event.text << " ";
          break;
        case CompletionEvent::Kind::kCallEnd:
          std::cout << "]";
          break;
        default:
          std::cout << event.text;
      }
    }
    std::cout << std::flush;
  }

  // Switches dimming; reasoning and what follows it are separated by a line break.
  void dim(bool wanted) {
    if (wanted == dimmed_) return;
    if (!wanted) std::cout << (terminal_ ? "\033[0m\n" : "\n");
    if (wanted && terminal_) std::cout << "\033[2m";
    dimmed_ = wanted;
  }

  void report(const GenerateResult& result) const {
    const GenerateStats& stats = result.stats;
    std::cout << format("\033[2m({} tokens, {:.0f} tokens/s, {:.2f} drafts accepted a step{})\033[0m\n", stats.tokens,
                        stats.decode_seconds > 0 ? stats.tokens / stats.decode_seconds : 0.0, stats.mean_accepted(),
                        result.reason == FinishReason::kLength ? ", cut off by --max-tokens" : "");
  }

  Runtime runtime_;
  const ChatCommand& command_;
  std::unique_ptr<Session> session_;
  const bool terminal_;
  bool dimmed_ = false;
  Json messages_;
};

Result<void> chat(const ChatCommand& command) {
  ONELANE_TRY(check_sampling(command.options.sampling));
  ONELANE_ASSIGN(Runtime runtime, load_runtime(command.runtime));
  ONELANE_ASSIGN(auto session, Session::create(*runtime.model, *runtime.kernels, {}));
  return Chat(std::move(runtime), command, std::move(session)).run();
}

}  // namespace

int run_chat(const ChatCommand& command) {
  const auto done = chat(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
