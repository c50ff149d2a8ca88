#include "cli/measuring.h"

#include "cli/ab.h"
#include "cli/bench.h"
#include "cli/bench_step.h"
#include "cli/capture.h"
#include "cli/card.h"
#include "cli/gate.h"
#include "cli/receipts.h"
#include "cli/workloads.h"

namespace onelane {

struct MeasuringCommands {
  AbCommand ab;
  CardCommand card;
  BenchCommand bench;
  BenchStepCommand bench_step;
  CaptureCommand capture;
  GateCommand gate;
  ReceiptsCommand receipts;
  std::string workload;
};

namespace {

void add_report_output(CLI::App& app, std::string& html, std::string& markdown) {
  app.add_option("--html", html, "write the page here, - for stdout")->type_name("F");
  app.add_option("--markdown", markdown, "write Markdown here, - for stdout (also without both)")->type_name("F");
}

void add_ab_plan(Subcommands& group, AbCommand& command) {
  CLI::App& app = group.add("plan", "write the question, the arms, the drawn order and the bars to a file",
                            [&command] { return run_ab_plan(command); });
  AbPlan& plan = command.plan;
  app.add_option("file", command.file, "where the plan goes")->required()->type_name("F");
  app.add_option("--question", command.question, "broken (one bracket), promotion, noninferiority, micro or null")
      ->check(CLI::IsMember({"broken", "promotion", "noninferiority", "micro", "null"}))
      ->capture_default_str();
  app.add_option("--control", plan.control.command, "a command that leaves a receipt at {receipt}, or an http:// URL")
      ->required();
  app.add_option("--candidate", plan.candidate.command, "the same for the other arm")->required();
  app.add_option("--control-name", plan.control.name, "what the control is");
  app.add_option("--candidate-name", plan.candidate.name, "what the candidate is");
  app.add_option("--title", plan.title, "of the comparison");
  app.add_option("--metric", plan.metric, "field or measure of a cell")->capture_default_str();
  app.add_option("--quads", plan.quads, "quads; 0: as few as the question allows")->capture_default_str();
  app.add_option("--extend-to", plan.extension_quads, "quads in all when the first ones are inconclusive (promotion)");
  app.add_option("--seed", plan.seed, "of the order")->capture_default_str();
  app.add_option("--inert", plan.inert_cells, "cells that the change cannot touch");
  app.add_option("--may-differ", plan.may_differ, "parts that may differ: weights, tokenizer, template, sampling");
  app.add_option("--may-be-worse", plan.may_be_worse, "classes that are declared to lose");
  app.add_option("--registered-accept", command.registered, "CELL=NUMBER: drafts the control accepts a step, +- 0.02");
  app.add_option("--null", command.null_folder, "the folder of a null run: its spread and its mean")->type_name("DIR");
  app.add_option("--sd", command.sd_percent, "spread of quads in %, for the power that is printed");
  app.add_option("--timeout", plan.block_timeout_s, "most seconds a block may take")->capture_default_str();
}

void add_ab(Subcommands& commands, AbCommand& command) {
  Subcommands group = commands.group("ab", "compare two arms: controls around candidates, one receipt a block");
  add_ab_plan(group, command);
  CLI::App& run = group.add("run", "measure by a plan", [&command] { return run_ab_run(command); });
  run.add_option("plan", command.file, "what `ab plan` wrote")->required()->type_name("F");
  run.add_option("--folder", command.folder, "where receipts and logs go: new or empty")->required()->type_name("DIR");
  run.add_option("--db", command.db, "a receipt store that gets all of them")->type_name("F");
  CLI::App& report = group.add("report", "compare the blocks of a run again and show it",
                               [&command] { return run_ab_report(command); });
  report.add_option("folder", command.folder, "of the run")->required()->type_name("DIR");
  add_report_output(report, command.html, command.markdown);
}

void add_card(Subcommands& commands, CardCommand& command) {
  Subcommands group = commands.group("card", "experiments as files: hypothesis, prediction, arms, bars, outcome");
  CLI::App& make = group.add("new", "write a card to be filled in", [&command] { return run_card_new(command); });
  make.add_option("file", command.file, "the card (TOML)")->required()->type_name("F");
  make.add_option("--title", command.title, "the idea in one line")->required();
  make.add_option("--id", command.id, "letters, digits and hyphens; without it the file's name");
  CLI::App& run = group.add("run", "gates, then the comparison; a card that closes lists itself in the ledger",
                            [&command] { return run_card_run(command); });
  run.add_option("file", command.file, "the card")->required()->type_name("F");
  run.add_option("--folder", command.folder, "where receipts and logs go: new or empty")->required()->type_name("DIR");
  run.add_option("--ledger", command.ledger, "the ledger; empty: none")->capture_default_str()->type_name("F");
  run.add_option("--db", command.db, "a receipt store that gets the card's receipt")->type_name("F");
  CLI::App& show = group.add("show", "a card as Markdown", [&command] { return run_card_show(command); });
  show.add_option("file", command.file, "the card")->required()->type_name("F");
  show.add_option("--folder", command.folder, "of its run: check the receipt there")->type_name("DIR");
}

void add_bench_timing(CLI::App& app, BenchTiming& timing) {
  app.add_option("--duration", timing.window_s, "seconds of a window")->capture_default_str();
  app.add_option("--ready-least", timing.ready_least_s, "seconds from launch to window, at least")
      ->capture_default_str();
  app.add_option("--ready-hold", timing.ready_hold_s, "seconds that all streams must have been running")
      ->capture_default_str();
  app.add_option("--ready-timeout", timing.ready_timeout_s, "then it is measured anyway; 0: 60 to 180, by context")
      ->capture_default_str();
  app.add_option("--poll", timing.poll_s, "seconds between two looks at /metrics")->capture_default_str();
  app.add_option("--drain-timeout", timing.drain_timeout_s, "wait so long for an idle server; 0: do not")
      ->capture_default_str();
  app.add_option("--request-timeout", timing.request_s, "of one request")->capture_default_str();
  app.add_option("--silence", timing.silence_s, "a stream without a token for longer is flagged")
      ->capture_default_str();
}

void add_bench_serve(Subcommands& group, BenchCommand& command) {
  CLI::App& app = group.add("serve", "sustained decode, cold prefill, bursts, long arrivals, of any OpenAI chat server",
                            [&command] { return run_bench_serve(command); });
  BenchOptions& options = command.options;
  app.add_option("url", options.url, "http://HOST:PORT")->required()->type_name("URL");
  app.add_option("--model", options.model, "the first that the server lists without it")->type_name("NAME");
  app.add_option("--api-key", options.api_key, "sent as a bearer token")
      ->envname("ONELANE_BENCH_API_KEY")
      ->type_name("KEY");
  app.add_flag("--lib", command.lib, "the protocol of llm-inference-bench, for comparison with its tables");
  app.add_option("--lib-texts", options.lib_texts, "with --lib: its own texts {\"question\", \"sentences\"}")
      ->type_name("F");
  app.add_option("--classes", command.classes, "workload classes, or all [prose]")->type_name("LIST");
  app.add_flag("--held-out", options.held_out, "the held-out prompts of the classes");
  app.add_option("--concurrency", command.concurrency, "streams [1,2,4,8; --lib: to 128]")->type_name("LIST");
  app.add_option("--contexts", command.contexts, "tokens in front [0; --lib: 0,16k,32k,64k,128k]")->type_name("LIST");
  app.add_option("--max-tokens", options.max_tokens, "of an answer")->capture_default_str();
  app.add_flag("--respect-eos", options.respect_eos, "let answers end; with classes that can be graded, grade them");
  app.add_option("--temperature", options.temperature, "the server's default without it");
  app.add_option("--top-p", options.top_p, "the server's default without it");
  app.add_option("--seed", options.seed, "not sent without it");
  app.add_option("--kv-tokens", options.kv_tokens, "what its cache holds, where it does not say");
  app.add_option("--characters-per-token", options.characters_per_token, "not calibrated then");
  app.add_flag("!--no-decode", options.decode, "leave out the windows");
  app.add_option("--warmup", options.warmup_s, "seconds of one hidden stream before the windows")
      ->capture_default_str();
  app.add_option("--prefill", command.prefill, "cold prompts of so many tokens, or none [none; --lib: 8k,64k,128k]")
      ->type_name("LIST");
  app.add_option("--prefill-duration", options.prefill_s, "seconds of samples a context")->capture_default_str();
  app.add_flag("--run-burst", options.burst, "also finite bursts of each cell");
  app.add_option("--burst-requests", options.burst_per_stream, "a stream")->capture_default_str();
  app.add_option("--mixed-prefill", command.mixed, "prompts of so many tokens that arrive among decode streams")
      ->type_name("LIST");
  app.add_option("--mixed-streams", options.mixed_streams, "in the background")->capture_default_str();
  app.add_option("--mixed-warmup", options.mixed_warmup_s, "seconds before the arrival")->capture_default_str();
  app.add_option("--mixed-after", options.mixed_after_s, "seconds behind it")->capture_default_str();
  add_bench_timing(app, options.timing);
  app.add_option("--json", command.json, "everything, as JSON; - for stdout instead of tables")->type_name("F");
  app.add_option("--receipt", command.receipt, "a sealed receipt")->type_name("F");
  app.add_option("--db", command.db, "a receipt store that gets it")->type_name("F");
  app.footer(
      "tok/s: usage increases in the window / (last increase - window start); ITL: (last text - first text) /\n"
      "(tokens - 1) of a request; TTFT: first text, reasoning included. Exit code 0: PASS; 1: not; 2: used wrongly.");
}

void add_bench_step(Subcommands& group, BenchStepCommand& command) {
  CLI::App& app = group.add("step", "what a step of the model costs, stage by stage, against the copy bandwidth",
                            [&command] { return run_bench_step(command); });
  auto* model = app.add_option_group("model");
  model->add_option("-m,--model", command.runtime.dir, "model directory")->type_name("DIR");
  model->add_option("--synthetic", command.synthetic, "true shapes, random weights")
      ->check(CLI::IsMember({"v4", "v41"}));
  model->require_option(1);
  app.add_option("--layers", command.synthetic_options.layers, "synthetic: the first so many; 0: as many as fit")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--routing", command.synthetic_options.routing, "synthetic: uniform, zipf:S, or trace:FILE")
      ->capture_default_str();
  app.add_option("--seed", command.seed, "of weights, caches and tokens")->capture_default_str();
  app.add_option("--backend", command.runtime.backend, "cpu, cuda, cuda:N or reference")->capture_default_str();
  app.add_option("--threads", command.runtime.threads, "of the cpu backend; 0: every processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--rows", command.rows, "rows of a step; a sequence has one and its drafts")
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--context", command.contexts, "tokens in front")->type_name("LIST")->capture_default_str();
  app.add_option("--prefill", command.prefill, "also prompts of so many tokens [none]")->type_name("LIST");
  app.add_option("--chunk", command.chunk, "rows of a step of a prompt")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--steps", command.steps, "steps of a repeat")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--repeats", command.repeats, "of whole steps")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--accept", command.accept, "tokens a step gives a sequence, for tokens/s")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", command.json, "everything, as JSON; - for stdout instead of tables")->type_name("F");
  app.add_flag("--profile", command.profile, "instead: the counters of a step's kernels, by ncu");
  app.add_flag("--profiled", command.profiled)->group("");
}

void add_gate(Subcommands& commands, GateCommand& command) {
  CLI::App& app = commands.add("gate", "ask a running server whether it may be used: PASS, FAIL, NOT RUN or VOID",
                               [&command] { return run_gates(command); });
  app.add_option("gate", command.gate, "which one")->required()->check(CLI::IsMember(gate_names()));
  app.add_option("url", command.url, "the server, http://HOST:PORT")->required()->type_name("URL");
  app.add_flag("--quick", command.quick, "fewer questions, for every boot");
  app.add_option("--profile", command.profile, "what is demanded: full, mini, or auto: by the model's name")
      ->capture_default_str();
  app.add_flag("--held-out", command.held_out, "the other set of tasks, which is run once, at promotion");
  app.add_option("--model", command.model, "the name to ask for; without it the first that the server lists");
  app.add_option("--api-key", command.api_key, "sent as a bearer token")->envname("ONELANE_BENCH_API_KEY");
  app.add_option("--seed", command.seed, "of what is drawn; 0: another one each time")->capture_default_str();
  app.add_option("--reference", command.reference, "of divergence: a capture of the build to be held against")
      ->type_name("F");
  app.add_option("--null", command.null, "of divergence: another capture of that build, which bounds are counted from")
      ->type_name("F");
  app.add_flag("--precision", command.precision, "of divergence: bounds for other formats or weights");
  app.add_option("--rounds", command.rounds, "of the soak; 0: as the profile says")->capture_default_str();
  app.add_option("--receipt", command.receipt, "write the receipt here")->type_name("F");
  app.add_option("--db", command.db, "a receipt store that gets it")->type_name("F");
}

void add_capture(Subcommands& commands, CaptureCommand& command) {
  CLI::App& app = commands.add("capture", "a server's logprobs of forced documents, for the gate divergence",
                               [&command] { return run_capture_command(command); });
  app.add_option("url", command.url, "the server, http://HOST:PORT")->required()->type_name("URL");
  app.add_option("-o,--output", command.file, "where the capture goes")->required()->type_name("F");
  app.add_option("--path", command.path, "how documents are computed")
      ->check(CLI::IsMember(capture_path_names()))
      ->capture_default_str();
  app.add_option("--from", command.from, "take the documents of this capture instead of new ones")->type_name("F");
  app.add_option("--documents", command.documents, "of each workload class, at most")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--tokens", command.tokens, "of a document, at most")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app.add_option("--continuation", command.continuation, "tokens of a document that the server writes itself")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_flag("--held-out", command.held_out, "the other set of prompts");
  app.add_option("--model", command.model, "the name to ask for; without it the first that the server lists");
  app.add_option("--api-key", command.api_key, "sent as a bearer token")->envname("ONELANE_BENCH_API_KEY");
}

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
  add_report_output(report, command.html, command.markdown);
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
  add_ab(commands, all->ab);
  add_card(commands, all->card);
  Subcommands bench = commands.group("bench", "measure a server under load, or the step of a model");
  add_bench_serve(bench, all->bench);
  add_bench_step(bench, all->bench_step);
  add_capture(commands, all->capture);
  add_gate(commands, all->gate);
  add_receipts(commands, all->receipts);
  add_workloads(commands, all->workload);
  return all;
}

}  // namespace onelane
