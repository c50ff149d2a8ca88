// Receipts as JSON: one walk over receipt_fields.h that writes, one that reads.
#include <array>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/strict_json.h"
#include "lane/receipt_fields.h"
#include "lane/scrub.h"
#include "lane/sha256.h"
#include "text/utf8.h"

namespace onelane {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostEntries = 4'000'000;  // of one array: a day of gaps at 40 a second

template <class E>
using Names = std::vector<std::pair<E, std::string_view>>;

const Names<Verdict>& names_of(Verdict) {
  static const Names<Verdict> names = {
      {Verdict::kPass, "PASS"}, {Verdict::kFail, "FAIL"}, {Verdict::kNotRun, "NOT_RUN"}, {Verdict::kVoid, "VOID"}};
  return names;
}
const Names<ReceiptKind>& names_of(ReceiptKind) {
  static const Names<ReceiptKind> names = {{ReceiptKind::kBench, "bench"}, {ReceiptKind::kGate, "gate"},
                                           {ReceiptKind::kSoak, "soak"},   {ReceiptKind::kAb, "ab"},
                                           {ReceiptKind::kDrill, "drill"}, {ReceiptKind::kPromotion, "promotion"}};
  return names;
}
const Names<ArmRole>& names_of(ArmRole) {
  static const Names<ArmRole> names = {
      {ArmRole::kNone, "NONE"}, {ArmRole::kControl, "CTL"}, {ArmRole::kCandidate, "CAND"}, {ArmRole::kNull, "NULL"}};
  return names;
}

template <class E>
std::string_view name_of(E value) {
  for (const auto& [known, name] : names_of(value)) {
    if (known == value) return name;
  }
  return "";
}

// The first problem is remembered; paths are dotted, with [i] for entries.
struct Problem {
  std::optional<Error> error;
  void note(const std::string& path, const std::string& why) {
    if (!error) error = Error{ErrorCode::kCorrupt, format("{}: {}", path.empty() ? "receipt" : path, why)};
  }
};

class Writer {
 public:
  Writer(Problem& problem, const std::string& host, std::string path) : problem_(problem), host_(host), path_(path) {}

  template <class T>
  void operator()(std::string_view key, const T& value) {
    out_[std::string(key)] = write(value, path_.empty() ? std::string(key) : format("{}.{}", path_, key));
  }
  ordered_json take() && { return std::move(out_); }

  ordered_json write(const std::string& text, const std::string&) const {
    Utf8Stream repaired;
    const std::string whole = repaired.push(text);
    return scrub(whole + repaired.flush(), host_);
  }
  ordered_json write(double number, const std::string& path) const {
    if (!std::isfinite(number)) problem_.note(path, "is not a finite number; leave unknown figures out");
    return number;
  }
  ordered_json write(int64_t number, const std::string&) const { return number; }
  ordered_json write(bool truth, const std::string&) const { return truth; }
  template <class E>
    requires std::is_enum_v<E>
  ordered_json write(E value, const std::string&) const {
    return name_of(value);
  }
  template <class T>
  ordered_json write(const std::optional<T>& value, const std::string& path) const {
    return value ? write(*value, path) : ordered_json();
  }
  template <class T>
  ordered_json write(const std::vector<T>& values, const std::string& path) const {
    ordered_json array = ordered_json::array();
    for (size_t i = 0; i < values.size(); ++i) array.push_back(write(values[i], format("{}[{}]", path, i)));
    return array;
  }
  template <class T>
  ordered_json write(const std::map<std::string, T>& values, const std::string& path) const {
    ordered_json object = ordered_json::object();
    for (const auto& [key, value] : values) {
      const bool secret = std::is_same_v<T, std::string> && is_secret_name(key);
      object[key] = secret ? ordered_json("[key]") : write(value, format("{}.{}", path, key));
    }
    return object;
  }
  template <class S>
    requires std::is_class_v<S>
  ordered_json write(const S& part, const std::string& path) const {
    Writer inner(problem_, host_, path);
    visit(inner, part);
    return std::move(inner).take();
  }

 private:
  Problem& problem_;
  const std::string& host_;
  std::string path_;
  ordered_json out_ = ordered_json::object();
};

std::string kind_of(const json& value) {
  if (value.is_null()) return "null";
  return format("{} {}", value.is_array() || value.is_object() ? "an" : "a", value.type_name());
}

class Reader {
 public:
  Reader(Problem& problem, const json& object, std::string path)
      : problem_(problem), object_(object), path_(std::move(path)) {}

  template <class T>
  void operator()(std::string_view key, T& value) {
    known_.insert(std::string(key));
    if (problem_.error) return;
    const auto found = object_.find(key);
    if (found == object_.end()) {
      if (!is_optional(value)) problem_.note(path_of(key), "is missing");
      return;
    }
    read(*found, path_of(key), value);
  }
  void also_known(std::string_view key) { known_.insert(std::string(key)); }
  void refuse_unknown() {
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key)) problem_.note(path_of(key), "is not a field of lane-receipt/1");
    }
  }

 private:
  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : format("{}.{}", path_, key);
  }
  template <class T>
  static bool is_optional(const std::optional<T>&) {
    return true;
  }
  template <class T>
  static bool is_optional(const T&) {
    return false;
  }
  bool expect(bool fits, std::string_view wanted, const json& value, const std::string& path) {
    if (!fits) problem_.note(path, format("must be {}, not {}", wanted, kind_of(value)));
    return fits;
  }

  void read(const json& value, const std::string& path, std::string& out) {
    if (expect(value.is_string(), "a string", value, path)) out = value.get<std::string>();
  }
  void read(const json& value, const std::string& path, bool& out) {
    if (expect(value.is_boolean(), "true or false", value, path)) out = value.get<bool>();
  }
  void read(const json& value, const std::string& path, double& out) {
    if (!expect(value.is_number(), "a number", value, path)) return;
    out = value.get<double>();
    if (!std::isfinite(out)) problem_.note(path, "must be a finite number");
  }
  void read(const json& value, const std::string& path, int64_t& out) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
    if (expect(fits, "a whole number of 64 bits", value, path)) out = value.get<int64_t>();
  }
  template <class E>
    requires std::is_enum_v<E>
  void read(const json& value, const std::string& path, E& out) {
    if (!expect(value.is_string(), "a string", value, path)) return;
    std::vector<std::string_view> choices;
    for (const auto& [known, name] : names_of(out)) {
      choices.push_back(name);
      if (value.get_ref<const std::string&>() == name) {
        out = known;
        return;
      }
    }
    problem_.note(path, format("must be one of {}", fmt::join(choices, ", ")));
  }
  template <class T>
  void read(const json& value, const std::string& path, std::optional<T>& out) {
    if (value.is_null()) return;
    T inner{};
    read(value, path, inner);
    out = std::move(inner);
  }
  template <class T>
  void read(const json& value, const std::string& path, std::vector<T>& out) {
    if (!expect(value.is_array(), "an array", value, path)) return;
    if (value.size() > kMostEntries) return problem_.note(path, format("has more than {} entries", kMostEntries));
    out.resize(value.size());
    for (size_t i = 0; i < value.size() && !problem_.error; ++i) read(value[i], format("{}[{}]", path, i), out[i]);
  }
  template <class T>
  void read(const json& value, const std::string& path, std::map<std::string, T>& out) {
    if (!expect(value.is_object(), "an object", value, path)) return;
    for (const auto& [key, entry] : value.items()) read(entry, format("{}.{}", path, key), out[key]);
  }
  template <class S>
    requires std::is_class_v<S>
  void read(const json& value, const std::string& path, S& out) {
    if (!expect(value.is_object(), "an object", value, path)) return;
    Reader inner(problem_, value, path);
    visit(inner, out);
    inner.refuse_unknown();
  }

  Problem& problem_;
  const json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// nlohmann's objects are sorted, so this is one text for one value however the file was laid out.
std::string digest_of(json document) {
  document.erase("digest");
  return sha256(document.dump());
}

Result<json> parse_document(std::string_view text) {
  ONELANE_ASSIGN(json document, parse_strict_json(text));
  if (!document.is_object()) return Error{ErrorCode::kCorrupt, "receipt: must be a JSON object"};
  const auto schema = document.find("schema");
  if (schema == document.end() || *schema != kReceiptSchema) {
    return Error{ErrorCode::kUnsupported, format("schema: must be \"{}\"", kReceiptSchema)};
  }
  return document;
}

// The one layout of receipts: arrays of numbers stay on a line.
void lay_out(const ordered_json& value, size_t indent, std::string& out) {
  const bool list = value.is_array() && !value.empty() && value[0].is_structured();
  if (!list && !(value.is_object() && !value.empty())) {
    out += value.dump();
    return;
  }
  const std::string pad(indent + 1, ' ');
  out += value.is_object() ? "{\n" : "[\n";
  size_t left = value.size();
  for (const auto& [key, entry] : value.items()) {
    out += pad;
    if (value.is_object()) out += ordered_json(key).dump() + ": ";
    lay_out(entry, indent + 1, out);
    out += --left > 0 ? ",\n" : "\n";
  }
  out += std::string(indent, ' ') + (value.is_object() ? "}" : "]");
}

std::string sealed_text(ordered_json document) {
  document.erase("digest");
  document["digest"] = digest_of(json::parse(document.dump()));
  std::string text;
  lay_out(document, 0, text);
  return text + "\n";
}

}  // namespace

Result<std::string> receipt_json(Receipt receipt) {
  for (ReceiptCell& cell : receipt.cells) summarise(cell);
  if (receipt.run_id.empty()) receipt.run_id = new_run_id();
  if (const auto problems = verdict_problems(receipt); !problems.empty()) {
    return Error{ErrorCode::kInvalidArgument, problems.front()};
  }
  Problem problem;
  const std::string host = host_name();
  Writer writer(problem, host, "");
  ordered_json document = {{"schema", kReceiptSchema}};
  visit(writer, std::as_const(receipt));
  document.update(std::move(writer).take());
  if (problem.error) return *std::move(problem.error);
  return sealed_text(std::move(document));
}

Result<Receipt> parse_receipt(std::string_view text) {
  ONELANE_ASSIGN(const json document, parse_document(text));
  Problem problem;
  Receipt receipt;
  Reader reader(problem, document, "");
  reader.also_known("schema");
  reader.also_known("digest");
  visit(reader, receipt);
  reader.refuse_unknown();
  if (problem.error) return *std::move(problem.error);
  const auto digest = document.find("digest");
  if (digest == document.end() || !digest->is_string()) {
    return Error{ErrorCode::kCorrupt, "digest: is missing: this receipt was never sealed"};
  }
  if (*digest != digest_of(document)) {
    return Error{ErrorCode::kCorrupt, "digest: does not fit the rest: the receipt was changed after it was written"};
  }
  return receipt;
}

std::string receipt_digest(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  return document.is_object() ? document.value("digest", "") : "";
}

Result<std::string> seal_receipt(std::string_view text) {
  ONELANE_TRY(parse_document(text));
  std::string sealed = sealed_text(ordered_json::parse(text));
  ONELANE_TRY(parse_receipt(sealed));
  return sealed;
}

Result<void> save_receipt(const Receipt& receipt, const std::string& path) {
  ONELANE_ASSIGN(const std::string text, receipt_json(receipt));
  return write_file(path, text);
}

Result<Receipt> load_receipt(const std::string& path) {
  ONELANE_ASSIGN(const std::string text, read_file(path));
  auto receipt = parse_receipt(text);
  if (!receipt) return std::move(receipt).error().in(path);
  return receipt;
}

}  // namespace onelane
