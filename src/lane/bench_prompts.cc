#include "lane/bench_prompts.h"

#include <random>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/hay.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

using Json = nlohmann::ordered_json;

// Of the texts in llm-inference-bench 0.4.18: the request, and the sentences joined by single spaces.
constexpr std::string_view kOriginalQuestion = "35d13552d662045aa798aa27f4e7465122996bb3dabdc47e007a97bde50e98aa";
constexpr std::string_view kOriginalSentences = "4a1ebdb5e3fd62053395d1508fbea1806e7c92f09b4556967a3d2dfce648828a";

// As long as the original's 384 characters, so that a prompt of ours costs about as many tokens.
constexpr std::string_view kQuestion =
    "Write the complete entry on the history of measuring time for a large printed encyclopaedia. Cover sundials, "
    "water "
    "clocks, church towers, pendulums, ship chronometers, railway time, quartz and atoms, one long chapter for each, "
    "with "
    "people, places, years, causes and consequences. Do not summarise, do not stop early and do not ask anything back: "
    "carry on, until there is no room left.";

// 20 sentences; documents cycle through them.
constexpr std::string_view kSentences[] = {
    "The harbour office keeps a ledger of every ship that has waited for the tide since the pier was built.",
    "A lens maker in the old town grinds glass by hand and checks each piece against a candle flame at dusk.",
    "When the river freezes, the mill runs on a small steam engine that the owner's grandfather bought second hand.",
    "Surveyors marked the ridge with white stones so that the road crew could work in fog.",
    "The library lends seeds in paper envelopes and asks for twice as many back after the harvest.",
    "Every spring the bridge inspectors tap the rivets with hammers and listen for the dull ones.",
    "A good loaf depends on flour, water, salt and patience, and the last of these cannot be bought.",
    "The observatory moved its telescope uphill because the street lamps had drowned the faint stars.",
    "Two villages share one fire engine, and on odd days it sleeps in the northern one.",
    "The tannery's drains were rebuilt after the fishermen showed the council a basket of pale eels.",
    "Letters that cannot be delivered are kept for a year in a room that smells of dust and glue.",
    "Bees from the monastery garden cross the valley in the morning and come back heavy before noon.",
    "The clockmaker numbers her repairs, and the notebook has reached its fourteenth volume.",
    "A diver found the lost anchor by feeling along the chain until his glove met a knot of weed.",
    "In dry years the shepherds dig for water where the rushes stay green the longest.",
    "The printer sets the headlines in wood type and the small advertisements in lead.",
    "Children learn the names of the winds before they learn to sail, and forget them afterwards.",
    "The quarry closed on a Friday, and by Monday a heron had settled in its flooded corner.",
    "An inventory of the castle lists nine kettles, four maps, a broken harp and no curtains.",
    "The ferry's bell rings three times for a departure and once for a passenger left behind.",
};

// What stands around a document.
constexpr std::string_view kBegin =
    "Read the following reference document first.\n\n--- BEGIN REFERENCE DOCUMENT ---\n";
constexpr std::string_view kEnd = "\n--- END REFERENCE DOCUMENT ---";
constexpr std::string_view kAcknowledged = "I have read the reference document and am ready for your request.";

std::string joined(const std::vector<std::string>& sentences) { return format("{}", join(sentences, " ")); }

Result<std::string> text_field(const Json& json, const char* key, const std::string& path) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string() || found->get<std::string>().empty()) {
    return Error{ErrorCode::kInvalidArgument, format("{}: \"{}\" must be a string that is not empty", path, key)};
  }
  return found->get<std::string>();
}

}  // namespace

std::string LibTexts::sha256() const { return onelane::sha256(question + "\n" + joined(sentences)); }

LibTexts builtin_lib_texts() {
  LibTexts texts{.question = std::string(kQuestion)};
  for (const std::string_view sentence : kSentences) texts.sentences.emplace_back(sentence);
  return texts;
}

Result<LibTexts> read_lib_texts(const std::string& path) {
  ONELANE_ASSIGN(const std::string text, read_file(path));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return Error{ErrorCode::kInvalidArgument, path + ": expected a JSON object with \"question\" and \"sentences\""};
  }
  LibTexts texts;
  ONELANE_ASSIGN(texts.question, text_field(json, "question", path));
  const auto list = json.find("sentences");
  const bool strings = list != json.end() && list->is_array() && !list->empty() &&
                       std::all_of(list->begin(), list->end(), [](const Json& item) {
                         return item.is_string() && !item.get_ref<const std::string&>().empty();
                       });
  if (!strings) {
    return Error{ErrorCode::kInvalidArgument, path + ": \"sentences\" must be an array of strings that are not empty"};
  }
  texts.sentences = list->get<std::vector<std::string>>();
  texts.original = onelane::sha256(texts.question) == kOriginalQuestion &&
                   onelane::sha256(joined(texts.sentences)) == kOriginalSentences;
  return texts;
}

std::string random_tag() {
  std::random_device random;
  std::uniform_int_distribution<int> letter('a', 'z');
  std::string tag;
  for (int i = 0; i < 12; ++i) tag += static_cast<char>(letter(random));
  return tag;
}

std::string document_mark(const std::string& kind, int64_t context_tokens, int sample) {
  const std::string repeat = sample < 0 ? "" : format("_R{}", sample);
  return format("[{}_{}_CTX_{}{}] ", kind, random_tag(), context_tokens, repeat);
}

std::string lib_document(const LibTexts& texts, const std::string& mark, int64_t context_tokens,
                         double characters_per_token) {
  const double wanted = static_cast<double>(context_tokens) * characters_per_token;
  std::string body;
  for (size_t i = 0; static_cast<double>(body.size()) < wanted; ++i) {
    if (i > 0) body += ' ';
    body += texts.sentences[i % texts.sentences.size()];
  }
  return mark + body;
}

std::vector<ChatMessage> lib_messages(const LibTexts& texts, const std::string& document) {
  if (document.empty()) return {{"user", texts.question}};
  return {{"user", format("{}{}{}", kBegin, document, kEnd)},
          {"assistant", std::string(kAcknowledged)},
          {"user", texts.question}};
}

std::string hay_document(const std::string& mark, int64_t context_tokens, double characters_per_token) {
  const auto characters = static_cast<size_t>(static_cast<double>(context_tokens) * characters_per_token);
  const std::string seed = sha256(mark);
  return mark + "\n" + make_hay({.seed = std::stoull(seed.substr(0, 15), nullptr, 16), .characters = characters});
}

std::string class_request(const WorkloadClass& of, const WorkloadPrompt& prompt, const std::string& document,
                          int64_t max_tokens) {
  Json request = Json::parse(workload_request(of, prompt));
  if (max_tokens > 0) request["max_tokens"] = max_tokens;
  if (!document.empty()) {
    Json& messages = request["messages"];
    const bool has_system = !messages.empty() && messages.front().value("role", std::string()) == "system";
    const auto at = messages.begin() + (has_system ? 1 : 0);
    const Json pair = {{{"role", "user"}, {"content", format("{}{}{}", kBegin, document, kEnd)}},
                       {{"role", "assistant"}, {"content", kAcknowledged}}};
    messages.insert(at, pair.begin(), pair.end());
  }
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace onelane
