// What tests of gates against a mock server share.
#pragma once

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lane/gate.h"
#include "lane/mock_server.h"

namespace onelane {

inline std::unique_ptr<GateServer> connect(const MockServer& mock) {
  auto server = GateServer::connect({.url = mock.url()}, "");
  EXPECT_TRUE(server) << server.error().message;
  return *std::move(server);
}

inline ReceiptGate run(const char* name, const MockServer& mock, const GatePlan& plan) {
  return run_gate(*find_gate(name), *connect(mock), plan);
}

// Calls `then` when the second line of progress comes, wherever the gate is then.
inline GatePlan at_second_line(GatePlan plan, std::function<void()> then) {
  plan.progress = [then = std::move(then), lines = 0](const std::string&) mutable {
    if (++lines == 2) then();
  };
  return plan;
}

inline void expect_clean_pass(const ReceiptGate& gate) {
  EXPECT_EQ(gate.verdict, Verdict::kPass) << gates_text({.gates = {gate}});
  EXPECT_THAT(gate.reasons, ::testing::IsEmpty());
  EXPECT_EQ(gate.planted_fault_caught, true);
  EXPECT_EQ(gate.null_arm, Verdict::kPass);
}

// A server that begins anew at the second line of progress voids the gate.
inline void expect_void_when_begun_anew(const char* name, MockServer& mock, const GatePlan& plan) {
  const ReceiptGate gate = run(name, mock, at_second_line(plan, [&] { mock.plant(MockFlaw::kCountersBack); }));
  EXPECT_EQ(gate.verdict, Verdict::kVoid);
  EXPECT_THAT(gate.reasons, ::testing::Contains(::testing::HasSubstr("counters went back")));
}

}  // namespace onelane
