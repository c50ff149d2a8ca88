#include "text/completion.h"

#include "base/format.h"
#include "text/python_json.h"

namespace onelane {

std::string message_json(const AssistantMessage& message) {
  std::string calls;
  for (const ToolCall& call : message.tool_calls) {
    if (!calls.empty()) calls += ", ";
    calls += format("{{\"type\": \"function\", \"function\": {{\"name\": {}, \"arguments\": {}}}}}",
                    dump_json_string(call.name), dump_json_string(call.arguments));
  }
  return format("{{\"role\": \"assistant\", \"reasoning_content\": {}, \"content\": {}, \"tool_calls\": [{}]}}",
                dump_json_string(message.reasoning), dump_json_string(message.content), calls);
}

}  // namespace onelane
