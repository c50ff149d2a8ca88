// Runs a card: gates on the candidate first, then the comparison; closes it when the verdict counts.
#pragma once

#include <functional>
#include <string>

#include "lane/ab_run.h"
#include "lane/card.h"
#include "lane/ledger.h"

namespace onelane {

struct CardRun {
  Receipt receipt;  // card.json: the comparison's effects and every gate; artifacts are all the files of the run
  std::string digest;
  bool closed = false;  // PASS or FAIL; NOT RUN and VOID leave the card open
  CardOutcome outcome;
};

// `toml` is the text that `card` was read from; its SHA-256 is the protocol of the receipt. The folder (new or empty)
// gets card.toml, gate-ID.json and .log, the folder ab/ and card.json. A gate that fails closes the card without a
// comparison. Errors: the card has an outcome, the folder, an interrupt.
Result<CardRun> run_card(const Card& card, const std::string& toml, const AbRunOptions& options);

// The row that a closed card adds to the ledger. `command` is how it was run.
LedgerRow ledger_row(const Card& card, const CardOutcome& outcome, const std::string& command);

}  // namespace onelane
