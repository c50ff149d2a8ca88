#include "text/python_json.h"

#include <array>
#include <charconv>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "base/format.h"

namespace onelane {
namespace {

constexpr size_t kDeepest = 256;

// repr(float): the shortest digits that read back as the same value, in positional notation for exponents -4 to 15.
std::string python_float(double value) {
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const bool negative = text[e + 1] == '-';
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (negative) exponent = -exponent;

  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    out += format("e{}{:02}", negative ? '-' : '+', negative ? -exponent : exponent);
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent + 1 >= count) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    out += digits.substr(0, static_cast<size_t>(exponent + 1)) + "." + digits.substr(static_cast<size_t>(exponent + 1));
  }
  return out;
}

// Builds a JsonValue from nlohmann's parse events: its own value type would lose big integers.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonValue root;
  std::string error;

  bool null() override { return put({}); }
  bool boolean(bool value) override { return scalar(JsonValue::Kind::kBool, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return scalar(JsonValue::Kind::kNumber, format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(JsonValue::Kind::kNumber, format("{}", value));
  }
  bool number_float(number_float_t value, const string_t& source) override {
    // An integer beyond 64 bits arrives here too; its own digits are what Python prints.
    const bool integer = source.find_first_of(".eE") == std::string::npos;
    return scalar(JsonValue::Kind::kNumber, integer ? source : python_float(value));
  }
  bool string(string_t& value) override { return scalar(JsonValue::Kind::kString, std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(JsonValue::Kind::kObject); }
  bool start_array(size_t) override { return open(JsonValue::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& what) override {
    error = what.what();
    const size_t prefix = error.find("] ");
    if (prefix != std::string::npos) error.erase(0, prefix + 2);
    return false;
  }

 private:
  struct Open {
    JsonValue* value;
    std::string key;                                 // of the member that comes next
    std::unordered_map<std::string, size_t> places;  // of the members so far
  };

  bool scalar(JsonValue::Kind kind, std::string text) {
    JsonValue value;
    value.kind = kind;
    value.text = std::move(text);
    return put(std::move(value));
  }
  bool put(JsonValue value) { return place(std::move(value)) != nullptr; }
  JsonValue* place(JsonValue value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Open& parent = open_.back();
    if (parent.value->kind == JsonValue::Kind::kArray) return &parent.value->items.emplace_back(std::move(value));
    auto& members = parent.value->members;
    const auto [found, fresh] = parent.places.try_emplace(parent.key, members.size());
    if (!fresh) return &(members[found->second].value = std::move(value));
    members.push_back({std::move(parent.key), std::move(value)});
    return &members.back().value;
  }
  bool open(JsonValue::Kind kind) {
    if (open_.size() == kDeepest) {
      error = format("nested deeper than {} levels", kDeepest);
      return false;
    }
    JsonValue value;
    value.kind = kind;
    // The new container is the last thing in its parent until it closes, so the pointer stays good.
    open_.push_back({place(std::move(value)), {}, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Open> open_;
};

void dump(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out += "null";
      break;
    case JsonValue::Kind::kBool:
    case JsonValue::Kind::kNumber:
      out += value.text;
      break;
    case JsonValue::Kind::kString:
      out += dump_json_string(value.text);
      break;
    case JsonValue::Kind::kArray:
      out += '[';
      for (const JsonValue& item : value.items) {
        if (&item != &value.items.front()) out += ", ";
        dump(item, out);
      }
      out += ']';
      break;
    case JsonValue::Kind::kObject:
      out += '{';
      for (const JsonMember& member : value.members) {
        if (&member != &value.members.front()) out += ", ";
        out += dump_json_string(member.name) + ": ";
        dump(member.value, out);
      }
      out += '}';
      break;
  }
}

}  // namespace

const JsonValue& JsonValue::operator[](std::string_view key) const {
  static const JsonValue null;
  for (const auto& [name, value] : members) {
    if (name == key) return value;
  }
  return null;
}

bool JsonValue::truthy() const {
  switch (kind) {
    case Kind::kNull:
      return false;
    case Kind::kBool:
      return is_true();
    case Kind::kNumber:
      return text.find_first_of("123456789") < text.find_first_of("eE");
    case Kind::kString:
      return !text.empty();
    case Kind::kArray:
      return !items.empty();
    case Kind::kObject:
      return !members.empty();
  }
  return false;
}

Result<JsonValue> parse_json(std::string_view json) {
  // nlohmann takes a NUL for the end of its input and would ignore what follows.
  if (const size_t nul = json.find('\0'); nul != std::string_view::npos) {
    return Error{ErrorCode::kInvalidArgument, format("a NUL byte at offset {}", nul)};
  }
  Builder builder;
  if (!nlohmann::json::sax_parse(json, &builder)) return Error{ErrorCode::kInvalidArgument, builder.error};
  return std::move(builder.root);
}

std::string dump_json(const JsonValue& value) {
  std::string out;
  dump(value, out);
  return out;
}

std::string dump_json_string(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  return out += '"';
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

bool is_json(std::string_view text) {
  return text.find('\0') == std::string_view::npos && nlohmann::json::accept(text);  // see parse_json
}

Error field_error(const std::string& path, std::string_view why) {
  return {ErrorCode::kInvalidArgument, format("{}: {}", path, why)};
}

}  // namespace onelane
