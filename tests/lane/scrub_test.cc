#include "lane/scrub.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(Scrub, AddressesNamesAndKeys) {
  const auto clean = [](const char* text) { return scrub(text, "station-9"); };
  EXPECT_EQ(clean("http://192.168.7.20:8000/v1"), "http://[address]:8000/v1");
  EXPECT_EQ(clean("http://[fe80::1]:8000"), "http://[[address]]:8000");
  EXPECT_EQ(clean("on station-9: ready."), "on [host]: ready.");
  EXPECT_EQ(clean("station-9.example.org:80"), "[host]:80");
  EXPECT_EQ(clean("Authorization: Bearer abc.def"), "Authorization: Bearer [key]");
  EXPECT_EQ(clean("sk-0123456789abcdef."), "[key].");
  EXPECT_EQ(clean("from 10.0.0.1."), "from [address].");
}

TEST(Scrub, LeavesTheRestAlone) {
  const std::string text =
      "127.0.0.1:8000 [::1]:80 0.0.0.0 driver 580.65.06 vbios 96.00.68.00.01 std::string 12:30:05 sk-x station-91 :: "
      "a-b";
  EXPECT_EQ(scrub(text, "station-9"), text);
  EXPECT_EQ(scrub("x", ""), "x");
}

TEST(Scrub, SecretNames) {
  EXPECT_TRUE(is_secret_name("HTTP_API_KEY"));
  EXPECT_TRUE(is_secret_name("authorization"));
  EXPECT_FALSE(is_secret_name("max_tokens"));
}

}  // namespace
}  // namespace onelane
