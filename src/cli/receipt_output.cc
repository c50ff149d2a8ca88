#include "cli/receipt_output.h"

#include "base/mapped_file.h"
#include "base/program.h"
#include "lane/receipt_store.h"

namespace onelane {

std::string command_line(const std::string& secret) {
  std::string line;
  for (std::string word : program_arguments()) {
    const size_t at = secret.empty() ? std::string::npos : word.find(secret);
    if (at != std::string::npos) word.replace(at, secret.size(), "***");
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

Result<void> keep_receipt(const Receipt& receipt, const std::string& file, const std::string& db) {
  if (file.empty() && db.empty()) return {};
  ONELANE_ASSIGN(const std::string text, receipt_json(receipt));
  if (!file.empty()) ONELANE_TRY(write_file(file, text));
  if (!db.empty()) {
    ONELANE_ASSIGN(ReceiptStore store, ReceiptStore::open(db));
    ONELANE_TRY(store.add(text));
  }
  return {};
}

}  // namespace onelane
