#include "base/mapped_file.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

namespace onelane {
namespace {

std::string scratch(const std::string& name) {
  return testing::TempDir() + "/" + std::to_string(::getpid()) + "_mapped_file_" + name;
}

TEST(MappedFile, ReadsWhatWasWritten) {
  const std::string path = scratch("a");
  const std::string text("zero \0 inside", 13);
  ASSERT_TRUE(write_file(path, text));
  EXPECT_EQ(*read_file(path), text);
  ASSERT_TRUE(write_file(path, ""));
  EXPECT_EQ(*read_file(path), "");
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(MappedFile, ErrorsNameThePath) {
  const auto missing = MappedFile::open(scratch("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("mapped_file_missing"), std::string::npos);
  const auto directory = MappedFile::open(testing::TempDir());
  ASSERT_FALSE(directory);
  EXPECT_NE(directory.error().message.find("not a regular file"), std::string::npos);
  EXPECT_FALSE(write_file(scratch("no/such/directory"), "x"));
}

}  // namespace
}  // namespace onelane
