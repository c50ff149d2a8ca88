#include "cli/card.h"

#include <filesystem>
#include <iostream>

#include "base/format.h"
#include "base/mapped_file.h"
#include "base/program.h"
#include "cli/runtime.h"
#include "lane/card_run.h"
#include "lane/receipt_store.h"

namespace onelane {
namespace {

namespace fs = std::filesystem;

struct ReadCard {
  std::string text;
  Card card;
};

Result<ReadCard> read_card(const std::string& path) {
  ONELANE_ASSIGN(std::string text, read_file(path));
  auto card = parse_card(text);
  if (!card) return std::move(card).error().in(path);
  return ReadCard{std::move(text), *std::move(card)};
}

Result<void> make(const CardCommand& command) {
  if (fs::exists(command.file)) {
    return Error{ErrorCode::kInvalidArgument, format("{}: is there already", command.file)};
  }
  const std::string id = command.id.empty() ? fs::path(command.file).stem().string() : command.id;
  ONELANE_TRY(write_file(command.file, new_card(id, command.title)));
  std::cout << format("{}: fill in hypothesis, prediction and arms, then `onelane card run`\n", command.file);
  return {};
}

// Lists the card in the ledger and writes its outcome into it.
Result<void> close_card(const CardCommand& command, const ReadCard& before, const CardRun& run) {
  if (!command.ledger.empty()) {
    ONELANE_ASSIGN(const std::string ledger, read_file(command.ledger));
    auto listed = insert_ledger_row(ledger, ledger_row(before.card, run.outcome, "onelane card run " + command.file));
    if (!listed) return std::move(listed).error().in(command.ledger);
    ONELANE_TRY(write_file(command.ledger, *listed));
  }
  ONELANE_ASSIGN(const std::string now, read_file(command.file));
  if (now != before.text) {
    return Error{ErrorCode::kInvalidArgument,
                 format("{}: was changed during the run, so its outcome was not written into it", command.file)};
  }
  return write_file(command.file, with_outcome(before.text, run.outcome));
}

Result<Verdict> execute(const CardCommand& command) {
  ONELANE_ASSIGN(const ReadCard read, read_card(command.file));
  if (!command.ledger.empty()) {
    // Hours of measuring must not end in a ledger that cannot take the row.
    ONELANE_ASSIGN(const std::string ledger, read_file(command.ledger));
    auto possible = insert_ledger_row(ledger, {"date", read.card.title, "outcome", "how"});
    if (!possible) return std::move(possible).error().in(command.ledger);
  }
  AbRunOptions options{command.folder, program_path()};
  options.progress = [](const std::string& line) { std::cerr << line << std::endl; };
  ONELANE_ASSIGN(const CardRun run, run_card(read.card, read.text, options));
  const std::string file = (fs::path(command.folder) / "card.json").string();
  if (!command.db.empty()) {
    ONELANE_ASSIGN(ReceiptStore store, ReceiptStore::open(command.db));
    ONELANE_ASSIGN(const std::string json, read_file(file));
    ONELANE_TRY(store.add(json));
  }
  if (run.closed) ONELANE_TRY(close_card(command, read, run));
  std::cout << format("{}: {}\nreceipt {} ({})\n{}", verdict_label(run.receipt.verdict), run.outcome.sentence, file,
                      run.digest.substr(0, 12), run.closed ? "" : "the card stays open\n");
  return run.receipt.verdict;
}

// Whether what was to be checked holds.
Result<bool> show(const CardCommand& command) {
  ONELANE_ASSIGN(const ReadCard read, read_card(command.file));
  std::cout << card_markdown(read.card);
  if (command.folder.empty()) return true;
  if (!read.card.outcome) {
    return Error{ErrorCode::kInvalidArgument, format("{}: has no outcome to hold against a run", command.file)};
  }
  ONELANE_ASSIGN(const std::string json, read_file((fs::path(command.folder) / "card.json").string()));
  std::vector<std::string> problems = verify_receipt(json, command.folder);
  if (receipt_digest(json) != read.card.outcome->digest)
    problems.push_back("it is not the receipt that closed the card");
  for (const std::string& problem : problems) std::cout << "receipt: " << problem << "\n";
  if (problems.empty()) std::cout << "The receipt and every file of its run hold.\n";
  return problems.empty();
}

}  // namespace

int run_card_new(const CardCommand& command) {
  const auto done = make(command);
  return done ? 0 : fail(done.error());
}

int run_card_run(const CardCommand& command) {
  const auto verdict = execute(command);
  if (!verdict) return fail(verdict.error());
  return *verdict == Verdict::kPass ? 0 : 1;
}

int run_card_show(const CardCommand& command) {
  const auto holds = show(command);
  if (!holds) return fail(holds.error());
  return *holds ? 0 : 1;
}

}  // namespace onelane
