#include "cli/measuring.h"

#include "cli/receipts.h"
#include "cli/workloads.h"

namespace onelane {

struct MeasuringCommands {
  ReceiptsCommand receipts;
  std::string workload;
};

namespace {

void add_receipts(Subcommands& commands, ReceiptsCommand& command) {
  Subcommands group = commands.group("receipts", "what was measured: list, show, verify, report");
  const auto named = [&](CLI::App& app, bool store) {
    app.add_option("names", command.names,
                   store ? "files, or with --db run ids or digests, cut short or whole" : "files")
        ->type_name("NAME");
    if (store) app.add_option("--db", command.db, "a receipt store")->type_name("F");
  };
  named(group.add("list", "one line a receipt", [&command] { return run_receipts_list(command); }), true);

  CLI::App& show = group.add("show", "receipts as Markdown", [&command] { return run_receipts_show(command); });
  named(show, true);
  show.add_flag("--json", command.json, "print the receipt itself");

  named(group.add("verify", "digests, figures against raw samples, artifacts, and the chain of a store",
                  [&command] { return run_receipts_verify(command); }),
        true);

  CLI::App& add = group.add("add", "put files into a store", [&command] { return run_receipts_add(command); });
  named(add, false);
  add.add_option("--db", command.db, "the store; made when there is none")->required()->type_name("F");

  named(group.add("seal", "print a file with a digest that fits: for scripts that write receipts",
                  [&command] { return run_receipts_seal(command); }),
        false);

  CLI::App& report =
      group.add("report", "one self-contained page, or Markdown", [&command] { return run_receipts_report(command); });
  named(report, true);
  report.add_option("--title", command.title, "its title")->capture_default_str();
  report.add_option("--html", command.html, "write the page here, - for stdout")->type_name("F");
  report.add_option("--markdown", command.markdown, "write Markdown here, - for stdout")->type_name("F");
}

void add_workloads(Subcommands& commands, std::string& id) {
  Subcommands group = commands.group("workloads", "the frozen prompts of the workload classes");
  group.add("list", "the classes", list_workloads);
  group.add("show", "the chat request of a prompt, as JSON", [&id] { return show_workload(id); })
      .add_option("prompt", id, "a class and a number: code/07")
      ->required();
  group.add("verify", "hold the files against their protocol, and the oracles against reference answers",
            verify_workloads);
}

}  // namespace

void DeleteMeasuringCommands::operator()(MeasuringCommands* commands) const { delete commands; }

std::unique_ptr<MeasuringCommands, DeleteMeasuringCommands> add_measuring(Subcommands& commands) {
  std::unique_ptr<MeasuringCommands, DeleteMeasuringCommands> all(new MeasuringCommands);
  add_receipts(commands, all->receipts);
  add_workloads(commands, all->workload);
  return all;
}

}  // namespace onelane
