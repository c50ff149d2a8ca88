#include "cache/page_pool.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

TEST(PagePool, HandsOutEveryPageOnceAndTakesThemBack) {
  PagePool pool(3);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), 2);
  EXPECT_EQ(pool.take(), std::nullopt);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_TRUE(pool.release(1));
  EXPECT_EQ(pool.take(), 1);
}

TEST(PagePool, AFreePageComesBackOnlyAfterItsLastUser) {
  PagePool pool(1);
  const int page = *pool.take();
  pool.retain(page);
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.take(), std::nullopt);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.references(page), 0);
  EXPECT_DEATH(pool.release(page), "given back once");
}

}  // namespace
}  // namespace onelane
