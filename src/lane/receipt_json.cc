// Receipts as JSON: one walk over receipt_fields.h that writes, one that reads.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/mapped_file.h"
#include "checkpoint/strict_json.h"
#include "lane/receipt_fields.h"
#include "lane/scrub.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

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
  FieldProblem problem;
  const std::string host = host_name();
  StructWriter writer(problem, &host);
  ordered_json document = {{"schema", kReceiptSchema}};
  visit(writer, std::as_const(receipt));
  document.update(std::move(writer).take());
  if (problem.error) return *std::move(problem.error);
  return sealed_text(std::move(document));
}

Result<Receipt> parse_receipt(std::string_view text) {
  ONELANE_ASSIGN(const json document, parse_document(text));
  ONELANE_ASSIGN(Receipt receipt, read_struct<Receipt>(document, kReceiptSchema, {"schema", "digest"}));
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
