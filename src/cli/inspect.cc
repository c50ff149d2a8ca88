#include "cli/inspect.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "checkpoint/config.h"
#include "checkpoint/footprint.h"
#include "checkpoint/inventory.h"
#include "numerics/records.h"

namespace onelane {
namespace {

using nlohmann::ordered_json;

struct Report {
  const InspectOptions& options;
  ModelSpec spec;
  Footprint cost;
  int shards = 0;  // 0: weights were not looked at

  double bytes_per_us() const { return options.bandwidth_gb_s * 1e3; }
};

const char* generation_name(Generation generation) { return generation == Generation::kV4 ? "v4" : "v4.1"; }

const char* drafter_name(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kNone:
      return "none";
    case DrafterKind::kMtp:
      return "mtp";
    case DrafterKind::kDspark:
      return "dspark";
  }
  return "";
}

// 1,234,567
std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// "1.23 GB": decimal units, as bandwidths are quoted.
std::string size_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? format("{:.0f} B", bytes) : format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string time_text(double us) { return us < 1000 ? format("{:.1f} us", us) : format("{:.2f} ms", us / 1000); }

// What the layer attends to beside its window.
std::string attention_text(const LayerSpec& layer) {
  if (layer.ratio == 0) return "window";
  return format("window + {} of ratio {}", layer.index_owner < 0 ? "all" : "picks", layer.ratio);
}

std::string owner_text(int owner, int index) {
  if (owner < 0) return "-";
  return owner == index ? "own" : std::to_string(owner);
}

std::string extras_text(const LayerSpec& layer) {
  std::string text;
  auto add = [&](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (layer.engram) add(format("engram of {} rows", grouped(layer.engram_rows)));
  if (layer.compressor_overlap) add("overlapping compressor");
  if (layer.has_compressor && !layer.has_compressor_gate) add("compressor without gate");
  if (layer.candidate_source) add("chooses candidate blocks");
  if (layer.candidate_masked) add("picks among candidates");
  if (layer.hash_routing) add("routes by token id");
  return text;
}

void print_model(const Report& report, std::string& out) {
  const ModelSpec& spec = report.spec;
  auto line = [&](const char* name, const std::string& value) { out += format("  {:<20} {}\n", name, value); };
  out += format("{}: generation {}, {} layers, {} draft stage{} ({})\n\n", report.options.dir,
                generation_name(spec.generation), spec.layers.size(), spec.draft_stages.size(),
                spec.draft_stages.size() == 1 ? "" : "s", drafter_name(spec.drafter));
  line("width", format("{} x {} streams, vocabulary {}", spec.hidden, spec.hyper.mult, grouped(spec.vocab)));
  line("attention", format("{} query heads of {} ({} rotated), query rank {}, output {} groups of rank {}",
                           spec.n_heads, spec.head_dim, spec.rope_dim, spec.q_lora, spec.o_groups, spec.o_lora));
  line("window", format("{} positions, ring of {} slots of {} B", spec.window, spec.ring_slots(),
                        record_bytes(spec.window_record)));
  line("positions", format("{}; rope bases {} and {} (yarn x{} from {})", grouped(spec.max_positions), spec.rope.theta,
                           spec.rope.compress_theta, spec.rope.factor, grouped(spec.rope.original_positions)));
  line("indexer", format("{} heads of {}, top {}", spec.indexer.heads, spec.indexer.head_dim, spec.indexer.topk));
  if (spec.candidate.source_layer >= 0) {
    line("candidates", format("{} blocks of {}, chosen in layer {}", grouped(spec.candidate.topk_blocks),
                              spec.candidate.block_size, spec.candidate.source_layer));
  }
  if (!spec.engram.layers.empty()) {
    line("engram", format("{} tables of {} values per layer, orders 2 to {}, {} compressed ids", spec.engram.columns(),
                          spec.engram.head_dim, spec.engram.max_ngram, grouped(spec.engram.compressed_vocab_size)));
  }
  if (spec.drafter == DrafterKind::kDspark) {
    line("drafter", format("blocks of {}, taps at the {} of layers {}, markov rank {}", spec.dspark.block_size,
                           spec.dspark.taps_are_inputs ? "input" : "output", join(spec.dspark.target_layers, ", "),
                           spec.dspark.markov_rank));
  }
  line("quantisation",
       format("fp8 in {0} x {0}, activations per {1}, experts fp4 per 32", spec.weight_block, spec.act_block));
  line("norm epsilon", format("{}", spec.rms_eps));
  if (!spec.unknown_keys.empty()) line("unknown keys", format("{}", join(spec.unknown_keys, ", ")));
}

void print_layers(const Report& report, std::string& out) {
  constexpr const char* kRow = "  {:<8} {:<24} {:<8} {:<8} {:<5} {:<16} {}\n";
  out += '\n';
  out += format(kRow, "layer", "attends to", "kv of", "picks of", "rope", "experts", "");
  out.erase(out.find_last_not_of(" \n") + 1);
  out += '\n';
  auto print = [&](const LayerSpec& layer, const std::string& name) {
    std::string row = format(kRow, name, attention_text(layer), owner_text(layer.kv_owner, layer.index),
                             owner_text(layer.index_owner, layer.index), layer.rope == RopeTable::kA ? "A" : "B",
                             format("{} of {}", layer.moe.topk, layer.moe.n_experts), extras_text(layer));
    row.erase(row.find_last_not_of(" \n") + 1);
    out += row + "\n";
  };
  for (const LayerSpec& layer : report.spec.layers) print(layer, std::to_string(layer.index));
  for (const LayerSpec& stage : report.spec.draft_stages) print(stage, format("draft {}", stage.index));
}

void print_costs(const Report& report, std::string& out) {
  const Footprint& cost = report.cost;
  constexpr const char* kRow = "  {:<20} {:>8} {:>22}  {}\n";
  out += format("\n  {:<20} {:>8} {:>22}\n", "tensors", "count", "bytes");
  for (int kind = 0; kind < kTensorKindCount; ++kind) {
    const KindTotal& total = cost.kinds[static_cast<size_t>(kind)];
    if (total.tensors == 0) continue;
    out += format(kRow, kind_name(static_cast<TensorKind>(kind)), grouped(total.tensors), grouped(total.bytes),
                  size_text(static_cast<double>(total.bytes)));
  }
  out += format(kRow, "all", grouped(cost.weights.tensors), grouped(cost.weights.bytes),
                size_text(static_cast<double>(cost.weights.bytes)));
  out += report.shards == 0 ? "  (expected from config.json; no weights were looked at)\n"
                            : format("  (checked by name, type and shape in {} file{})\n", report.shards,
                                     report.shards == 1 ? "" : "s");

  auto size = [](auto bytes) { return size_text(static_cast<double>(bytes)); };
  out += format("\n  cache: {:.2f} B per token; {} for one sequence of {} tokens\n", cost.kv_bytes_per_token,
                size(cost.kv_bytes_per_sequence()), grouped(report.options.tokens));
  out += format("    entries and index keys {}, window rings {}, groups being filled {}\n", size(cost.entry_bytes),
                size(cost.ring_bytes), size(cost.state_bytes));
  auto step = [&](const std::string& name, const StepBytes& bytes) {
    out +=
        format("\n  {}: reads {} of weights and {} of cache; at {:.0f} GB/s at least {}\n", name, size(bytes.weights()),
               size(bytes.kv), report.options.bandwidth_gb_s, time_text(bytes.floor_us(report.bytes_per_us())));
    out += format("    routed experts {} ({:.2f} distinct per layer expected), other weights {}, table rows {}\n",
                  size(bytes.experts), bytes.distinct_experts, size(bytes.dense), size(bytes.rows));
  };
  step(format("decode step of {} row{}", report.options.rows, report.options.rows == 1 ? "" : "s"), cost.step);
  if (report.spec.drafter == DrafterKind::kDspark) {
    step(format("draft of {} tokens", report.spec.dspark.block_size), cost.draft);
  }
}

ordered_json owner_json(int owner) { return owner < 0 ? ordered_json(nullptr) : ordered_json(owner); }

ordered_json layer_json(const LayerSpec& layer) {
  ordered_json out = {{"index", layer.index},
                      {"draft", layer.draft},
                      {"ratio", layer.ratio},
                      {"kv_owner", owner_json(layer.kv_owner)},
                      {"index_owner", owner_json(layer.index_owner)},
                      {"compressor", layer.has_compressor},
                      {"indexer", layer.has_indexer},
                      {"candidate_source", layer.candidate_source},
                      {"candidate_masked", layer.candidate_masked},
                      {"rope", layer.rope == RopeTable::kA ? "A" : "B"},
                      {"hash_routing", layer.hash_routing},
                      {"experts", layer.moe.n_experts},
                      {"topk", layer.moe.topk},
                      {"engram_rows", layer.engram_rows}};
  return out;
}

ordered_json layers_json(const std::vector<LayerSpec>& layers) {
  ordered_json out = ordered_json::array();
  for (const LayerSpec& layer : layers) out.push_back(layer_json(layer));
  return out;
}

std::string json_report(const Report& report) {
  const ModelSpec& spec = report.spec;
  const Footprint& cost = report.cost;
  ordered_json kinds = ordered_json::object();
  for (int kind = 0; kind < kTensorKindCount; ++kind) {
    const KindTotal& total = cost.kinds[static_cast<size_t>(kind)];
    if (total.tensors == 0) continue;
    kinds[std::string(kind_name(static_cast<TensorKind>(kind)))] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  ordered_json draft = nullptr;
  if (spec.drafter == DrafterKind::kDspark) {
    draft = {{"weight_bytes", cost.draft.weights()},
             {"kv_bytes", cost.draft.kv},
             {"expected_distinct_experts", cost.draft.distinct_experts},
             {"time_floor_us", cost.draft.floor_us(report.bytes_per_us())}};
  }
  const ordered_json out = {{"generation", generation_name(spec.generation)},
                            {"checked", report.shards > 0},
                            {"layer_count", spec.layers.size()},
                            {"layers", layers_json(spec.layers)},
                            {"drafter", drafter_name(spec.drafter)},
                            {"draft_stages", layers_json(spec.draft_stages)},
                            {"tensor_count", cost.weights.tensors},
                            {"weight_bytes", cost.weights.bytes},
                            {"tensors_by_kind", kinds},
                            {"rows", report.options.rows},
                            {"tokens", report.options.tokens},
                            {"bandwidth_gb_s", report.options.bandwidth_gb_s},
                            {"kv_bytes_per_token", cost.kv_bytes_per_token},
                            {"kv_bytes_per_sequence", cost.kv_bytes_per_sequence()},
                            {"kv_bytes_per_sequence_parts",
                             {{"entries", cost.entry_bytes}, {"rings", cost.ring_bytes}, {"state", cost.state_bytes}}},
                            {"step_weight_bytes", cost.step.weights()},
                            {"step_kv_bytes", cost.step.kv},
                            {"expected_distinct_experts", cost.step.distinct_experts},
                            {"time_floor_us", cost.step.floor_us(report.bytes_per_us())},
                            {"draft", draft},
                            {"unknown_keys", spec.unknown_keys}};
  return out.dump(2) + "\n";
}

Result<void> check_options(const InspectOptions& options) {
  auto refuse = [](const std::string& message) { return Error{ErrorCode::kInvalidArgument, message}; };
  if (options.rows < 1 || options.rows > 4096) return refuse(format("--rows is {}; 1 to 4096 is needed", options.rows));
  if (options.tokens < 0) return refuse(format("--tokens is {}; 0 or more is needed", options.tokens));
  if (!(options.bandwidth_gb_s > 0) || options.bandwidth_gb_s > 1e9) {
    return refuse(format("--bandwidth is {}; a positive number of GB/s is needed", options.bandwidth_gb_s));
  }
  return {};
}

}  // namespace

Result<std::string> inspect_report(const InspectOptions& options) {
  ONELANE_TRY(check_options(options));
  Report report{.options = options, .spec = {}, .cost = {}};
  if (options.config_only) {
    ONELANE_ASSIGN(report.spec, load_config(options.dir));
  } else {
    auto files = open_model(options.dir);
    if (!files) {
      Error error = std::move(files).error();
      if (error.code == ErrorCode::kNotFound) error.message += " (--config-only needs no weights)";
      return error;
    }
    report.spec = std::move(files->spec);
    report.shards = files->checkpoint.shard_count();
  }
  if (options.tokens > report.spec.max_positions) {
    return Error{ErrorCode::kInvalidArgument,
                 format("--tokens is {}; this model has {} positions", options.tokens, report.spec.max_positions)};
  }
  report.cost = footprint(report.spec, {.rows = options.rows, .tokens = options.tokens});
  if (options.json) return json_report(report);
  std::string out;
  print_model(report, out);
  print_layers(report, out);
  print_costs(report, out);
  return out;
}

int run_inspect(const InspectOptions& options) {
  if (auto checked = check_options(options); !checked) {
    std::fprintf(stderr, "onelane inspect: %s\n", checked.error().message.c_str());
    return 2;
  }
  const auto report = inspect_report(options);
  if (!report) {
    std::fprintf(stderr, "onelane inspect: %s\n", report.error().message.c_str());
    return 1;
  }
  std::fwrite(report->data(), 1, report->size(), stdout);
  return 0;
}

}  // namespace onelane
