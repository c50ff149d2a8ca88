#include "attention/replay.h"

#include <algorithm>
#include <cstdio>

#include "attention/random.h"

namespace onelane::attention_test {
namespace {

constexpr int kBuckets[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128};
constexpr int kSanitizerBuckets[] = {1, 2, 6};
// Split against whole, of FP8 codes: over the whole run, and in one call, which may be a single row.
constexpr double kCodesEqual = 0.999;
constexpr double kCodesEqualOnce = 0.99;
constexpr double kLseDifference = 1e-5;
constexpr int kOracleEvery = 8;
constexpr double kOracleBudget = 2e7;

struct Kind {
  const char* name;
  onelane_kv_format window, extra;
  int extra_width;
  int extra_page, extra_records;
  onelane_attention_output output;
};
constexpr Kind kKinds[] = {
    {"window only", ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4, 0, 1, 0, ONELANE_OUT_FP8_GROUPED},
    {"128 + 512", ONELANE_KV_V41_FP8, ONELANE_KV_V41_FP4, 512, 64, 6000, ONELANE_OUT_FP8_GROUPED},
    {"128 + 1024", ONELANE_KV_V4, ONELANE_KV_V4, 1024, 53, 6000, ONELANE_OUT_FP8},
    {"ratio 128", ONELANE_KV_V4, ONELANE_KV_V4, 4096, 2, 5000, ONELANE_OUT_BF16},
};

}  // namespace

Replay::Replay(Backend& backend, const ReplayOptions& options)
    : backend_(backend),
      options_(options),
      workspace_(backend, options.fence),
      counter_(backend, options.fence),
      counter_in_(backend, options.fence),
      counter_out_(backend, options.fence) {
  if (options_.sanitizer) options_.fence = false;
  make_layers();
}

void Replay::make_layers() {
  for (const Kind& kind : kKinds) {
    Case spec;
    spec.name = kind.name;
    spec.shape = {.rows = 1,
                  .heads = options_.heads,
                  .window_width = 128,
                  .extra_width = options_.sanitizer ? std::min(kind.extra_width, 1024) : kind.extra_width,
                  .window_format = kind.window,
                  .extra_format = kind.extra,
                  .output = kind.output,
                  .splits = 0};
    spec.rope = true;
    spec.window_page = 256;
    spec.window_records = 2048;
    spec.extra_page = kind.extra_page;
    spec.extra_records = kind.extra_records;
    spec.seed = options_.seed + layers_.size();
    layers_.push_back({kind.name, make_standing_problem(spec, 0.75),
                       std::make_unique<Operands>(backend_, options_.fence), Difference{}});
  }
}

void Replay::plan_bucket(Bucket& bucket) {
  onelane_attention_device device = backend_.device();
  if (options_.combine) device.cluster_blocks = 1;
  for (Layer& layer : layers_) {
    remake_rows(layer.problem, options_.seed, bucket.rows, bucket.rows);
    Call call;
    onelane_attention_shape shape = layer.problem.spec.shape;
    check_status(onelane_attention_make_plan(&shape, &device, &call.plan), "make_plan");
    shape.splits = 1;
    check_status(onelane_attention_make_plan(&shape, &device, &call.whole_plan), "make_plan, unsplit");
    bucket.splits |= call.plan.splits > 1;
    OperandBytes bytes = operand_bytes(layer.problem, call.plan);
    workspace_.reserve(std::max(call.plan.workspace_bytes, call.whole_plan.workspace_bytes));
    bytes[kWorkspace] = 0;
    layer.operands->reserve(bytes);
    bucket.calls.push_back(call);
  }
}

void Replay::plant_row_past_end(onelane_attention_args& args, const onelane_attention_shape& shape) const {
  const auto moved = [](auto* pointer, int64_t bytes) {
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<intptr_t>(pointer) + bytes);
  };
  const int64_t row_values = int64_t{shape.heads} * kDim;
  switch (options_.plant_operand) {
    case kQ:
      args.q = moved(args.q, 2 * row_values);
      break;
    case kOut:
      args.out = moved(args.out, shape.output == ONELANE_OUT_BF16 ? 2 * row_values : row_values);
      break;
    case kLse:
      args.lse = moved(args.lse, int64_t{4} * shape.heads);
      break;
    case kWindowIndices:
      args.window.indices = moved(args.window.indices, 4 * args.window.index_stride);
      break;
    case kWindowLengths:
      args.window.lengths = moved(args.window.lengths, 4);
      break;
    default:
      die(std::string("--plant row-past-end knows q, out, lse, window.indices and window.lengths, not ") +
          kOperandNames[options_.plant_operand]);
  }
}

void Replay::capture_bucket(Bucket& bucket) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    Call& call = bucket.calls[i];
    remake_rows(layer.problem, options_.seed, bucket.rows, bucket.rows);
    call.args = layer.operands->bind(layer.problem, call.plan, &workspace_);
    // The same place for both plans, whichever asks for more.
    call.args.workspace = workspace_.tail(std::max(call.plan.workspace_bytes, call.whole_plan.workspace_bytes), 16);
    call.captured = call.args;
    layer.operands->upload(layer.problem, call.args);
    // Eagerly once: modules are loaded lazily, and a capture is no place for that.
    check_status(backend_.run(call.plan, call.args), "the first run of " + layer.name);
    backend_.synchronize();
    if (options_.plant == Plant::kRowPastEnd) plant_row_past_end(call.captured, call.plan.shape);
  }
  auto* counter = static_cast<unsigned*>(counter_.tail(kCounterRows * sizeof(unsigned), 16));
  bucket.graph = backend_.record([&] {
    for (size_t i = 0; i < layers_.size(); ++i) {
      check_status(backend_.run(bucket.calls[i].plan, bucket.calls[i].captured), "capture of " + layers_[i].name);
    }
    if (options_.plant != Plant::kUnzeroedCounter) backend_.fill(counter, 0, kCounterRows * sizeof(unsigned));
    backend_.count_and_sum(
        static_cast<const float*>(counter_in_.tail(kCounterRows * kCounterParts * sizeof(float), 16)), kCounterRows,
        kCounterParts, static_cast<float*>(counter_out_.tail(kCounterRows * sizeof(float), 16)), counter);
  });
}

void Replay::capture() {
  counter_.reserve(kCounterRows * sizeof(unsigned));
  counter_in_.reserve(kCounterRows * kCounterParts * sizeof(float));
  counter_out_.reserve(kCounterRows * sizeof(float));
  counter_.fill(0);
  const auto add = [&](int rows) {
    if (rows > options_.rows_max) return;
    buckets_.emplace_back();
    buckets_.back().rows = rows;
  };
  if (options_.sanitizer) {
    for (const int rows : kSanitizerBuckets) add(rows);
  } else {
    for (const int rows : kBuckets) add(rows);
  }
  // Plans of all first: the regions must have grown before any pointer is captured.
  for (Bucket& bucket : buckets_) plan_bucket(bucket);
  for (Bucket& bucket : buckets_) capture_bucket(bucket);
}

void Replay::run() {
  for (int number = 0; number < options_.steps; ++number) step(number);
  for (const Layer& layer : layers_) {
    if (layer.total.equal_share() >= kCodesEqual || layer.problem.spec.shape.output == ONELANE_OUT_BF16) continue;
    die("over all steps only " + std::to_string(100 * layer.total.equal_share()) + " % of the FP8 codes of layer \"" +
        layer.name + "\" are those of unsplit runs");
  }
}

void Replay::fail(int number, const Bucket& bucket, const std::string& layer, const std::string& what) const {
  die("step " + std::to_string(number) + " of seed " + std::to_string(options_.seed) + ", graph of " +
      std::to_string(bucket.rows) + " rows, layer \"" + layer + "\": " + what);
}

void Replay::step(int number) {
  Random random(options_.seed, 1000 + static_cast<uint64_t>(number));
  Bucket& bucket = buckets_[static_cast<size_t>(random.below(static_cast<int>(buckets_.size())))];
  // Mostly as few padded rows as the bucket allows, sometimes nearly all.
  const auto place = static_cast<size_t>(&bucket - buckets_.data());
  const int fewest = place == 0 || random.chance(0.2) ? 1 : buckets_[place - 1].rows + 1;
  const int live_rows = fewest + random.below(bucket.rows - fewest + 1);
  splitting_steps_ += bucket.splits;
  padded_steps_ += live_rows < bucket.rows;
  ++steps_;

  const uint64_t seed = options_.seed * 1000003 + static_cast<uint64_t>(number) * 16;
  for (size_t i = 0; i < layers_.size(); ++i) {
    remake_rows(layers_[i].problem, seed + i, bucket.rows, live_rows);
    layers_[i].operands->upload(layers_[i].problem, bucket.calls[i].args, false);
    layers_[i].operands->poison();
  }
  if (!options_.sanitizer) workspace_.fill(0xff);
  counter_out_.fill(0xff);
  std::vector<float> parts(kCounterRows * kCounterParts);
  for (float& part : parts) part = static_cast<float>(random.below(1000));
  backend_.upload(counter_in_.tail(parts.size() * sizeof(float), 16), parts.data(), parts.size() * sizeof(float));

  Bucket* replayed = &bucket;
  if (options_.plant == Plant::kStalePlan && number % 3 == 2) {
    replayed = &buckets_[(place + 1) % buckets_.size()];
  }
  replayed->graph->replay();

  if (options_.verbose) {
    std::printf("  step %d: %d of %d rows live%s\n", number, live_rows, bucket.rows, bucket.splits ? ", split" : "");
  }
  std::vector<Output> outputs;
  for (size_t i = 0; i < layers_.size(); ++i) {
    outputs.push_back(layers_[i].operands->download(layers_[i].problem, bucket.calls[i].plan, bucket.calls[i].args));
  }
  check_counter(number);
  for (size_t i = 0; i < layers_.size(); ++i) check_layer(number, bucket, i, live_rows, outputs[i]);
}

void Replay::check_counter(int number) {
  std::vector<float> in(kCounterRows * kCounterParts), out(kCounterRows);
  backend_.download(in.data(), counter_in_.tail(in.size() * sizeof(float), 16), in.size() * sizeof(float));
  backend_.download(out.data(), counter_out_.tail(out.size() * sizeof(float), 16), out.size() * sizeof(float));
  for (int row = 0; row < kCounterRows; ++row) {
    float sum = 0;
    for (int part = 0; part < kCounterParts; ++part) sum += in[static_cast<size_t>(row * kCounterParts + part)];
    if (out[static_cast<size_t>(row)] == sum) continue;
    die("step " + std::to_string(number) + ": row " + std::to_string(row) + " of the counting kernel is " +
        std::to_string(out[static_cast<size_t>(row)]) + ", should be " + std::to_string(sum) +
        ": its counter was not zero when the replay began");
  }
}

void Replay::check_layer(int number, const Bucket& bucket, size_t layer_number, int live_rows, const Output& output) {
  Layer& layer = layers_[layer_number];
  const Call& call = bucket.calls[layer_number];
  const Problem& problem = layer.problem;
  const onelane_attention_shape& shape = problem.spec.shape;
  const auto complain = [&](const std::string& what) { fail(number, bucket, layer.name, what); };

  const std::string missing = unwritten(shape, output, -1);
  if (!missing.empty()) complain(missing);
  for (int row = live_rows; row < bucket.rows; ++row) {
    for (int head = 0; head < shape.heads; ++head) {
      if (!(output.lse[static_cast<size_t>(row) * shape.heads + head] > 3e38f)) {
        complain("the lse of padded row " + std::to_string(row) + " is not infinite");
      }
      for (int dim = 0; dim < kDim; ++dim) {
        if (decoded(shape, output, row, head, dim) != 0) complain("padded row " + std::to_string(row) + " is not zero");
      }
    }
  }

  // Against the same rows, eagerly and in one part.
  const auto eager = [&](const onelane_attention_plan& plan) {
    layer.operands->poison();
    if (!options_.sanitizer) workspace_.fill(0xff);
    check_status(backend_.run(plan, call.args), "an eager run of " + layer.name);
    return layer.operands->download(problem, plan, call.args);
  };
  const Difference found = difference(shape, eager(call.whole_plan), output);
  if (found.lse_most > kLseDifference) {
    complain("lse is " + std::to_string(found.lse_most) + " from that of an unsplit run");
  }
  if (shape.output != ONELANE_OUT_BF16 && found.equal_share() < kCodesEqualOnce) {
    complain("only " + std::to_string(100 * found.equal_share()) + " % of the FP8 codes are those of an unsplit run");
  }
  if (found.l2 > 3e-2) complain("relative difference " + std::to_string(found.l2) + " from an unsplit run");
  layer.total.elements += found.elements;
  layer.total.equal += found.equal;
  layer.total.lse_most = std::max(layer.total.lse_most, found.lse_most);

  if (number % kOracleEvery != static_cast<int>(layer_number) % kOracleEvery) return;
  ++oracle_checks_;
  if (!(eager(call.plan) == output)) complain("an eager run of the same plan has other bits");
  const Comparison comparison = compare_with_oracle(problem, output, {}, kOracleBudget);
  const std::string verdict = comparison.verdict();
  if (!verdict.empty()) complain(verdict);
  if (shape.output == ONELANE_OUT_BF16) worst_l2_ = std::max(worst_l2_, comparison.l2());
}

std::string Replay::summary() const {
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "%d steps over %zu graphs of %zu layers: %d with split rows, %d with padded rows, %d calls held against "
      "the oracle (l2 %.2e)",
      steps_, buckets_.size(), layers_.size(), splitting_steps_, padded_steps_, oracle_checks_, worst_l2_);
  std::string summary = text;
  for (const Layer& layer : layers_) {
    std::snprintf(text, sizeof(text), "\n  %-12s split against whole: codes equal %.4f %%, lse %.1e",
                  layer.name.c_str(), 100 * layer.total.equal_share(), layer.total.lse_most);
    summary += text;
  }
  return summary;
}

}  // namespace onelane::attention_test
