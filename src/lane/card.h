// Card: an experiment as a file (`lane-card/1`, TOML). Hypothesis, prediction, arms, bars and gates are written before
// the run; the run adds the outcome at the end and changes nothing else.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lane/ab_plan.h"

namespace onelane {

inline constexpr std::string_view kCardSchema = "lane-card/1";

// A gate that the candidate must pass: a command that leaves one sealed receipt at {receipt}.
struct CardGate {
  std::string id, command;
};

// Where the effect will lie if the hypothesis is right, in % better.
struct CardRange {
  double low_percent = 0, high_percent = 0;
};

struct CardOutcome {
  std::string date;  // "2026-11-30"
  Verdict verdict = Verdict::kPass;
  std::string sentence;
  std::optional<bool> prediction_held;
  std::string run_id, digest;  // of the receipt that closed it
};

struct Card {
  std::string id;          // "split-64": letters, digits and hyphens; names its folder
  std::string title;       // the idea in one line, as the ledger will have it
  std::string hypothesis;  // why it should work
  std::string prediction;  // what will be seen if so
  std::optional<CardRange> predicted;
  AbPlan comparison;  // fields of lane-ab-plan/1; those left out keep their defaults, the order is drawn
  std::vector<CardGate> gates;
  std::optional<CardOutcome> outcome;
};

// Reads a card. Errors name the file's line or the field.
Result<Card> parse_card(std::string_view toml);

// The text of a card to be filled in. It does not parse before it is.
std::string new_card(const std::string& id, const std::string& title);

// `toml` with the outcome as its last table, every byte before it as it was.
std::string with_outcome(std::string_view toml, const CardOutcome& outcome);

// The card for people, in Markdown.
std::string card_markdown(const Card& card);

}  // namespace onelane
