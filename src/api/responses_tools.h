// The tools of a /v1/responses request.
//
// Function tools keep name, description and parameters. Custom tools, which take free text, become functions with one
// string parameter "input". Tools of a namespace become functions with its name in front. Tools that a server would
// run itself (web_search and the like, which Codex offers to every server) are left out and listed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/chat_prompt.h"
#include "base/result.h"
#include "text/python_json.h"

namespace onelane {

// How a call of a function that the model sees goes back to the client.
struct ResponsesTool {
  std::string function;  // the name that the model sees
  std::string name;
  std::string space;    // of a tool in a namespace; empty: none
  bool custom = false;  // takes free text: custom_tool_call, its input is the one string parameter "input"
};

struct ResponsesTools {
  std::vector<ResponsesTool> tools;
  std::vector<JsonValue> schemas;  // as chat has them; those that tool_choice allows
  ToolChoice choice;
  std::vector<std::string> ignored;  // "tools[2] (web_search)"
};

// Reads `tools` and `tool_choice` of a request. A choice of a tool that is left out counts as none was made. Errors
// name the field.
Result<ResponsesTools> read_responses_tools(const JsonValue& body);

// The name that the model sees. Names in the default namespace, "functions", stand for themselves.
std::string responses_function_name(const std::string& space, const std::string& name);

}  // namespace onelane
