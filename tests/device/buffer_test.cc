#include "device/buffer.h"

#include <cmath>

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(Buffer, StartsDefinedAndMoves) {
  Buffer plain(100, false);
  for (const uint8_t byte : plain.as<uint8_t>()) EXPECT_EQ(byte, 0);
  Buffer fenced(100, true);
  for (const float value : fenced.as<float>()) EXPECT_TRUE(std::isnan(value));
  Buffer moved = std::move(fenced);
  EXPECT_EQ(moved.size(), 100u);
  EXPECT_EQ(fenced.size(), 0u);
  EXPECT_EQ(Buffer(0, true).data(), nullptr);
}

TEST(BufferDeathTest, OneByteTooFarIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const size_t size : {1u, 64u, 4096u, 5000u}) {
    Buffer fenced(size, true);
    volatile uint8_t* bytes = fenced.as<uint8_t>().data();
    bytes[size - 1] = 1;
    EXPECT_DEATH(bytes[size] = 1, "");
    EXPECT_DEATH((void)bytes[size], "");
  }
}

}  // namespace
}  // namespace onelane
