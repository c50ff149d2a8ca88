// docs/ledger.md: a Markdown table of ideas that were tried, newest first. Rows are inserted; nothing else is touched.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace onelane {

struct LedgerRow {
  std::string date, idea, outcome, how;
};

// `ledger` with `row` as the first of its table and every other byte as it was. Line breaks and bars in the row's texts
// become spaces and "\|". An error when there is no table with the ledger's columns, or the row is there already.
Result<std::string> insert_ledger_row(std::string_view ledger, const LedgerRow& row);

}  // namespace onelane
