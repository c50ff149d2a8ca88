#include "base/splitmix.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

// The published generator's first outputs for the seed 1234567.
TEST(SplitMix, GivesThePublishedNumbers) {
  SplitMix numbers(1234567);
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(numbers.next(), expected);
  }
}

}  // namespace
}  // namespace onelane
