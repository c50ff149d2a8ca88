// Profiles: what a gate demands, scaled to what the served model can do. One table; receipts name the profile.
//
// `full` is for the full-size models. `mini` is for the mini models of this repository: they add, call flat tools,
// recall five-digit codes and answer in templates, and nothing else, so the questions are of these kinds. What a mini
// model gets wrong on a server that computes right is a limit of the model, and has no place in a gate of the server.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onelane {

// A thinking mode of the thinking gate.
struct GateMode {
  std::string name;
  bool thinking = false;
  std::string effort;  // reasoning_effort; empty: the server's default
};

struct GateProfile {
  std::string name, about;
  bool mini_tasks = false;  // the tasks that the mini models were trained on

  // gauntlet
  int gauntlet_workers = 4;
  int turn_tokens = 1500;  // longest answer of a turn
  double task_seconds = 180;
  int most_turns = 12, most_calls = 32;

  // thinking
  std::vector<GateMode> modes;
  std::vector<int> streams;             // concurrencies
  std::vector<int64_t> arrival_tokens;  // long prompts that arrive among running streams
  double window_s = 30, quick_window_s = 10;
  double most_gap_s = 0;     // longest silence of a stream
  double itl_floor_s = 0;    // ITL p99 beside an arrival may be three times the idle one, or this
  double least_share = 0.7;  // tokens of the slowest stream over the mean

  // divergence and lossless
  int documents = 16, quick_documents = 2;  // of each class
  int64_t document_tokens = 4096;
  int continuation_tokens = 64;  // of a document, written by the reference
  int skipped_tokens = 16;       // at the beginning of a document: BOS draws attention there, and prompts are short
  int parity_tokens = 256;       // of a greedy answer
  int contexts = 50, quick_contexts = 4, draws = 400, quick_draws = 64;

  // needle
  std::vector<int64_t> needle_tokens, quick_needle_tokens;  // rungs
  int code_digits = 12;
  int cold_prompts = 7, quick_cold_prompts = 2;  // a rung; each with a needle at every depth
  bool composed_needles = true;                  // five in order, and one behind another

  // soak
  int soak_workers = 12;
  double round_s = 60, quick_round_s = 4;
  int rounds = 1440, quick_rounds = 10, warm_rounds = 2;
  double short_round_s = 0.3;           // of null and planted arms
  double drain_s = 60, settle_s = 0.2;  // until nothing runs; from there to a reading
  double most_growth = 0.05;  // of a resource: projected over thirty days, or over the run where that is short
};

std::span<const GateProfile> gate_profiles();
// "auto": by the name of the model ("mini-..."); null: no such profile.
const GateProfile* find_profile(std::string_view name, std::string_view model);

}  // namespace onelane
