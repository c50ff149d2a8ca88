#include "lane/gauntlet.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/tool_schema.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

TEST(Gauntlet, TwelveTasksASetThatShareNothing) {
  for (const char* name : {"full", "mini"}) {
    std::set<std::string> asked;
    for (const bool held_out : {false, true}) {
      const auto tasks = gauntlet_tasks(*find_profile(name, ""), held_out, false);
      EXPECT_EQ(tasks.size(), 12u) << name;
      for (const GauntletTask& task : tasks) {
        EXPECT_TRUE(asked.insert(task.request.dump()).second) << name << " " << task.id;
        for (const std::string& call : task.calls) {
          EXPECT_TRUE(task.results.contains(call)) << task.id;
          const size_t space = call.find(' ');
          EXPECT_EQ(call_problem(task.request["tools"], {"", call.substr(0, space), call.substr(space + 1)}), "");
        }
      }
    }
  }
}

TEST(Gauntlet, AFileChainNeedsFiveReads) {
  const GauntletTask task = gauntlet_tasks(*find_profile("full", ""), false, true)[0];
  EXPECT_EQ(task.calls.size(), 5u);
  EXPECT_EQ(task.request["reasoning_effort"], "low");
  for (size_t i = 0; i + 1 < task.calls.size(); ++i) {
    const std::string& next = task.calls[i + 1];
    const std::string path = next.substr(next.find("notes/"), next.rfind('"') - next.find("notes/"));
    EXPECT_THAT(task.results.at(task.calls[i]), HasSubstr(path));
  }
}

TEST(Gauntlet, AToolTurnHasItsCallsBehindIt) {
  for (const char* name : {"full", "mini"}) {
    const GauntletTask task = tool_turn_task(*find_profile(name, ""));
    EXPECT_TRUE(task.calls.empty());
    EXPECT_EQ(task.request["messages"].back()["role"], "tool") << name;
  }
}

}  // namespace
}  // namespace onelane
