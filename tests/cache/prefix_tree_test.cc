#include "cache/prefix_tree.h"

#include <gtest/gtest.h>

namespace onelane {
namespace {

std::vector<int32_t> pages_of(std::initializer_list<int32_t> letters) {
  std::vector<int32_t> tokens;
  for (const int32_t letter : letters) tokens.insert(tokens.end(), kPageTokens, letter);
  return tokens;
}

// Adds a path; returns its nodes.
std::vector<PrefixNode*> add(PrefixTree& tree, std::span<const int32_t> tokens) {
  std::vector<PrefixNode*> path;
  for (; tokens.size() >= kPageTokens; tokens = tokens.subspan(kPageTokens)) {
    path.push_back(tree.add(path.empty() ? nullptr : path.back(), tokens.first(kPageTokens)));
  }
  return path;
}

TEST(PageKey, StandsForTheWholePrefixAndTheModel) {
  const auto page = pages_of({7});
  const PageKey model = root_key("a");
  EXPECT_EQ(page_key(model, page), page_key(model, page));
  EXPECT_NE(page_key(model, page), page_key(root_key("b"), page));
  EXPECT_NE(page_key(page_key(model, page), page), page_key(model, page));
  const PageKey key = page_key(model, page);
  EXPECT_EQ(key_from_hex(to_hex(key)), key);
  EXPECT_EQ(to_hex({0x12, 0xabc}), "00000000000000120000000000000abc");
  for (const char* bad : {"", "12", "0000000000000012000000000000ABCD", "00000000000000120000000000000abc0"}) {
    EXPECT_EQ(key_from_hex(bad), std::nullopt) << bad;
  }
}

TEST(BlobFileName, IsReadBackExactlyAsWritten) {
  for (const BlobKind kind : {BlobKind::kPage, BlobKind::kCheckpoint}) {
    const BlobId id{root_key("x"), kind};
    EXPECT_EQ(parse_blob_file_name(blob_file_name(id)), id);
    EXPECT_EQ(parse_blob_file_name(blob_file_name(id) + ".tmp"), std::nullopt);
    EXPECT_EQ(parse_blob_file_name("a" + blob_file_name(id)), std::nullopt);
  }
  EXPECT_EQ(parse_blob_file_name("lock"), std::nullopt);
}

TEST(PrefixTree, MatchesFullPagesAsFarAsTheyAreKnown) {
  PrefixTree tree(root_key("m"));
  const auto path = add(tree, pages_of({1, 2, 3}));
  EXPECT_EQ(tree.match(pages_of({1, 2, 3, 4})), path);
  EXPECT_EQ(tree.match(pages_of({1, 2, 4})).size(), 2u);
  EXPECT_EQ(tree.match(pages_of({2})).size(), 0u);
  EXPECT_EQ(tree.match(std::span<const int32_t>(pages_of({1, 2})).first(255)).size(), 1u);
  EXPECT_EQ(add(tree, pages_of({1, 2, 3})), path);
  EXPECT_EQ(tree.size(), 3u);
}

TEST(PrefixTree, TwoPagesWithOneKeyAreToldApart) {
  PrefixTree tree(root_key("m"));
  const auto path = add(tree, pages_of({1, 2}));
  path[1]->tokens[5] = 77;  // as if other tokens had hashed to this key
  EXPECT_EQ(tree.match(pages_of({1, 2})).size(), 1u);
  EXPECT_EQ(tree.add(path[0], pages_of({2})), nullptr);
  path[1]->tokens[5] = 2;
  path[1]->parent = path[1];  // or the same tokens behind another parent
  EXPECT_EQ(tree.match(pages_of({1, 2})).size(), 1u);
  EXPECT_EQ(tree.add(path[0], pages_of({2})), nullptr);
}

TEST(PrefixTree, NodesLastAsLongAsTheyOrThoseBehindThemHoldSomething) {
  PrefixTree tree(root_key("m"));
  const auto path = add(tree, pages_of({1, 2, 3}));
  const auto other = add(tree, pages_of({1, 9}));
  path[2]->page.on_disk = true;
  tree.prune(path[1]);
  EXPECT_EQ(tree.size(), 4u);
  path[2]->page.on_disk = false;
  tree.prune(path[2]);
  EXPECT_EQ(tree.size(), 2u);  // 1 is still needed for 9
  BlobList list;
  list.add(other[1]->checkpoint, CachedBlob::Place::kHost);
  tree.prune(other[1]);
  EXPECT_EQ(tree.size(), 2u);
  list.remove(other[1]->checkpoint);
  tree.prune(other[1]);
  EXPECT_EQ(tree.size(), 0u);
}

TEST(PrefixTree, ACheckpointIsSupersededByALaterOneOnTheSamePathOnly) {
  PrefixTree tree(root_key("m"));
  const auto path = add(tree, pages_of({1, 2, 3}));
  path[0]->checkpoint.on_disk = path[2]->checkpoint.on_disk = true;
  tree.checkpoint_appeared(*path[2]);
  EXPECT_TRUE(path[0]->superseded);
  path[2]->checkpoint.on_disk = false;
  tree.checkpoint_vanished(*path[2]);
  EXPECT_FALSE(path[0]->superseded);
  path[2]->checkpoint.on_disk = true;
  tree.checkpoint_appeared(*path[2]);
  add(tree, pages_of({1, 9}));  // a second path begins here
  EXPECT_FALSE(path[0]->superseded);
  tree.checkpoint_appeared(*path[2]);
  EXPECT_FALSE(path[0]->superseded);
}

}  // namespace
}  // namespace onelane
