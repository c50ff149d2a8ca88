#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/tiny_models.h"

namespace onelane {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// DIR/NAME with one I8 tensor of three bytes per name.
void write_shard(const std::string& dir, const std::string& name, const std::vector<std::string>& tensors) {
  tiny::Zeros zeros;
  for (const std::string& tensor : tensors) zeros.add(tensor, DType::kI8, {3});
  ASSERT_TRUE(write_safetensors(dir + "/" + name, zeros.tensors, {{"shard", name}}));
}

void write_index(const std::string& dir, const json& weight_map) {
  ASSERT_TRUE(write_file(dir + "/model.safetensors.index.json", json{{"weight_map", weight_map}}.dump()));
}

std::string refusal(const std::string& path) {
  const auto checkpoint = Checkpoint::open(path);
  EXPECT_FALSE(checkpoint);
  return checkpoint ? "" : checkpoint.error().message;
}

TEST(Checkpoint, SingleFileByDirectoryAndByPath) {
  const std::string dir = tiny::fresh_dir("single");
  write_shard(dir, "model.safetensors", {"a", "b"});
  for (const std::string& path : {dir, dir + "/model.safetensors"}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors().size(), 2u);
    EXPECT_EQ(checkpoint->shard_count(), 1);
    EXPECT_EQ(checkpoint->total_bytes(), 6);
    EXPECT_EQ(checkpoint->metadata().at("shard"), "model.safetensors");
    EXPECT_NE(checkpoint->find("a"), nullptr);
    EXPECT_EQ(checkpoint->find("c"), nullptr);
  }
}

TEST(Checkpoint, Shards) {
  const std::string dir = tiny::fresh_dir("shards");
  write_shard(dir, "one.safetensors", {"a", "b"});
  write_shard(dir, "two.safetensors", {"c"});
  write_index(dir, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->shard_count(), 2);
  // Views stay good when the checkpoint moves: they point into the mappings.
  const std::byte* data = checkpoint->find("c")->bytes.data();
  const Checkpoint moved = *std::move(checkpoint);
  EXPECT_EQ(moved.find("c")->bytes.data(), data);
}

TEST(Checkpoint, LeadingModelIsDropped) {
  const std::string dir = tiny::fresh_dir("prefix");
  write_shard(dir, "model.safetensors", {"model.embed.weight", "head.weight"});
  const auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(checkpoint);
  EXPECT_NE(checkpoint->find("embed.weight"), nullptr);
  write_shard(dir, "model.safetensors", {"model.embed.weight", "embed.weight"});
  EXPECT_THAT(refusal(dir), HasSubstr("tensor 'embed.weight' is given twice"));
  write_index(dir, {{"model.embed.weight", "model.safetensors"}, {"embed.weight", "model.safetensors"}});
  EXPECT_THAT(refusal(dir), HasSubstr("with and without 'model.'"));
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const std::string dir = tiny::fresh_dir("disagree");
  write_shard(dir, "one.safetensors", {"a", "b"});
  write_shard(dir, "two.safetensors", {"b", "c"});
  const std::string index = dir + "/model.safetensors.index.json";
  // b is in both files: whichever the index names, the other copy is a stranger.
  write_index(dir, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  EXPECT_THAT(refusal(dir), AllOf(HasSubstr("two.safetensors: tensor 'b' is here"), HasSubstr("one.safetensors")));
  write_index(dir, {{"a", "one.safetensors"}});
  EXPECT_THAT(refusal(dir), HasSubstr("one.safetensors: tensor 'b' is not in the index"));
  write_index(dir, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"d", "one.safetensors"}});
  EXPECT_THAT(refusal(dir), HasSubstr("tensor 'd' is not in one.safetensors, where the index puts it"));
  write_index(dir, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"d", "missing.safetensors"}});
  EXPECT_THAT(refusal(dir), HasSubstr(dir + "/missing.safetensors: cannot open"));
  for (const char* shard : {"/etc/passwd", "../one.safetensors", "sub/one.safetensors", "..", ".", "", "a\\b"}) {
    write_index(dir, {{"a", shard}});
    EXPECT_THAT(refusal(dir), AllOf(HasSubstr("weight_map.a"), HasSubstr("not a plain file name"))) << shard;
  }
  write_index(dir, {{"a", std::string("one\0.safetensors", 16)}});
  EXPECT_THAT(refusal(dir), HasSubstr("not a plain file name"));
  write_index(dir, {{"a", 1}});
  EXPECT_THAT(refusal(dir), HasSubstr("weight_map.a: 1"));
  for (const char* text : {"", "{}", "[]", R"({"weight_map": 1})", R"({"weight_map": {"a": "x", "a": "x"}})"}) {
    ASSERT_TRUE(write_file(index, text));
    EXPECT_THAT(refusal(dir), HasSubstr(index)) << text;
  }
}

TEST(Checkpoint, MissingAndDamagedFilesAreNamed) {
  const std::string dir = tiny::fresh_dir("missing");
  EXPECT_THAT(refusal(dir), AllOf(HasSubstr(dir), HasSubstr("model.safetensors.index.json")));
  EXPECT_THAT(refusal(dir + "/nowhere"), HasSubstr("nowhere: cannot open"));
  ASSERT_TRUE(write_file(dir + "/model.safetensors", ""));
  EXPECT_THAT(refusal(dir), HasSubstr("model.safetensors: has 0 bytes"));
  write_shard(dir, "model.safetensors", {"a"});
  const std::string file = *read_file(dir + "/model.safetensors");
  ASSERT_TRUE(write_file(dir + "/model.safetensors", std::string_view(file).substr(0, file.size() - 1)));
  EXPECT_THAT(refusal(dir), AllOf(HasSubstr("model.safetensors: tensor 'a'"), HasSubstr("do not lie within")));
}

}  // namespace
}  // namespace onelane
