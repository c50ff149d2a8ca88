#include "lane/receipt_store.h"

#include <filesystem>

#include <sqlite3.h>

#include "base/format.h"
#include "lane/receipt.h"
#include "lane/receipt_fields.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

constexpr int kVersion = 1;
constexpr int kApplication = 0x6f6e6c6e;  // "onln": tells our files from other SQLite files
constexpr const char* kSchema = R"(
CREATE TABLE receipts (
  seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, verdict TEXT NOT NULL, title TEXT NOT NULL,
  model TEXT NOT NULL, build TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, chain TEXT NOT NULL, json TEXT NOT NULL);
CREATE TRIGGER receipts_stay BEFORE DELETE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are never removed'); END;
CREATE TRIGGER receipts_hold BEFORE UPDATE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are never changed'); END;
)";
constexpr const char* kColumns = "run_id, kind, verdict, title, model, build, digest";

// A prepared statement; reads and binds by position.
class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) {
    if (sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr) != SQLITE_OK) statement_ = nullptr;
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  explicit operator bool() const { return statement_ != nullptr; }
  void bind(int index, std::string_view text) {
    sqlite3_bind_text64(statement_, index, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  int step() { return sqlite3_step(statement_); }
  std::string text(int column) {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr ? "" : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }
  int number(int column) { return sqlite3_column_int(statement_, column); }
  // The seven columns of kColumns.
  ReceiptRow row() { return {text(0), text(1), text(2), text(3), text(4), text(5), text(6)}; }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

bool execute(sqlite3* db, const std::string& sql) {
  return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK;
}

int pragma(sqlite3* db, const char* name) {
  Statement statement(db, format("PRAGMA {}", name));
  return statement && statement.step() == SQLITE_ROW ? statement.number(0) : -1;
}

std::string chain_after(const std::string& before, const std::string& digest) { return sha256(before + "\n" + digest); }

bool operator==(const ReceiptRow& a, const ReceiptRow& b) {
  return a.run_id == b.run_id && a.kind == b.kind && a.verdict == b.verdict && a.title == b.title &&
         a.model == b.model && a.build == b.build && a.digest == b.digest;
}

}  // namespace

ReceiptRow receipt_row(const Receipt& receipt, std::string digest) {
  return {receipt.run_id,
          std::string(name_of(receipt.kind)),
          std::string(name_of(receipt.verdict)),
          receipt.title,
          receipt.model.name,
          receipt.build.id,
          std::move(digest)};
}

void ReceiptStore::Close::operator()(sqlite3* db) const { sqlite3_close_v2(db); }

Error ReceiptStore::failed(const std::string& doing) const {
  return {ErrorCode::kIo, format("{}: {}: {}", path_, doing, sqlite3_errmsg(db_.get()))};
}

Result<ReceiptStore> ReceiptStore::open(const std::string& path, bool must_exist) {
  if (must_exist && !std::filesystem::exists(path)) {
    return Error{ErrorCode::kNotFound, format("{}: there is no such receipt store", path)};
  }
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  ReceiptStore store(path, std::unique_ptr<sqlite3, Close>(raw));
  if (opened != SQLITE_OK) return store.failed("cannot be opened");
  sqlite3_busy_timeout(raw, 10'000);  // several benches may share a store
  // The lock comes first: of two that create the same file one finds it made.
  if (!execute(raw, "BEGIN IMMEDIATE")) return store.failed("is not a receipt store");
  if (pragma(raw, "application_id") == kApplication) {
    const int version = pragma(raw, "user_version");
    execute(raw, "COMMIT");
    if (version == kVersion) return store;
    return Error{ErrorCode::kUnsupported,
                 format("{}: is a receipt store of version {}; this program reads {}", path, version, kVersion)};
  }
  if (pragma(raw, "schema_version") != 0) {
    return Error{ErrorCode::kUnsupported, format("{}: is a database, but no receipt store", path)};
  }
  if (!execute(raw, kSchema) || !execute(raw, format("PRAGMA application_id = {}", kApplication)) ||
      !execute(raw, format("PRAGMA user_version = {}", kVersion)) || !execute(raw, "COMMIT")) {
    return store.failed("cannot be created");
  }
  return store;
}

Result<void> ReceiptStore::add(std::string_view json) {
  ONELANE_ASSIGN(const Receipt receipt, parse_receipt(json));
  const ReceiptRow row = receipt_row(receipt, receipt_digest(json));
  if (!execute(db_.get(), "BEGIN IMMEDIATE")) return failed("cannot be written");
  const auto roll_back = [&](Error error) {
    execute(db_.get(), "ROLLBACK");
    return error;
  };
  Statement known(db_.get(), "SELECT digest FROM receipts WHERE run_id = ?1");
  if (!known) return roll_back(failed("cannot be read"));
  known.bind(1, row.run_id);
  if (known.step() == SQLITE_ROW) {
    if (known.text(0) == row.digest) return execute(db_.get(), "ROLLBACK"), Result<void>();
    return roll_back(
        {ErrorCode::kInvalidArgument, format("{}: has another receipt with run_id {} already", path_, row.run_id)});
  }
  Statement last(db_.get(), "SELECT chain FROM receipts ORDER BY seq DESC LIMIT 1");
  if (!last) return roll_back(failed("cannot be read"));
  const std::string before = last.step() == SQLITE_ROW ? last.text(0) : "";
  Statement insert(db_.get(),
                   format("INSERT INTO receipts ({}, chain, json) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)", kColumns));
  if (!insert) return roll_back(failed("cannot be written"));
  int index = 0;
  for (const std::string& text : {row.run_id, row.kind, row.verdict, row.title, row.model, row.build, row.digest,
                                  chain_after(before, row.digest), std::string(json)}) {
    insert.bind(++index, text);
  }
  if (insert.step() != SQLITE_DONE) return roll_back(failed("cannot be written"));
  if (!execute(db_.get(), "COMMIT")) return roll_back(failed("cannot be written"));
  return {};
}

Result<std::vector<ReceiptRow>> ReceiptStore::list() const {
  Statement statement(db_.get(), format("SELECT {} FROM receipts ORDER BY seq", kColumns));
  if (!statement) return failed("cannot be read");
  std::vector<ReceiptRow> rows;
  while (statement.step() == SQLITE_ROW) rows.push_back(statement.row());
  return rows;
}

Result<std::string> ReceiptStore::find(std::string_view name) const {
  // substr, not LIKE: a name is no pattern.
  Statement statement(db_.get(),
                      "SELECT json, run_id FROM receipts WHERE substr(run_id, 1, length(?1)) = ?1 OR "
                      "substr(digest, 1, length(?1)) = ?1 ORDER BY run_id = ?1 DESC LIMIT 2");
  if (!statement) return failed("cannot be read");
  statement.bind(1, name);
  if (name.empty() || statement.step() != SQLITE_ROW) {
    return Error{ErrorCode::kNotFound,
                 format("{}: has no receipt whose run_id or digest begins with '{}'", path_, name)};
  }
  std::string json = statement.text(0);
  const bool whole = statement.text(1) == name;  // others may begin with it
  if (!whole && statement.step() == SQLITE_ROW) {
    return Error{ErrorCode::kInvalidArgument, format("{}: '{}' begins more than one run_id or digest", path_, name)};
  }
  return json;
}

Result<std::vector<std::string>> ReceiptStore::verify() const {
  Statement statement(db_.get(), format("SELECT {}, chain, json FROM receipts ORDER BY seq", kColumns));
  if (!statement) return failed("cannot be read");
  std::vector<std::string> problems;
  std::string chain;
  int step;
  while ((step = statement.step()) == SQLITE_ROW) {
    const ReceiptRow row = statement.row();
    const std::string json = statement.text(8);
    for (const std::string& problem : verify_receipt(json, "")) {
      problems.push_back(format("{}: {}", row.run_id, problem));
    }
    const auto receipt = parse_receipt(json);
    if (receipt && !(receipt_row(*receipt, receipt_digest(json)) == row)) {
      problems.push_back(format("{}: the store's columns differ from the receipt", row.run_id));
    }
    chain = chain_after(chain, row.digest);
    if (statement.text(7) != chain) {
      problems.push_back(format("{}: the chain breaks here: a receipt was replaced, removed or moved", row.run_id));
      chain = statement.text(7);  // one break, one sentence
    }
  }
  if (step != SQLITE_DONE) return failed("cannot be read");
  return problems;
}

}  // namespace onelane
