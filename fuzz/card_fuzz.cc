// Any text as a card: refused with a message, or one whose plan survives its file and whose outcome can be added.
#include <cstdlib>

#include "lane/card.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace onelane;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto card = parse_card(text);
  if (!card) {
    if (card.error().message.empty()) std::abort();
    return 0;
  }
  card_markdown(*card);
  const std::string plan = plan_json(card->comparison);
  const auto back = parse_plan(plan);
  if (!back || plan_json(*back) != plan) std::abort();
  if (card->outcome) return 0;
  const std::string closed =
      with_outcome(text, {"2026-11-30", Verdict::kFail, "a \"sentence\"\n", false, "run", "digest"});
  if (!closed.starts_with(text)) std::abort();
  const auto again = parse_card(closed);
  if (!again || again->outcome->sentence != "a \"sentence\"\n") std::abort();
  return 0;
}
