// Any bytes as what a server answers: a response, an event stream of a chat, a page of metrics. Never a crash, and the
// same reading wherever the bytes are cut.
//
// Byte 0: seed of the cuts. Byte 1: which reader.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/format.h"
#include "http/response_parser.h"
#include "lane/chat_stream.h"
#include "lane/scrape.h"

namespace {

using namespace onelane;

// Calls `take` with consecutive pieces; seed 0: one piece.
template <class Take>
void in_pieces(std::string_view bytes, uint32_t seed, Take take) {
  while (!bytes.empty()) {
    size_t length = bytes.size();
    if (seed != 0) {
      seed = seed * 1664525u + 1013904223u;
      length = std::min<size_t>(length, 1 + (seed >> 24) % 17);
    }
    take(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
}

std::string response_transcript(std::string_view bytes, uint32_t seed) {
  std::string body, waiting;
  ResponseParser parser([&](std::string_view piece) { body += piece; });
  bool failed = false;
  in_pieces(bytes, seed, [&](std::string_view piece) {
    if (failed || parser.done()) return;
    waiting += piece;
    const auto fed = parser.feed(waiting);
    if (!fed) {
      ONELANE_CHECK(!fed.error().message.empty(), "refused by name");
      failed = true;
      return;
    }
    ONELANE_CHECK(*fed <= waiting.size(), "the parser takes what it is given");
    waiting.erase(0, *fed);
  });
  if (failed || !parser.done()) return "";  // where it fails may depend on the cuts
  std::string said = format("{} ", parser.status());
  for (const auto& [key, value] : parser.headers()) said += key + ":" + value + ";";
  return said + body;
}

std::string chat_transcript(std::string_view bytes, uint32_t seed) {
  ChatReader reader({}, true, {.sse = {.max_line_bytes = 4096}});
  in_pieces(bytes, seed, [&](std::string_view piece) { reader.feed(piece, {}); });
  HttpReply reply;
  reply.status = 200;
  const ChatResult result = reader.finish(reply);
  ONELANE_CHECK(result.complete() == result.problem.empty(), "complete, or a sentence");
  ONELANE_CHECK(result.completion_tokens.value_or(0) >= 0, "a count");
  std::string said = format("{}|{}|{}|{}|{}|{}", result.content, result.reasoning, result.finish_reason,
                            result.tokens(), result.text_chunks, result.problem);
  for (const ChatToolCall& call : result.tool_calls) said += "|" + call.id + call.name + call.arguments;
  return said;
}

void check_metrics(std::string_view bytes, MetricLookup lookup) {
  const MetricsPage page = MetricsPage::parse(bytes, lookup);
  for (const MetricSample& sample : page.samples()) {
    ONELANE_CHECK(!sample.name.empty() && std::isfinite(sample.value), "a name and a number");
    ONELANE_CHECK(page.find(sample.name) != nullptr, "what is there is found");
  }
  for (const EngineKind engine : {EngineKind::kVllm, EngineKind::kSglang}) (void)read_metrics(page, engine);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const uint32_t seed = data[0] + 1u;
  switch (data[1] % 3) {
    case 0:
      ONELANE_CHECK(response_transcript(bytes, 0) == response_transcript(bytes, seed), "cuts do not matter");
      break;
    case 1:
      ONELANE_CHECK(chat_transcript(bytes, 0) == chat_transcript(bytes, seed), "cuts do not matter");
      break;
    default:
      check_metrics(bytes, MetricLookup::kExact);
      check_metrics(bytes, MetricLookup::kLib);
  }
  return 0;
}
