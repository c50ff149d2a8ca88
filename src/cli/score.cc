#include "cli/score.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numbers>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/routing_trace.h"
#include "engine/sampler.h"
#include "kernels/forwarding_kernels.h"

namespace onelane {
namespace {

// Counts the experts' picks by layer: the calls of experts() in a step, in order.
class CountingKernels final : public ForwardingKernels {
 public:
  using ForwardingKernels::ForwardingKernels;

  const RoutingTrace& counts() const { return counts_; }

  void begin(const StepRows& rows) override {
    layer_ = 0;
    inner_.begin(rows);
  }
  void experts(const StepRows& rows, const ExpertsArgs& args) override {
    inner_.experts(rows, args);
    std::vector<int32_t> ids(static_cast<size_t>(rows.count) * static_cast<size_t>(args.topk));
    inner_.memory().copy(ids.data(), args.ids, ids.size() * sizeof(int32_t));
    std::vector<double>& counts = counts_[layer_++];
    counts.resize(static_cast<size_t>(args.expert_count));
    for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  }

 private:
  int layer_ = 0;
  RoutingTrace counts_;
};

// Natural log-probability of every token of `ids`, each given BOS and the tokens before it in its window.
Result<std::vector<double>> score(const Model& model, Kernels& kernels, std::span<const int32_t> ids, int window) {
  const int limit = model.spec.max_positions;
  const int width = std::min(window > 0 ? window : limit, std::min(limit, static_cast<int>(ids.size()) + 1));
  std::vector<double> scores;
  const auto progress = progress_line("scoring:");
  for (size_t begin = 0; begin < ids.size();) {
    const size_t count = std::min(ids.size() - begin, static_cast<size_t>(width) - 1);
    // The last token of a window is predicted, not read.
    std::vector<int32_t> read = {model.spec.tokens.bos};
    read.insert(read.end(), ids.begin() + static_cast<ptrdiff_t>(begin),
                ids.begin() + static_cast<ptrdiff_t>(begin + count) - 1);
    ONELANE_ASSIGN(const auto session, Session::create(model, kernels, {.max_tokens = width, .draft = false}));
    ONELANE_TRY(session->append_rows(
        read,
        [&](int row, std::span<const float> logits) {
          scores.push_back(log_probability(logits, ids[begin + static_cast<size_t>(row)]));
        },
        progress));
    begin += count;
  }
  return scores;
}

Result<void> print_score(const ScoreCommand& command) {
  if (command.window == 1 || command.window < 0) {
    return Error{ErrorCode::kInvalidArgument, "--window must be at least 2"};
  }
  ONELANE_ASSIGN(Runtime runtime, load_runtime(command.runtime));
  ONELANE_ASSIGN(const std::string text, read_file(command.file));
  ONELANE_ASSIGN(const std::vector<int32_t> ids, runtime.encode(text, false));
  if (ids.empty()) return Error{ErrorCode::kInvalidArgument, command.file + ": no text to score"};
  CountingKernels counting(*runtime.kernels);
  Kernels& kernels = command.routing_out.empty() ? *runtime.kernels : counting;
  ONELANE_ASSIGN(const std::vector<double> scores, score(*runtime.model, kernels, ids, command.window));
  if (!command.routing_out.empty()) {
    ONELANE_TRY(write_file(command.routing_out, routing_trace_json(counting.counts())));
  }
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  const double bits_per_byte = -total / std::numbers::ln2 / static_cast<double>(text.size());
  const double mean = total / static_cast<double>(scores.size());
  if (command.json) {
    nlohmann::ordered_json json;
    json["tokens"] = ids.size();
    json["bytes"] = text.size();
    json["mean_logprob"] = mean;
    json["bits_per_byte"] = bits_per_byte;
    json["perplexity"] = std::exp(-mean);
    json["token_ids"] = ids;
    json["logprobs"] = scores;
    std::cout << json.dump() << std::endl;
  } else {
    std::cout << format(
        "tokens          {}\nbytes           {}\nmean logprob    {:.4f}\nperplexity      {:.3f}\nbits per byte   "
        "{:.4f}\n",
        ids.size(), text.size(), mean, std::exp(-mean), bits_per_byte);
  }
  return {};
}

}  // namespace

int run_score(const ScoreCommand& command) {
  const auto done = print_score(command);
  return done ? 0 : fail(done.error());
}

}  // namespace onelane
