#include "lane/ledger.h"

#include "base/format.h"
#include "lane/document.h"

namespace onelane {

Result<std::string> insert_ledger_row(std::string_view ledger, const LedgerRow& row) {
  constexpr std::string_view kHead = "| date | idea | outcome | how measured |\n|---|---|---|---|\n";
  const size_t head = ledger.find(kHead);
  if (head == std::string_view::npos || (head > 0 && ledger[head - 1] != '\n')) {
    return Error{ErrorCode::kInvalidArgument,
                 "has no table with the columns date, idea, outcome, how measured, so nothing can be listed in it"};
  }
  std::string line = "|";
  for (const std::string* text : {&row.date, &row.idea, &row.outcome, &row.how}) {
    line += format(" {} |", markdown_cell(*text));
  }
  line += "\n";
  if (ledger.find(line) != std::string_view::npos) {
    return Error{ErrorCode::kInvalidArgument, "lists this idea with this outcome already"};
  }
  const size_t at = head + kHead.size();
  return format("{}{}{}", ledger.substr(0, at), line, ledger.substr(at));
}

}  // namespace onelane
