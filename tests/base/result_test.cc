#include "base/result.h"

#include <memory>

#include <gtest/gtest.h>

namespace onelane {
namespace {

Result<std::unique_ptr<int>> make(bool good) {
  if (!good) return Error{ErrorCode::kNotFound, "no such thing"};
  return std::make_unique<int>(7);
}

Result<int> twice(bool good) {
  ONELANE_ASSIGN(std::unique_ptr<int> value, make(good));
  return *value * 2;
}

TEST(Result, CarriesAValueOrAnError) {
  EXPECT_EQ(*twice(true), 14);
  const Result<int> failed = twice(false);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Error(failed.error()).in("config.json").message, "config.json: no such thing");
}

TEST(ResultDeathTest, TakingTheValueOfAnErrorSaysWhichError) { EXPECT_DEATH((void)*twice(false), "no such thing"); }

}  // namespace
}  // namespace onelane
