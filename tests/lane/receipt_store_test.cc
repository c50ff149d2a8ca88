#include "lane/receipt_store.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/mapped_file.h"
#include "lane/sample_receipt.h"

namespace onelane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ReceiptStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/" + std::to_string(::getpid()) + "_receipts.db";
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static std::string receipt(const std::string& run_id, const std::string& title = "a run") {
    Receipt made = sample_receipt();
    made.run_id = run_id;
    made.title = title;
    return *receipt_json(made);
  }
  // What someone with the sqlite3 shell can do.
  int shell(const std::string& sql) {
    sqlite3* db = nullptr;
    sqlite3_open(path_.c_str(), &db);
    const int code = sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
    sqlite3_close(db);
    return code;
  }
  void three() {
    auto store = ReceiptStore::open(path_);
    ASSERT_TRUE(store) << store.error().message;
    for (const char* id : {"a1", "a2", "z1"}) ASSERT_TRUE(store->add(receipt(id)));
    EXPECT_THAT(*store->verify(), ElementsAre());
  }
  std::vector<std::string> problems() { return *ReceiptStore::open(path_)->verify(); }

  std::string path_;
};

TEST_F(ReceiptStoreTest, KeepsReceiptsToTheByte) {
  three();
  const auto store = ReceiptStore::open(path_, true);
  ASSERT_TRUE(store) << store.error().message;
  const auto rows = *store->list();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].run_id, "z1");
  EXPECT_EQ(rows[2].verdict, "FAIL");
  EXPECT_EQ(rows[2].model, "mini-v41");
  EXPECT_EQ(*store->find("z"), receipt("z1"));
  EXPECT_EQ(*store->find(rows[0].digest.substr(0, 12)), receipt("a1"));
  EXPECT_THAT(store->find("a").error().message, HasSubstr("more than one"));
  ASSERT_TRUE(ReceiptStore::open(path_)->add(receipt("a11")));
  EXPECT_EQ(*store->find("a1"), receipt("a1"));  // whole, though another begins with it
  EXPECT_THAT(store->find("%").error().message, HasSubstr("no receipt"));
}

TEST_F(ReceiptStoreTest, ARunIsAddedOnce) {
  three();
  auto store = ReceiptStore::open(path_);
  EXPECT_TRUE(store->add(receipt("a1")));  // the same bytes: nothing to do
  EXPECT_EQ(store->list()->size(), 3u);
  EXPECT_THAT(store->add(receipt("a1", "another")).error().message, HasSubstr("run_id a1 already"));
  EXPECT_THAT(store->add("{}").error().message, HasSubstr("schema"));
}

TEST_F(ReceiptStoreTest, RowsCannotBeChangedByAccident) {
  three();
  EXPECT_NE(shell("UPDATE receipts SET verdict = 'PASS'"), SQLITE_OK);
  EXPECT_NE(shell("DELETE FROM receipts"), SQLITE_OK);
  EXPECT_THAT(problems(), ElementsAre());
}

TEST_F(ReceiptStoreTest, VerifyFindsARemovedReceipt) {
  three();
  ASSERT_EQ(shell("DROP TRIGGER receipts_stay; DELETE FROM receipts WHERE run_id = 'a2'"), SQLITE_OK);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("z1: the chain breaks here")));
}

TEST_F(ReceiptStoreTest, VerifyFindsAReplacedReceipt) {
  three();
  // Well made: the receipt's own digest and the columns fit.
  const std::string forged = receipt("a2", "forged");
  ASSERT_EQ(shell("DROP TRIGGER receipts_hold; UPDATE receipts SET title = 'forged', digest = '" +
                  receipt_digest(forged) + "', json = '" + forged + "' WHERE run_id = 'a2'"),
            SQLITE_OK);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("a2: the chain breaks here")));
}

TEST_F(ReceiptStoreTest, VerifyFindsChangedColumnsAndText) {
  three();
  ASSERT_EQ(shell("DROP TRIGGER receipts_hold; UPDATE receipts SET verdict = 'PASS' WHERE run_id = 'a1';"
                  "UPDATE receipts SET json = replace(json, '6000', '6600') WHERE run_id = 'z1'"),
            SQLITE_OK);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("a1: the store's columns"), HasSubstr("z1: digest: does not fit")));
}

TEST_F(ReceiptStoreTest, OtherFilesAreRefused) {
  EXPECT_THAT(ReceiptStore::open(path_, true).error().message, HasSubstr("no such receipt store"));
  ASSERT_EQ(shell("CREATE TABLE other (x)"), SQLITE_OK);
  EXPECT_THAT(ReceiptStore::open(path_).error().message, HasSubstr("no receipt store"));
  std::filesystem::remove(path_);
  three();
  ASSERT_EQ(shell("PRAGMA user_version = 9"), SQLITE_OK);
  EXPECT_THAT(ReceiptStore::open(path_).error().message, HasSubstr("version 9"));
  ASSERT_TRUE(write_file(path_, "just text, long enough to be looked at as a database header by the library"));
  EXPECT_FALSE(ReceiptStore::open(path_));
  EXPECT_FALSE(ReceiptStore::open(testing::TempDir() + "/no/such/folder/r.db"));
}

}  // namespace
}  // namespace onelane
