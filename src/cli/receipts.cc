#include "cli/receipts.h"

#include <filesystem>
#include <iostream>

#include "base/format.h"
#include "base/mapped_file.h"
#include "cli/report_output.h"
#include "cli/runtime.h"
#include "lane/receipt_report.h"
#include "lane/receipt_store.h"

namespace onelane {
namespace {

struct Text {
  std::string name, json;
};

// What the command names: files, or receipts of the store (all of them without a name).
Result<std::vector<Text>> read_texts(const ReceiptsCommand& command) {
  std::vector<Text> texts;
  if (command.db.empty()) {
    if (command.names.empty()) {
      return Error{ErrorCode::kInvalidArgument, "no receipt was named: give files, or a store with --db"};
    }
    for (const std::string& path : command.names) {
      ONELANE_ASSIGN(std::string json, read_file(path));
      texts.push_back({path, std::move(json)});
    }
    return texts;
  }
  ONELANE_ASSIGN(const ReceiptStore store, ReceiptStore::open(command.db, true));
  std::vector<std::string> names = command.names;
  if (names.empty()) {
    ONELANE_ASSIGN(const auto rows, store.list());
    for (const ReceiptRow& row : rows) names.push_back(row.run_id);
  }
  for (const std::string& name : names) {
    ONELANE_ASSIGN(std::string json, store.find(name));
    texts.push_back({name, std::move(json)});
  }
  return texts;
}

Result<std::vector<NamedReceipt>> read_receipts(const ReceiptsCommand& command) {
  ONELANE_ASSIGN(const std::vector<Text> texts, read_texts(command));
  std::vector<NamedReceipt> receipts;
  for (const Text& text : texts) {
    auto receipt = parse_receipt(text.json);
    if (!receipt) return std::move(receipt).error().in(text.name);
    receipts.push_back({*std::move(receipt), receipt_digest(text.json)});
  }
  return receipts;
}

Result<std::vector<ReceiptRow>> read_rows(const ReceiptsCommand& command) {
  if (!command.db.empty() && command.names.empty()) {
    ONELANE_ASSIGN(const ReceiptStore store, ReceiptStore::open(command.db, true));
    return store.list();
  }
  ONELANE_ASSIGN(const auto receipts, read_receipts(command));
  std::vector<ReceiptRow> rows;
  for (const NamedReceipt& named : receipts) rows.push_back(receipt_row(named.receipt, named.digest));
  return rows;
}

Result<void> list(const ReceiptsCommand& command) {
  ONELANE_ASSIGN(const auto rows, read_rows(command));
  for (const ReceiptRow& row : rows) {
    std::cout << format("{}  {}  {:<7}  {}  ({}, {})\n", row.run_id, row.digest.substr(0, 12), row.verdict, row.title,
                        row.model, row.build);
  }
  return {};
}

Result<void> show(const ReceiptsCommand& command) {
  if (command.json) {
    ONELANE_ASSIGN(const auto texts, read_texts(command));
    for (const Text& text : texts) std::cout << text.json;
    return {};
  }
  ONELANE_ASSIGN(const auto receipts, read_receipts(command));
  std::cout << render_markdown(receipts_document(command.title, receipts));
  return {};
}

// Gives the number of problems.
Result<size_t> verify(const ReceiptsCommand& command) {
  std::vector<std::string> problems;
  size_t count = 0;
  if (!command.db.empty() && command.names.empty()) {
    ONELANE_ASSIGN(const ReceiptStore store, ReceiptStore::open(command.db, true));
    ONELANE_ASSIGN(problems, store.verify());
    ONELANE_ASSIGN(const auto rows, store.list());
    count = rows.size();
  } else {
    ONELANE_ASSIGN(const auto texts, read_texts(command));
    count = texts.size();
    for (const Text& text : texts) {
      const bool is_file = command.db.empty();
      const std::string folder = is_file ? std::filesystem::absolute(text.name).parent_path().string() : "";
      for (const std::string& problem : verify_receipt(text.json, folder)) {
        problems.push_back(format("{}: {}", text.name, problem));
      }
    }
  }
  for (const std::string& problem : problems) std::cout << problem << "\n";
  std::cout << format("{} receipts, {} problems\n", count, problems.size());
  return problems.size();
}

Result<void> add(const ReceiptsCommand& command) {
  ONELANE_ASSIGN(ReceiptStore store, ReceiptStore::open(command.db));
  ReceiptsCommand files = command;
  files.db.clear();
  ONELANE_ASSIGN(const auto texts, read_texts(files));
  for (const Text& text : texts) {
    auto added = store.add(text.json);
    if (!added) return std::move(added).error().in(text.name);
  }
  return {};
}

Result<void> seal(const ReceiptsCommand& command) {
  ONELANE_ASSIGN(const auto texts, read_texts(command));
  for (const Text& text : texts) {
    auto sealed = seal_receipt(text.json);
    if (!sealed) return std::move(sealed).error().in(text.name);
    std::cout << *sealed;
  }
  return {};
}

Result<void> report(const ReceiptsCommand& command) {
  ONELANE_ASSIGN(const auto receipts, read_receipts(command));
  return write_report(receipts_document(command.title, receipts), command.title, command.html, command.markdown);
}

int exit_code(const Result<void>& done) { return done ? 0 : fail(done.error()); }

}  // namespace

int run_receipts_list(const ReceiptsCommand& command) { return exit_code(list(command)); }
int run_receipts_show(const ReceiptsCommand& command) { return exit_code(show(command)); }
int run_receipts_add(const ReceiptsCommand& command) { return exit_code(add(command)); }
int run_receipts_seal(const ReceiptsCommand& command) { return exit_code(seal(command)); }
int run_receipts_report(const ReceiptsCommand& command) { return exit_code(report(command)); }

int run_receipts_verify(const ReceiptsCommand& command) {
  const auto problems = verify(command);
  if (!problems) return fail(problems.error());
  return *problems == 0 ? 0 : 1;
}

}  // namespace onelane
