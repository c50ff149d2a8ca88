#include "lane/capture.h"

#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "lane/capture_support.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

using ::testing::HasSubstr;

Capture small() {
  return captured(
      {{.id = "code/01",
        .workload = "code",
        .tokens = {1, 0, 2},
        .prompt = 2,
        .first = 1,
        .positions = {position_of({0.5, 0.25, 0.125, 0.125}, 0), position_of({0.5, 0.25, 0.125, 0.125}, 2)}},
       {.id = "prose/01",
        .workload = "prose",
        .tokens = {3, 3},
        .first = 1,
        .positions = {position_of({0.1, 0.2, 0.3, 0.4}, 3)}}});
}

std::string sealed(const std::string& body) { return body + sha256(body); }

TEST(Capture, ComesBackAsItWas) {
  const Capture before = small();
  const std::string path = ::testing::TempDir() + "capture";
  ASSERT_TRUE(save_capture(before, path));
  const auto after = load_capture(path);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->corpus_sha256, before.corpus_sha256);
  EXPECT_EQ(after->path, "prefill");
  ASSERT_EQ(after->documents.size(), 2u);
  EXPECT_EQ(after->documents[0].tokens, before.documents[0].tokens);
  EXPECT_EQ(after->documents[0].prompt, 2u);
  EXPECT_EQ(after->documents[0].positions[1].top, before.documents[0].positions[1].top);
  EXPECT_EQ(after->documents[0].positions[1].rank, 3u);
  EXPECT_EQ(capture_bytes(*after).value(), capture_bytes(before).value());
}

// Written by another program from the description of the format.
TEST(Capture, HasTheLayoutThatIsDescribed) {
  const auto capture = load_capture(ONELANE_ROOT "/fuzz/corpus/capture/two.capture");
  ASSERT_TRUE(capture) << capture.error().message;
  EXPECT_EQ(capture->model, "mini");
  EXPECT_EQ(capture->build, "onelane 0.1.0");
  ASSERT_EQ(capture->documents.size(), 2u);
  EXPECT_EQ(capture->documents[0].workload, "code");
  EXPECT_EQ(capture->documents[1].tokens, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(capture->documents[1].first, 3u);
  EXPECT_EQ(capture->documents[0].prompt, 2u);
  const CapturePosition& at = capture->documents[0].positions[1];
  EXPECT_EQ(at.rank, 3u);
  EXPECT_FLOAT_EQ(at.tail, 0.25f);
  EXPECT_FLOAT_EQ(at.logprob, std::log(0.0625f));
  EXPECT_EQ(at.top, (std::vector<std::pair<int32_t, float>>{{2, std::log(0.75f)}}));
}

TEST(Capture, OneChangedOrMissingByteIsAnError) {
  const std::string bytes = capture_bytes(small()).value();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] ^= 1;
    EXPECT_FALSE(parse_capture(changed)) << i;
    EXPECT_FALSE(parse_capture(bytes.substr(0, i))) << i;
  }
  EXPECT_FALSE(parse_capture(bytes + "x"));
}

TEST(Capture, ErrorsSayWhatIsWrong) {
  const auto refused = [](const std::function<void(Capture&)>& damage) {
    Capture capture = small();
    damage(capture);
    const auto bytes = capture_bytes(capture);
    return bytes ? std::string("taken") : bytes.error().message;
  };
  const auto at = [](Capture& c) -> CapturePosition& { return c.documents[0].positions[1]; };
  EXPECT_THAT(refused([&](Capture& c) { at(c).logprob = NAN; }),
              HasSubstr("document \"code/01\": position 2: logprob: "));
  EXPECT_THAT(refused([&](Capture& c) { at(c).tail = 1.5; }), HasSubstr("tail: 1.5 is not from 0 to 1"));
  EXPECT_THAT(refused([&](Capture& c) { at(c).tail = 0.5; }), HasSubstr("a mass of 1.5000 instead of 1"));
  EXPECT_THAT(refused([&](Capture& c) { at(c).rank = 0; }), HasSubstr("rank: must be at least 1"));
  EXPECT_THAT(refused([&](Capture& c) { std::swap(at(c).top[0], at(c).top[1]); }), HasSubstr("more likely than"));
  EXPECT_THAT(refused([&](Capture& c) { at(c).top[1].first = at(c).top[0].first; }), HasSubstr("there twice"));
  EXPECT_THAT(refused([&](Capture& c) { at(c).top.clear(); }), HasSubstr("has 0 tokens instead of 1 to 64"));
  EXPECT_THAT(refused([&](Capture& c) { at(c).logprob = -3; }), HasSubstr("as the document's token"));
  EXPECT_THAT(refused([](Capture& c) { c.documents[1].prompt = 3; }), HasSubstr("prompt: 3 tokens are more than"));
  EXPECT_THAT(refused([](Capture& c) { c.documents[1].first = 2; }), HasSubstr("first: 2 is not a token behind"));
  EXPECT_THAT(refused([](Capture& c) { c.documents[0].positions.pop_back(); }), HasSubstr("positions: there are 1"));
  EXPECT_THAT(refused([](Capture& c) { c.documents[1].id = "code/01"; }), HasSubstr("id: is there twice"));
  EXPECT_THAT(refused([](Capture& c) { c.documents[1].tokens[0] = 9; }), HasSubstr("corpus_sha256"));
  EXPECT_THAT(refused([](Capture& c) { c.documents.clear(); }), HasSubstr("documents: there are none"));

  const auto missing = load_capture("/nowhere/capture");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("/nowhere/capture"));
  EXPECT_THAT(parse_capture("GGUF").error().message, HasSubstr("does not begin with OLCAPT1"));
  const std::string bytes = capture_bytes(small()).value(), body = bytes.substr(0, bytes.size() - 64);
  EXPECT_THAT(parse_capture(sealed(body + "more")).error().message, HasSubstr("4 bytes behind the last document"));
}

// A count in the file must not decide how much memory is taken.
TEST(Capture, CountsBeyondTheFileAreRefused) {
  const std::string bytes = capture_bytes(small()).value();
  const std::string id("\x07\0\0\0code/01\x04\0\0\0code", 19);
  std::string body = bytes.substr(0, bytes.size() - 64);
  const size_t tokens = body.find(id) + id.size();
  const uint32_t huge = 0xFFFFFFF0u;
  std::memcpy(body.data() + tokens, &huge, sizeof huge);
  EXPECT_THAT(parse_capture(sealed(body)).error().message, HasSubstr("do not fit into the file"));
}

}  // namespace
}  // namespace onelane
