#include "cli/serve_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/format.h"

namespace onelane {
namespace {

using Kind = ServeOption::Kind;

Error bad(std::string message) { return Error{ErrorCode::kInvalidArgument, std::move(message)}; }

template <class T>
Result<T> parse_number(std::string_view text, T low, T high) {
  T value{};
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool ok = parsed.ec == std::errc{} && parsed.ptr == end && value >= low && value <= high;
  const char* what = std::is_integral_v<T> ? "an integer" : "a number";
  if (!ok) return bad(format("must be {} in [{}, {}], not '{}'", what, low, high, text));
  return value;
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  return bad(format("must be true or false, not '{}'", text));
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) out.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(text.size(), comma + 1));
  }
  return out;
}

std::string bytes_text(int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}}) {
    if (bytes != 0 && bytes % (int64_t{1} << shift) == 0) return format("{}{}", bytes >> shift, unit);
  }
  return format("{}", bytes);
}

// Builders of table rows; `at` gives the member of ServeOptions.
template <class At>
ServeOption text_option(const char* name, const char* help, At at) {
  return {name,
          Kind::kText,
          help,
          false,
          [at](ServeOptions& o, const std::string& text) {
            at(o) = text;
            return Result<void>();
          },
          [at](const ServeOptions& o) { return at(const_cast<ServeOptions&>(o)); }};
}

template <class T, class At>
ServeOption number_option(const char* name, T low, T high, const char* help, At at) {
  return {name,
          std::is_integral_v<T> ? Kind::kInteger : Kind::kNumber,
          help,
          false,
          [=](ServeOptions& o, const std::string& text) -> Result<void> {
            ONELANE_ASSIGN(at(o), parse_number<T>(text, low, high));
            return {};
          },
          [at](const ServeOptions& o) { return format("{}", at(const_cast<ServeOptions&>(o))); }};
}

template <class At>
ServeOption bool_option(const char* name, const char* help, At at) {
  return {name,
          Kind::kBool,
          help,
          false,
          [at](ServeOptions& o, const std::string& text) -> Result<void> {
            ONELANE_ASSIGN(at(o), parse_bool(text));
            return {};
          },
          [at](const ServeOptions& o) { return at(const_cast<ServeOptions&>(o)) ? "true" : "false"; }};
}

template <class At>
ServeOption bytes_option(const char* name, const char* help, At at) {
  return {name,
          Kind::kBytes,
          help,
          false,
          [at](ServeOptions& o, const std::string& text) -> Result<void> {
            ONELANE_ASSIGN(const int64_t bytes, parse_bytes(text));
            at(o) = static_cast<std::remove_reference_t<decltype(at(o))>>(bytes);
            return {};
          },
          [at](const ServeOptions& o) { return bytes_text(static_cast<int64_t>(at(const_cast<ServeOptions&>(o)))); }};
}

// Commas separate the values.
template <class At>
ServeOption list_option(const char* name, const char* help, bool secret, At at) {
  return {name,
          Kind::kList,
          help,
          secret,
          [at](ServeOptions& o, const std::string& text) -> Result<void> {
            at(o) = split(text);
            return {};
          },
          [at](const ServeOptions& o) { return format("{}", fmt::join(at(const_cast<ServeOptions&>(o)), ",")); }};
}

#define ONELANE_AT(member) [](ServeOptions& o) -> auto& { return o.member; }

std::vector<ServeOption> make_table() {
  constexpr int kMany = 1 << 30;
  constexpr double kDay = 86400;
  std::vector<ServeOption> t;
  t.push_back(
      text_option("model", "model directory: config.json, model.safetensors, tokenizer.json", ONELANE_AT(runtime.dir)));
  t.push_back(text_option("backend", "kernels to run on: cpu, cuda or cuda:N (a GPU), or reference (slow, the oracle)",
                          ONELANE_AT(runtime.backend)));
  t.push_back(
      number_option("threads", 0, 1024, "threads of the cpu backend; 0: every processor", ONELANE_AT(runtime.threads)));
  t.push_back(list_option("served-model-name",
                          "names that requests may use, the first is reported; default: the "
                          "directory's name",
                          false, ONELANE_AT(api.model_names)));

  t.push_back(text_option("host", "address to listen on", ONELANE_AT(http.host)));
  t.push_back(number_option("port", 0, 65535, "port to listen on; 0: any free one", ONELANE_AT(http.port)));
  t.push_back(list_option("api-key", "key that requests must carry; may be given several times; none: no check", true,
                          ONELANE_AT(api.api_keys)));

  t.push_back(number_option("max-num-seqs", 1, 4096, "sequences that run at once", ONELANE_AT(engine.max_sequences)));
  t.push_back(number_option("max-waiting", 0, kMany, "requests that may wait behind them; more get 503",
                            ONELANE_AT(engine.max_waiting)));
  t.push_back(number_option("max-model-len", 0, kMany, "longest sequence in tokens; 0: what model and pages take",
                            ONELANE_AT(engine.max_model_len)));
  t.push_back(bytes_option("kv-bytes", "memory for pages; 0: one longest sequence, at least 4096 tokens each",
                           ONELANE_AT(engine.kv_bytes)));
  t.push_back(bytes_option("host-kv-bytes", "host memory for pages that left the pool; 0: none",
                           ONELANE_AT(engine.host_kv_bytes)));
  t.push_back(text_option("disk-kv", "directory of the disk tier of the prefix cache; empty: none",
                          ONELANE_AT(engine.disk_kv)));
  t.push_back(bytes_option("disk-kv-bytes", "most bytes in it", ONELANE_AT(engine.disk_kv_bytes)));
  t.push_back(bytes_option("checkpoint-bytes", "memory for checkpoints of the prefix cache; 0: 64 of them",
                           ONELANE_AT(engine.checkpoint_bytes)));
  t.push_back(bool_option("prefix-cache", "reuse what earlier prompts computed", ONELANE_AT(engine.prefix_cache)));
  t.push_back(
      number_option("max-num-batched-tokens", 1, 1 << 20, "most rows of one step", ONELANE_AT(engine.step_rows)));
  t.push_back(number_option("max-gap-ms", 1.0, kDay * 1000, "running streams wait about this long for prompt rows",
                            ONELANE_AT(engine.max_gap_ms)));
  t.push_back({"draft-schedule", Kind::kText, "sequences:depth of speculation, for instance 4:5,8:3,64:1; 0: never",
               false,
               [](ServeOptions& o, const std::string& text) -> Result<void> {
                 ONELANE_ASSIGN(o.engine.draft_schedule, DraftSchedule::parse(text));
                 return {};
               },
               [](const ServeOptions& o) { return o.engine.draft_schedule.text(); }});
  t.push_back(number_option("draft-confidence", 0.0f, 1.0f, "drafts less likely to survive are not verified; 0: all",
                            ONELANE_AT(engine.draft_confidence)));

  t.push_back(number_option("default-max-tokens", 0, kMany, "of a chat answer without a limit; 0: rest of the context",
                            ONELANE_AT(api.default_max_tokens)));
  t.push_back(number_option("max-choices", 1, 1024, "largest n", ONELANE_AT(api.max_choices)));
  t.push_back(number_option("max-logprobs", 0, 1024, "largest top_logprobs", ONELANE_AT(api.max_logprobs)));
  t.push_back(number_option("max-stop-strings", 0, 1024, "most stop strings", ONELANE_AT(api.max_stop_strings)));
  t.push_back(number_option("request-seconds", 0.0, kDay * 30, "deadline of every request; 0: none",
                            ONELANE_AT(api.request_seconds)));
  t.push_back(number_option("keep-alive-seconds", 0.0, kDay, "between comments on a silent stream; 0: none",
                            ONELANE_AT(api.keep_alive_seconds)));
  t.push_back(number_option("health-seconds", 0.1, kDay, "/health fails after so long without a step",
                            ONELANE_AT(api.health_seconds)));
  t.push_back(bool_option("log-requests", "one line per request, without its text", ONELANE_AT(api.log_requests)));
  t.push_back(bool_option("log-text", "log the text of requests as well", ONELANE_AT(api.log_text)));

  t.push_back(bytes_option("max-body-bytes", "largest request body", ONELANE_AT(http.max_body_bytes)));
  t.push_back(bytes_option("max-header-bytes", "largest request head", ONELANE_AT(http.max_header_bytes)));
  t.push_back(bytes_option("max-queued-bytes", "of a stream, before its reader counts as too slow",
                           ONELANE_AT(http.max_queued_bytes)));
  t.push_back(number_option("max-connections", 1, 1 << 20, "open connections", ONELANE_AT(http.max_connections)));
  t.push_back(number_option("header-timeout-seconds", 0.1, kDay, "for a request to arrive",
                            ONELANE_AT(http.header_timeout_seconds)));
  t.push_back(number_option("idle-timeout-seconds", 0.1, kDay, "between two requests of a connection",
                            ONELANE_AT(http.idle_timeout_seconds)));
  t.push_back(number_option("write-timeout-seconds", 0.1, kDay, "a client that takes no byte for so long is dropped",
                            ONELANE_AT(http.write_timeout_seconds)));
  t.push_back(number_option("drain-seconds", 0.0, kDay, "after a signal, running answers get so long to end",
                            ONELANE_AT(drain_seconds)));
  return t;
}

#undef ONELANE_AT

const ServeOption* find_key(std::string_view key) {
  for (const ServeOption& option : serve_option_table()) {
    if (option.key() == key) return &option;
  }
  return nullptr;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

std::string nearest_key(std::string_view key) {
  std::string best;
  size_t least = std::max<size_t>(3, key.size() / 3 + 1);
  for (const ServeOption& option : serve_option_table()) {
    const size_t distance = edit_distance(key, option.key());
    if (distance < least) {
      least = distance;
      best = option.key();
    }
  }
  return best;
}

// `origin` is how errors and the settings call the source.
Result<void> apply(ServeSettings& settings, const ServeOption& option, const std::vector<std::string>& values,
                   const std::string& origin) {
  if (option.kind != Kind::kList && values.size() != 1) {
    return bad(format("{}: takes one value, not {}", origin, values.size()));
  }
  auto done = option.set(settings.options, format("{}", fmt::join(values, ",")));
  if (!done) return std::move(done).error().in(origin);
  settings.origins[option.name] = origin;
  return {};
}

}  // namespace

std::string ServeOption::key() const {
  std::string out = name;
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string ServeOption::environment() const {
  std::string out = "ONELANE_" + key();
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'a' && c <= 'z' ? char(c - 32) : c; });
  return out;
}

std::span<const ServeOption> serve_option_table() {
  static const std::vector<ServeOption> table = make_table();
  return table;
}

Result<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  std::string_view unit = text.substr(static_cast<size_t>(parsed.ptr - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double factor = 0;
  for (const auto& [name, value] : {std::pair<std::string_view, double>{"", 1},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40},
                                    {"K", 0x1p10},
                                    {"M", 0x1p20},
                                    {"G", 0x1p30},
                                    {"T", 0x1p40},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12}}) {
    if (unit == name) factor = value;
  }
  const double bytes = number * factor;
  if (parsed.ec != std::errc{} || factor == 0 || !(bytes >= 0 && bytes <= 0x1p60)) {
    return bad(format("must be bytes like 4GiB, 512MiB, 2GB or 4096, not '{}'", text));
  }
  return static_cast<int64_t>(std::llround(bytes));
}

Result<ServeSettings> read_serve_settings(const OptionTexts& flags, const std::string& config_file,
                                          const std::function<const char*(const std::string&)>& environment) {
  ServeSettings settings;
  for (const ServeOption& option : serve_option_table()) settings.origins[option.name] = "default";
  if (!config_file.empty()) {
    ONELANE_ASSIGN(const std::vector<FileOption> file, read_option_file(config_file));
    for (const FileOption& entry : file) {
      const std::string origin = format("{}:{}", config_file, entry.line);
      const ServeOption* option = find_key(entry.key);
      if (option == nullptr) {
        const std::string nearest = nearest_key(entry.key);
        return bad(format("{}: unknown key '{}'{}", origin, entry.key,
                          nearest.empty() ? "" : format("; did you mean '{}'?", nearest)));
      }
      auto done = apply(settings, *option, entry.values, format("{}: {}", origin, entry.key));
      if (!done) return done.error();
      settings.origins[option->name] = origin;
    }
  }
  for (const ServeOption& option : serve_option_table()) {
    if (const char* value = environment(option.environment())) {
      ONELANE_TRY(apply(settings, option, {value}, option.environment()));
    }
    if (const auto given = flags.find(option.name); given != flags.end() && !given->second.empty()) {
      // As everywhere on a command line, a later flag replaces an earlier one.
      const bool list = option.kind == Kind::kList;
      const std::vector<std::string> values = list ? given->second : std::vector{given->second.back()};
      ONELANE_TRY(apply(settings, option, values, "--" + option.name));
    }
  }
  if (settings.options.runtime.dir.empty()) {
    return bad("no model: give -m DIR, the key model in the file, or ONELANE_MODEL");
  }
  return settings;
}

std::string settings_text(const ServeSettings& settings) {
  std::string out;
  for (const ServeOption& option : serve_option_table()) {
    std::string value = option.get(settings.options);
    if (option.secret && !value.empty()) value = "***";
    if (value.empty()) value = "-";
    out += format("  {:<24} {:<24} {}\n", option.key(), value, settings.origins.at(option.name));
  }
  return out;
}

}  // namespace onelane
