// The plan of a load bench: what is asked of which cells, in which order, and which cells cannot be measured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lane/bench_prompts.h"
#include "lane/cell.h"

namespace onelane {

// kLib: the protocol of llm-inference-bench, so that its published tables can be compared. kStrict: frozen prompts of
// workload classes, another one for every stream and turn. Never in one table.
enum class BenchMode { kStrict, kLib };

struct BenchOptions {
  std::string url, api_key;
  std::string model;  // empty: the first that the server lists
  BenchMode mode = BenchMode::kStrict;

  std::vector<int> concurrency = {1, 2, 4, 8};
  std::vector<int64_t> contexts = {0};           // tokens
  std::vector<std::string> classes = {"prose"};  // strict
  bool held_out = false;                         // strict: the held-out prompts instead of the others
  std::string lib_texts;                         // lib: a file of the original texts
  int64_t max_tokens = 2048;
  bool respect_eos = false;  // answers end by themselves, at the class's limit at the latest, and are graded
  std::optional<double> temperature, top_p;
  std::optional<int64_t> seed;
  std::optional<int64_t> kv_tokens;            // what fits; else what the server says
  std::optional<double> characters_per_token;  // else calibrated

  bool decode = true;
  double warmup_s = 3;  // one hidden stream before the first cell; 0: none
  std::vector<int64_t> prefill_contexts;
  double prefill_s = 10;  // samples of one context are taken for so long
  bool burst = false;
  int burst_per_stream = 5;  // requests measured, behind one of each stream to warm up
  std::vector<int64_t> mixed_contexts;
  int mixed_streams = 8;
  int64_t mixed_prompt_tokens = 2048, mixed_max_tokens = 1024;
  double mixed_warmup_s = 20, mixed_after_s = 10;

  BenchTiming timing;
};

// What is asked. One per run: its marks and tags are the run's own, so that no cache knows them.
class BenchAsker {
 public:
  // Errors: an unknown class, a file of texts that cannot be read.
  static Result<std::unique_ptr<BenchAsker>> create(const BenchOptions& options, std::string model);

  // Requests of `workload` (a class, or "filler" in lib mode) behind a context, for the streams of a cell.
  CellPlan cell(const std::string& workload, int concurrency, int64_t context_tokens);
  // One request behind a new document; `kind` as in document_mark.
  std::string request(const std::string& kind, int64_t context_tokens, int64_t max_tokens, int sample, bool stream);

  // Asks the server how long `tokens` tokens of our documents are: at most three probes, until within 5 %. An error if
  // a probe fails; without usage in its answers four characters make a token.
  Result<double> calibrate(HttpClient& client, int64_t tokens, double seconds);
  void set_characters_per_token(double value) { characters_per_token_ = value; }
  double characters_per_token() const { return characters_per_token_; }

  std::string prompts_sha256() const;
  bool original_texts() const { return texts_.original; }
  std::vector<std::string> workloads() const;

 private:
  std::string document(const std::string& mark, int64_t context_tokens) const;
  ChatRequest base(int64_t max_tokens, bool stream) const;
  const std::string& cell_document(int64_t context_tokens);

  BenchOptions options_;
  std::string model_;
  LibTexts texts_;
  double characters_per_token_ = 4;
  std::vector<std::pair<int64_t, std::string>> documents_;  // by context: all cells of a run share them
};

struct PlannedCell {
  std::string workload;
  int concurrency = 1;
  int64_t context_tokens = 0;
  std::string skip;  // why not; empty: measure it
};

// First the smallest concurrency with all contexts, then the smallest context with the others, then the rest: what a
// run that is ended early has, is of most use. Cells that do not fit the server's cache or context are skipped.
std::vector<PlannedCell> plan_cells(const BenchOptions& options, const std::vector<std::string>& workloads,
                                    const ServerInfo& server);

}  // namespace onelane
