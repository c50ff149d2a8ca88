// ReceiptStore: receipts of a project in one SQLite file, in the order they came, never changed and never removed.
//
// Each row carries a SHA-256 over its receipt's digest and the row before it, so that verify() notices a receipt that
// was replaced or taken out of the middle, even by someone who made its own digest new (the newest rows can still be
// cut off: quote a receipt by run_id and digest). The file's triggers refuse UPDATE and DELETE.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "lane/receipt.h"

struct sqlite3;

namespace onelane {

// What lists show of a receipt, as it says itself.
struct ReceiptRow {
  std::string run_id, kind, verdict, title, model, build, digest;
};

ReceiptRow receipt_row(const Receipt& receipt, std::string digest);

class ReceiptStore {
 public:
  // Opens `path`, and creates it unless `must_exist`. A file of another kind or version is refused.
  static Result<ReceiptStore> open(const std::string& path, bool must_exist = false);

  // Adds a receipt that parse_receipt accepts. A run_id that is there already is an error, unless it is the same
  // receipt.
  Result<void> add(std::string_view json);

  // Oldest first.
  Result<std::vector<ReceiptRow>> list() const;

  // The JSON of the one receipt whose run_id or digest is `name` or begins with it.
  Result<std::string> find(std::string_view name) const;

  // Everything that is wrong, one sentence each: verify_receipt on every receipt, columns that say something else, the
  // chain of rows.
  Result<std::vector<std::string>> verify() const;

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  ReceiptStore(std::string path, std::unique_ptr<sqlite3, Close> db) : path_(std::move(path)), db_(std::move(db)) {}
  Error failed(const std::string& doing) const;

  std::string path_;
  std::unique_ptr<sqlite3, Close> db_;
};

}  // namespace onelane
