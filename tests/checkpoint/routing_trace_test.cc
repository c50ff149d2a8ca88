#include "checkpoint/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(RoutingTrace, IsReadAsItIsWritten) {
  const RoutingTrace trace = {{0, {1, 2, 0}}, {17, {0, 0, 5e9}}};
  const auto read = parse_routing_trace(routing_trace_json(trace));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, trace);
}

TEST(RoutingTrace, RefusesWhatIsNone) {
  for (const char* layers :
       {"{}", "[]", "3", R"({"x": [1]})", R"({"-1": [1]})", R"({"0": 1})", R"({"0": []})", R"({"0": [0, 0]})",
        R"({"0": [1, -1]})", R"({"0": [1, "2"]})", R"({"0": [1], "0": [2]})", R"({"0": [1], "00": [2]})"}) {
    const std::string text = std::string(R"({"format": "onelane-routing/1", "layers": )") + layers + "}";
    EXPECT_FALSE(parse_routing_trace(text)) << text;
  }
  for (const char* text : {"", "[]", "{}", R"({"format": "onelane-routing/1"})",
                           R"({"format": "onelane-routing/2", "layers": {"0": [1]}})"}) {
    EXPECT_FALSE(parse_routing_trace(text)) << text;
  }
}

}  // namespace
}  // namespace onelane
