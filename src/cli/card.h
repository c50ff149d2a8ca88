// `onelane card`: experiments as files.
#pragma once

#include <string>

namespace onelane {

struct CardCommand {
  std::string file;
  std::string id, title;                  // new
  std::string folder;                     // run: of the run; show: the run whose receipt is checked
  std::string ledger = "docs/ledger.md";  // run: where a closed card lists itself; empty: nowhere
  std::string db;                         // run: a receipt store that gets card.json
};

// Each gives the exit code. `run` gives 0 for PASS, 1 for anything else; `show` with a folder gives 1 when the receipt
// there is not the card's or does not hold.
int run_card_new(const CardCommand& command);
int run_card_run(const CardCommand& command);
int run_card_show(const CardCommand& command);

}  // namespace onelane
