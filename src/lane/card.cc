// The only file of the lane that includes toml++.
#include "lane/card.h"

#include <algorithm>
#include <cctype>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "base/format.h"
#include "lane/ab_fields.h"
#include "lane/document.h"
#include "lane/toml_check.h"

namespace onelane {

template <class V>
void visit(V& v, Some<CardGate> auto& x) {
  v("id", x.id);
  v("command", x.command);
}

template <class V>
void visit(V& v, Some<CardRange> auto& x) {
  v("low_percent", x.low_percent);
  v("high_percent", x.high_percent);
}

template <class V>
void visit(V& v, Some<CardOutcome> auto& x) {
  v("date", x.date);
  v("verdict", x.verdict);
  v("sentence", x.sentence);
  v("prediction_held", x.prediction_held);
  v("run_id", x.run_id);
  v("digest", x.digest);
}

template <class V>
void visit(V& v, Some<Card> auto& x) {
  v("id", x.id);
  v("title", x.title);
  v("hypothesis", x.hypothesis);
  v("prediction", x.prediction);
  v("predicted", x.predicted);
  v("comparison", x.comparison);
  v("gates", x.gates);
  v("outcome", x.outcome);
}

namespace {

using nlohmann::json;

constexpr int kMostDepth = 16;

Error wrong(const std::string& field, const std::string& why) {
  return {ErrorCode::kInvalidArgument, format("{}: {}", field, why)};
}

// TOML as JSON; dates and times have no place in a card.
Result<json> as_json(const toml::node& node, const std::string& path, int depth) {
  if (depth > kMostDepth) return wrong(path, format("nested deeper than {} levels", kMostDepth));
  if (const auto* table = node.as_table()) {
    json object = json::object();
    for (const auto& [key, value] : *table) {
      const std::string name(key.str());
      ONELANE_ASSIGN(object[name], as_json(value, path.empty() ? name : format("{}.{}", path, name), depth + 1));
    }
    return object;
  }
  if (const auto* array = node.as_array()) {
    json values = json::array();
    for (const toml::node& value : *array) {
      ONELANE_ASSIGN(json entry, as_json(value, format("{}[{}]", path, values.size()), depth + 1));
      values.push_back(std::move(entry));
    }
    return values;
  }
  if (const auto* text = node.as_string()) return json(text->get());
  if (const auto* number = node.as_integer()) return json(number->get());
  if (const auto* number = node.as_floating_point()) return json(number->get());
  if (const auto* truth = node.as_boolean()) return json(truth->get());
  return wrong(path, "must be text, a number, true or false, an array or a table");
}

bool is_blank(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; });
}

Result<void> check_id(const std::string& field, const std::string& id) {
  const bool good = !id.empty() && id.size() <= 64 &&
                    std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  if (!good) return wrong(field, "must be 1 to 64 letters, digits and hyphens");
  return {};
}

Result<void> check_card(Card& card) {
  ONELANE_TRY(check_id("id", card.id));
  for (const auto& [field, text] :
       {std::pair{"title", &card.title}, {"hypothesis", &card.hypothesis}, {"prediction", &card.prediction}}) {
    if (is_blank(*text)) return wrong(field, "is empty: write it before the run");
  }
  if (card.predicted && !(card.predicted->low_percent <= card.predicted->high_percent)) {
    return wrong("predicted", "low_percent must not be above high_percent");
  }
  if (card.comparison.title.empty()) card.comparison.title = card.title;
  auto plan = complete_plan(std::move(card.comparison));
  if (!plan) return std::move(plan).error().in("comparison");
  card.comparison = *std::move(plan);
  for (size_t i = 0; i < card.gates.size(); ++i) {
    ONELANE_TRY(check_id(format("gates[{}].id", i), card.gates[i].id));
    if (card.gates[i].command.find("{receipt}") == std::string::npos) {
      return wrong(format("gates[{}].command", i), "must say where its receipt goes: {receipt}");
    }
    for (size_t j = 0; j < i; ++j) {
      if (card.gates[j].id == card.gates[i].id) return wrong(format("gates[{}].id", i), "is there twice");
    }
  }
  return {};
}

std::string toml_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

Result<Card> parse_card(std::string_view text) {
  ONELANE_TRY(check_toml_characters(text));
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return Error{ErrorCode::kInvalidArgument, format("line {}: {}", error.source().begin.line, error.description())};
  }
  ONELANE_ASSIGN(const json document, as_json(table, "", 0));
  if (document.value("schema", json()) != kCardSchema) {
    return Error{ErrorCode::kUnsupported, format("schema: must be \"{}\"", kCardSchema)};
  }
  ONELANE_ASSIGN(Card card, read_struct<Card>(document, kCardSchema, {"schema"}, Missing::kKeepsDefault));
  ONELANE_TRY(check_card(card));
  return card;
}

std::string new_card(const std::string& id, const std::string& title) {
  return format(
      R"(# An experiment: everything but the outcome is written before the run. `onelane card run` adds the outcome.
schema = "lane-card/1"
id = {}
title = {}

# Why it should work, and what will be seen if so.
hypothesis = ""
prediction = ""

# Where the effect will lie, in % better (may be left out).
#[predicted]
#low_percent = 1.5
#high_percent = 4.0

[comparison]
question = "promotion"  # broken, promotion, noninferiority, micro, null
metric = "tok_s"
quads = 4

[comparison.control]
name = "before"
command = ""  # leaves a receipt at {{receipt}}, or an http:// URL

[comparison.candidate]
name = "after"
command = ""

# Gates that the candidate must pass first.
#[[gates]]
#id = "needle"
#command = "onelane gate needle http://127.0.0.1:8000 --receipt {{receipt}}"
)",
      toml_text(id), toml_text(title));
}

std::string with_outcome(std::string_view text, const CardOutcome& outcome) {
  std::string out(text);
  if (!out.empty() && out.back() != '\n') out += '\n';
  out += format("\n[outcome]\ndate = {}\nverdict = {}\nsentence = {}\n", toml_text(outcome.date),
                toml_text(std::string(name_of(outcome.verdict))), toml_text(outcome.sentence));
  if (outcome.prediction_held) out += format("prediction_held = {}\n", *outcome.prediction_held);
  return out + format("run_id = {}\ndigest = {}\n", toml_text(outcome.run_id), toml_text(outcome.digest));
}

std::string card_markdown(const Card& card) {
  const AbPlan& plan = card.comparison;
  Table facts{{"what", "value"}, {}, 2, ""};
  facts.rows = {{"hypothesis", card.hypothesis}, {"prediction", card.prediction}};
  if (card.predicted) {
    facts.rows.push_back(
        {"predicted effect", format("{:+g} % to {:+g} %", card.predicted->low_percent, card.predicted->high_percent)});
  }
  facts.rows.push_back({"control", format("{}: {}", plan.control.name, plan.control.command)});
  facts.rows.push_back({"candidate", format("{}: {}", plan.candidate.name, plan.candidate.command)});
  facts.rows.push_back(
      {"question", format("{} of {}, {} blocks", name_of(plan.question), plan.metric, plan.order.size())});
  for (const CardGate& gate : card.gates) facts.rows.push_back({"gate " + gate.id, gate.command});
  Document document = {Heading{1, card.title}, facts};
  if (card.outcome) {
    const CardOutcome& outcome = *card.outcome;
    document.push_back(
        Paragraph{format("Closed on {}: {}. {}", outcome.date, verdict_label(outcome.verdict), outcome.sentence)});
    if (outcome.prediction_held) {
      document.push_back(Paragraph{format("The prediction {}.", *outcome.prediction_held ? "held" : "did not hold")});
    }
    document.push_back(Paragraph{format("Receipt {}, digest {}.", outcome.run_id, outcome.digest)});
  } else {
    document.push_back(Paragraph{"Open: it was not run yet, or no run counted."});
  }
  return render_markdown(document);
}

}  // namespace onelane
