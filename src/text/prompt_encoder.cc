#include "text/prompt_encoder.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "base/format.h"

namespace onelane {
namespace {

// There is no tool role in the prompt: results are parts of a user turn, and neighbouring user turns are one.
std::vector<Message> merge_user_turns(const std::vector<Message>& messages) {
  std::vector<Message> turns;
  for (const Message& message : messages) {
    const bool user_like = message.role == Role::kUser || message.role == Role::kTool;
    const bool joins = user_like && !turns.empty() && turns.back().role == Role::kUser &&
                       (message.role == Role::kTool || turns.back().task.empty());
    if (!joins) {
      turns.push_back(message);
      if (user_like) turns.back().role = Role::kUser;
      continue;
    }
    Message& turn = turns.back();
    turn.parts.insert(turn.parts.end(), message.parts.begin(), message.parts.end());
    if (!message.task.empty()) turn.task = message.task;
    turn.tools.insert(turn.tools.end(), message.tools.begin(), message.tools.end());
  }
  return turns;
}

// Results may arrive in any order; the model has seen them in the order of the calls. Parts that are not results keep
// their places. A result whose id no call has counts as belonging to the first call.
void sort_tool_results(std::vector<Message>& turns) {
  std::unordered_map<std::string, size_t> order;
  for (Message& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.calls.empty()) {
      order.clear();
      for (size_t i = 0; i < turn.calls.size(); ++i) {
        if (!turn.calls[i].id.empty()) order[turn.calls[i].id] = i;
      }
    }
    if (turn.role != Role::kUser || order.empty()) continue;
    const std::vector<ContentPart> parts = turn.parts;
    std::vector<std::pair<size_t, size_t>> results;  // rank of the call, place among the parts
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i].tool_result) continue;
      const auto found = order.find(parts[i].tool_call_id);
      results.emplace_back(found == order.end() ? 0 : found->second, i);
    }
    std::sort(results.begin(), results.end());
    size_t next = 0;
    for (ContentPart& part : turn.parts) {
      if (part.tool_result) part = parts[results[next++].second];
    }
  }
}

class Encoder {
 public:
  Encoder(const Conversation& conversation, const PromptFormat& prompt_format)
      : format_(prompt_format), thinking_(conversation.thinking), turns_(merge_user_turns(conversation.messages)) {
    sort_tool_results(turns_);
    const bool tools = std::any_of(turns_.begin(), turns_.end(), [](const Message& m) { return !m.tools.empty(); });
    drop_ = conversation.drop_thinking && !tools;
    if (thinking_ && drop_) drop_old_turns();
    last_user_ = last_user();
  }

  EncodedPrompt run(std::string_view effort) {
    out_ = kBosText;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (i == 0) {
        if (!effort.empty() || turns_[0].role == Role::kSystem) out_ += format_.system_token;
        out_ += effort;
      }
      turn(i);
      const bool answered =
          i + 1 == turns_.size() || turns_[i + 1].role == Role::kAssistant || turns_[i + 1].role == Role::kReminder;
      if (answered) header(i);
    }
    EncodedPrompt prompt;
    prompt.starts_in_thinking = out_.ends_with(kThinkText) && !turns_.empty() && asks(turns_.size() - 1);
    prompt.text = std::move(out_);
    return prompt;
  }

 private:
  bool asks(size_t i) const {
    const Role role = turns_[i].role;
    return role == Role::kUser || role == Role::kDeveloper ||
           (role == Role::kSystem && i > 0 && format_.later_system_turns);
  }
  std::ptrdiff_t last_user() const {
    auto i = static_cast<std::ptrdiff_t>(turns_.size()) - 1;
    while (i >= 0 && !asks(static_cast<size_t>(i))) --i;
    return i;
  }
  // Developer turns before the last question are dropped together with the reasoning (which render() leaves out).
  void drop_old_turns() {
    const std::ptrdiff_t last = last_user();
    std::vector<Message> kept;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role == Role::kDeveloper && static_cast<std::ptrdiff_t>(i) < last) continue;
      kept.push_back(std::move(turns_[i]));
    }
    turns_ = std::move(kept);
  }

  void turn(size_t i) {
    const Message& message = turns_[i];
    switch (message.role) {
      case Role::kSystem:
        if (i > 0) out_ += format_.system_token;
        instructions(message);
        break;
      case Role::kDeveloper:
        out_ += kUserText;
        instructions(message);
        break;
      case Role::kReminder:
        out_ += kReminderText;
        out_ += message.parts.front().text;
        break;
      case Role::kUser:
      case Role::kTool:
        out_ += kUserText;
        for (const ContentPart& part : message.parts) {
          if (&part != &message.parts.front()) out_ += "\n\n";
          out_ += part.tool_result ? format("{}{}{}", kToolResultText, part.text, kToolResultEndText) : part.text;
        }
        break;
      case Role::kAssistant:
        assistant(i);
        break;
    }
  }

  void instructions(const Message& message) {
    out_ += message.parts.front().text;
    if (!message.tools.empty()) out_ += "\n\n" + tools_text(format_, message.tools);
    if (!message.response_format.empty()) out_ += format("\n\n{}{}", kResponseFormatText, message.response_format);
  }

  void assistant(size_t i) {
    const Message& message = turns_[i];
    const bool answers_task = i > 0 && !turns_[i - 1].task.empty();
    if (thinking_ && !answers_task && (!drop_ || static_cast<std::ptrdiff_t>(i) > last_user_)) {
      out_ += message.reasoning;
      out_ += kThinkEndText;
    }
    out_ += message.parts.front().text;
    if (!message.calls.empty()) calls(message.calls);
    if (!message.unfinished) out_ += kEosText;
  }

  void calls(const std::vector<CallRecord>& records) {
    out_ += format("\n\n<{}{}>", kDsmlText, format_.calls_tag);
    for (const CallRecord& record : records) {
      out_ += format("\n<{}{} name=\"{}\">\n", kDsmlText, format_.invoke_tag, record.name);
      for (const CallArgument& argument : record.arguments) {
        if (&argument != &record.arguments.front()) out_ += "\n";
        out_ += format("<{0}{1} name=\"{2}\" string=\"{3}\">{4}</{0}{1}>", kDsmlText, format_.parameter_tag,
                       argument.name, argument.is_string, argument.value);
      }
      out_ += format("\n</{}{}>", kDsmlText, format_.invoke_tag);
    }
    out_ += format("\n</{}{}>", kDsmlText, format_.calls_tag);
  }

  void header(size_t i) {
    const std::string& task = turns_[i].task;
    if (!task.empty()) {
      if (task == "action") {
        out_ += kAssistantText;
        out_ += thinking_ ? kThinkText : kThinkEndText;
      }
      out_ += *task_text(task);
    } else if (asks(i)) {
      out_ += kAssistantText;
      out_ += thinking_ && (!drop_ || static_cast<std::ptrdiff_t>(i) >= last_user_) ? kThinkText : kThinkEndText;
    }
  }

  const PromptFormat& format_;
  bool thinking_;
  bool drop_ = true;
  std::vector<Message> turns_;
  std::ptrdiff_t last_user_ = -1;
  std::string out_;
};

}  // namespace

Result<EncodedPrompt> encode_prompt(const Conversation& conversation, const PromptFormat& format) {
  std::string effort;
  if (conversation.thinking) {
    ONELANE_ASSIGN(effort, effort_text(format, conversation.effort));
  }
  EncodedPrompt prompt = Encoder(conversation, format).run(effort);
  prompt.images = conversation.images;
  return prompt;
}

Result<EncodedPrompt> encode_prompt(std::string_view json, const PromptFormat& format) {
  ONELANE_ASSIGN(const Conversation conversation, parse_conversation(json, format));
  return encode_prompt(conversation, format);
}

}  // namespace onelane
