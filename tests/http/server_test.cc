#include "http/server.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(HttpRequest, FindsHeadersByLowerCaseName) {
  const HttpRequest request{.headers = {{"content-type", "application/json"}}};
  EXPECT_EQ(request.header("content-type"), "application/json");
  EXPECT_EQ(request.header("accept"), "");
}

}  // namespace
}  // namespace onelane
