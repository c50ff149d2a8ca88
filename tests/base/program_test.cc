#include "base/program.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

// Linkers of Debian's compilers write one (20 bytes, SHA-1); others may be shorter.
TEST(Program, HasABuildIdInHexadecimal) {
  const std::string id = program_build_id();
  EXPECT_GE(id.size(), 16u);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(program_build_id(), id);
}

TEST(Program, KnowsHowItWasCalled) {
  const std::vector<std::string> arguments = program_arguments();
  ASSERT_FALSE(arguments.empty());
  EXPECT_NE(arguments.front().find("base_test"), std::string::npos);
}

}  // namespace
}  // namespace onelane
