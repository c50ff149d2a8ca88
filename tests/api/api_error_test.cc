#include "api/api_error.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(ApiError, SaysWhoseFaultItIs) {
  EXPECT_EQ(to_api_error({ErrorCode::kInvalidArgument, "no"}).status, 400);
  EXPECT_EQ(to_api_error({ErrorCode::kResourceExhausted, "full"}).status, 503);
  EXPECT_EQ(to_api_error({ErrorCode::kCorrupt, "broken"}).status, 500);
}

TEST(ApiError, HasTheShapeOfEachProtocol) {
  const ApiError error{.status = 404, .message = "no model 'x'", .param = "model", .code = "model_not_found"};
  EXPECT_EQ(
      openai_error(error).body,
      R"({"error":{"message":"no model 'x'","type":"invalid_request_error","param":"model","code":"model_not_found"}})");
  EXPECT_EQ(openai_error(error).status, 404);
  EXPECT_EQ(anthropic_error(error).body,
            R"({"type":"error","error":{"type":"not_found_error","message":"no model 'x'"}})");
}

TEST(ApiError, SurvivesBytesThatAreNotText) {
  EXPECT_NE(openai_error({.message = "\xff"}).body.find("\xef\xbf\xbd"), std::string::npos);
}

}  // namespace
}  // namespace onelane
