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

// Memory that stands for a device's.
class Elsewhere final : public HostMemory {
 public:
  bool on_host() const override { return false; }
};

TEST(Buffer, OffTheHostAFenceIsABorder) {
  if (!fences_on()) GTEST_SKIP() << "for fenced runs: ONELANE_FENCE=1";
  Elsewhere memory;
  for (const size_t size : {1u, 100u, 4096u}) {
    Buffer buffer(size, memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    for (const uint8_t byte : buffer.as<uint8_t>()) EXPECT_EQ(byte, 0xff);
    Buffer moved = std::move(buffer);
    moved.zero();
    for (const ptrdiff_t beside :
         {ptrdiff_t{-256}, ptrdiff_t{-1}, static_cast<ptrdiff_t>(size), static_cast<ptrdiff_t>(size) + 255}) {
      EXPECT_DEATH(
          {
            Buffer broken(size, memory);
            broken.data()[beside] = std::byte{1};
          },
          "beside a buffer of a device");
    }
  }
}

}  // namespace
}  // namespace onelane
