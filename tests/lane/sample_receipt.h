// A receipt with every kind of field filled, for tests that change or show one.
#pragma once

#include "lane/receipt.h"
#include "lane/sha256.h"

namespace onelane {

inline Receipt sample_receipt() {
  Receipt receipt;
  receipt.run_id = "20261130T101500Z-3f2a91c0";
  receipt.kind = ReceiptKind::kBench;
  receipt.title = "prose at one and four streams";
  receipt.command = "onelane bench serve http://127.0.0.1:8000";
  receipt.verdict = Verdict::kFail;
  receipt.reasons = {"gate needle/1: 11 of 12 found"};
  receipt.protocol = {"strict/1", "strict", sha256("protocol"), sha256("prompts")};
  receipt.arm = {ArmRole::kCandidate, "split attention", 3, 5, "boot-7"};
  receipt.build = {"0.1.0-abc", "onelane", std::string(40, 'a'), sha256("binary"), "13.0", false};
  receipt.model = {"mini-v41", sha256("weights"), sha256("tokenizer"), sha256("template"), "fp8", "dspark"};
  receipt.resolved.sampling = {0.6, 0.95, 7, 256, true};
  receipt.resolved.settings = {{"max_seqs", "16"}, {"draft", "4:5,8:3,64:0"}};
  receipt.machine = {"H200", "96.00", "580.65.06", "Xeon", "6.1.0", 2, 16'000'000'000, 700.0, true};
  receipt.environment = {2.0, 1900.0, 1980.0, 40.0, 61.5, 512.0, {"power"}, {"python 42"}, {31}, 0.4};
  for (const int streams : {1, 4}) {
    ReceiptCell cell;
    cell.id = "prose/C" + std::to_string(streams) + "/ctx0";
    cell.workload = "prose";
    cell.concurrency = streams;
    cell.context_tokens = 0;
    cell.window_s = 30.0;
    cell.last_token_s = 29.97;
    cell.token_source = "usage";
    cell.tokens = 6000 * streams;
    cell.tokens_server = 6001 * streams;
    cell.steps_s = 70.5;
    cell.accepted_per_step = 1.84;
    cell.max_gap_ms = 31.5;
    cell.requests = 12;
    cell.fairness_min_mean = 0.98;
    cell.flags = {"underfilled"};
    cell.measures = {{"jain", 0.999}};
    cell.samples = {{"ttft_ms", {11.5, 12.25, 10.0, 14.0}}, {"itl_ms", {4.5, 5.0, 4.75}}, {"gap_ms", {31.5}}};
    receipt.cells.push_back(cell);
  }
  ReceiptGate gate;
  gate.id = "needle/1";
  gate.verdict = Verdict::kFail;
  gate.reasons = {"11 of 12 found"};
  gate.range = "lengths 512-4096, 12 prompts";
  gate.observed = {{"found", 11}};
  gate.bound = {{"found_min", 12}};
  gate.null_arm = Verdict::kPass;
  gate.planted_fault_caught = true;
  gate.items = {{"512/10%", "pass", ""}, {"4096/50%", "wrong", "said 12 instead of 21"}};
  gate.samples = {{"answer_tokens", {12, 14}}};
  receipt.gates = {gate};
  receipt.artifacts = {{"raw/stream.jsonl", sha256("raw"), 3}};
  return receipt;
}

}  // namespace onelane
