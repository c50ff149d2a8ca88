// `onelane receipts`: what was measured, listed, shown, checked and reported.
#pragma once

#include <string>
#include <vector>

namespace onelane {

struct ReceiptsCommand {
  std::string db;                  // a receipt store; empty: receipts are files
  std::vector<std::string> names;  // files, or with `db` the beginnings of run ids or digests
  bool json = false;               // show: the receipt itself
  std::string title = "Receipts";  // report
  std::string html, markdown;      // report: where to; "-" is stdout
};

// Each prints to stdout and gives the exit code. `verify` gives 1 and every problem, a line each, when one is found.
int run_receipts_list(const ReceiptsCommand& command);
int run_receipts_show(const ReceiptsCommand& command);
int run_receipts_verify(const ReceiptsCommand& command);
int run_receipts_add(const ReceiptsCommand& command);
int run_receipts_seal(const ReceiptsCommand& command);
int run_receipts_report(const ReceiptsCommand& command);

}  // namespace onelane
