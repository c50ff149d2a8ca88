// A model for the mock server that knows the answers of the profile "mini": what a clean server looks like to a gate.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "lane/gauntlet.h"
#include "lane/mock_server.h"

namespace onelane {

inline MockReply scripted_mini(const nlohmann::json& request) {
  const GateProfile& profile = *find_profile("mini", "");
  const std::string asked = request["messages"].back()["content"];
  const bool thinking = request["chat_template_kwargs"]["thinking"];
  MockReply reply;
  const auto say = [&](const std::string& text) { reply.content = mock_pieces(text); };
  if (thinking) reply.reasoning = mock_pieces("I look at it digit by digit and write down what I get.");
  if (const size_t at = asked.find("What is the code of "); at != std::string::npos) {
    const std::string key = asked.substr(at + 20, asked.size() - at - 21);
    const size_t fact = asked.find("The code of " + key + " is ") + 16 + key.size();
    say("The code of " + key + " is " + asked.substr(fact, asked.find('.', fact) - fact) + ".");
    return reply;
  }
  for (const bool held_out : {false, true}) {
    for (const GauntletTask& task : gauntlet_tasks(profile, held_out, false)) {
      const bool answered = request["messages"].back()["role"] == "tool" && !task.calls.empty() &&
                            task.results.at(task.calls[0]) == asked;
      if (answered) {
        say(task.oracle.all[0]);
      } else if (task.request["messages"].back()["content"] != asked) {
        continue;
      } else if (!task.calls.empty()) {
        const size_t space = task.calls[0].find(' ');
        reply.tool_calls = {{"call_7", task.calls[0].substr(0, space), task.calls[0].substr(space + 1)}};
        reply.finish_reason = "tool_calls";
        reply.content = {""};
      } else if (task.oracle.kind == Oracle::Kind::kNumber) {
        say("The sum is " + std::to_string(task.oracle.number));
      } else {
        std::string row;
        for (const std::string& cell : task.oracle.rows[0]) row += (row.empty() ? "" : ", ") + cell;
        say(row);
      }
      return reply;
    }
  }
  say("w");  // one token, as a long arrival asks for
  return reply;
}

}  // namespace onelane
