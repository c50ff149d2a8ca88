#include "lane/capture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "base/format.h"
#include "base/mapped_file.h"
#include "lane/sha256.h"

namespace onelane {
namespace {

static_assert(std::endian::native == std::endian::little, "captures are little endian");

constexpr std::string_view kMagic = "OLCAPT1\n";
constexpr size_t kDigestBytes = 64;
constexpr size_t kPositionBytes = 16, kTokenBytes = 8;  // without its tokens; one token
// Servers round what they write, and sums of float exponentials are off by this much.
constexpr double kMassError = 1e-3, kLogprobError = 1e-3;

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}
void put_tokens(std::string& out, const CaptureDocument& document) {
  put_text(out, document.id);
  put_text(out, document.workload);
  put(out, static_cast<uint32_t>(document.tokens.size()));
  put(out, document.prompt);
  for (const int32_t token : document.tokens) put(out, token);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size(); }
  // Zero once the bytes have run out, which ok() says.
  template <class T>
  T take() {
    T value{};
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string text() {
    const auto size = take<uint32_t>();
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    std::string out(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return out;
  }
  bool ok() const { return ok_; }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

// What is wrong with a position; empty: nothing.
std::string flaw(const CapturePosition& at, int32_t token) {
  const auto is_logprob = [](float value) { return std::isfinite(value) && value <= kLogprobError; };
  if (!is_logprob(at.logprob)) return format("logprob: {} is not the log of a probability", at.logprob);
  if (at.rank == 0) return "rank: must be at least 1";
  if (!(at.tail >= 0 && at.tail <= 1)) return format("tail: {} is not from 0 to 1", at.tail);
  if (at.top.empty() || at.top.size() > kCaptureTop) {
    return format("top: has {} tokens instead of 1 to {}", at.top.size(), kCaptureTop);
  }
  double mass = at.tail;
  std::set<int32_t> seen;
  for (size_t i = 0; i < at.top.size(); ++i) {
    const auto& [id, logprob] = at.top[i];
    if (id < 0 || !seen.insert(id).second) return format("top[{}]: token {} is negative, or there twice", i, id);
    if (!is_logprob(logprob)) return format("top[{}]: {} is not the log of a probability", i, logprob);
    if (i > 0 && logprob > at.top[i - 1].second) return format("top[{}]: is more likely than the token before", i);
    if (id == token && logprob != at.logprob) {
      return format("top[{}]: token {} has {} here and {} as the document's token", i, id, logprob, at.logprob);
    }
    mass += std::exp(static_cast<double>(logprob));
  }
  if (std::abs(mass - 1) > kMassError) return format("top: has, with the tail, a mass of {:.4f} instead of 1", mass);
  return {};
}

// What is wrong with a document; empty: nothing.
std::string flaw(const CaptureDocument& document) {
  if (document.id.empty()) return "id: must not be empty";
  if (document.workload.empty()) return "workload: must not be empty";
  if (document.prompt > document.tokens.size()) {
    return format("prompt: {} tokens are more than there are, {}", document.prompt, document.tokens.size());
  }
  if (document.first == 0 || document.first >= document.tokens.size()) {
    return format("first: {} is not a token behind the first of {}", document.first, document.tokens.size());
  }
  if (document.positions.size() != document.tokens.size() - document.first) {
    return format("positions: there are {} for {} tokens from {} on", document.positions.size(), document.tokens.size(),
                  document.first);
  }
  for (size_t i = 0; i < document.tokens.size(); ++i) {
    if (document.tokens[i] < 0) return format("tokens[{}]: {} is negative", i, document.tokens[i]);
  }
  for (size_t i = 0; i < document.positions.size(); ++i) {
    const size_t at = document.first + i;
    std::string problem = flaw(document.positions[i], document.tokens[at]);
    if (!problem.empty()) return format("position {}: {}", at, problem);
  }
  return {};
}

std::string flaw(const Capture& capture) {
  if (capture.documents.empty()) return "documents: there are none";
  std::set<std::string_view> ids;
  for (const CaptureDocument& document : capture.documents) {
    std::string problem = flaw(document);
    if (problem.empty() && !ids.insert(document.id).second) problem = "id: is there twice";
    if (!problem.empty()) return format("document \"{}\": {}", document.id, problem);
  }
  if (capture.corpus_sha256 != corpus_digest(capture.documents)) {
    return "corpus_sha256: is not that of the documents";
  }
  return {};
}

}  // namespace

std::string corpus_digest(const std::vector<CaptureDocument>& documents) {
  std::string bytes;
  for (const CaptureDocument& document : documents) put_tokens(bytes, document);
  return sha256(bytes);
}

float tail_mass(const std::vector<std::pair<int32_t, float>>& top) {
  double mass = 0;
  for (const auto& [id, logprob] : top) mass += std::exp(static_cast<double>(logprob));
  return static_cast<float>(std::clamp(1 - mass, 0.0, 1.0));
}

Result<std::string> capture_bytes(const Capture& capture) {
  if (std::string problem = flaw(capture); !problem.empty()) {
    return Error{ErrorCode::kInvalidArgument, std::move(problem)};
  }
  std::string out(kMagic);
  for (const std::string* text :
       {&capture.model, &capture.weights_sha256, &capture.corpus_sha256, &capture.build, &capture.path}) {
    put_text(out, *text);
  }
  put(out, static_cast<uint32_t>(capture.documents.size()));
  for (const CaptureDocument& document : capture.documents) {
    put_tokens(out, document);
    put(out, document.first);
    for (const CapturePosition& at : document.positions) {
      put(out, at.logprob);
      put(out, at.rank);
      put(out, at.tail);
      put(out, static_cast<uint32_t>(at.top.size()));
      for (const auto& [id, logprob] : at.top) {
        put(out, id);
        put(out, logprob);
      }
    }
  }
  return out + sha256(out);
}

Result<Capture> parse_capture(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return corrupt("is not a capture: it does not begin with OLCAPT1");
  if (bytes.size() < kMagic.size() + kDigestBytes) return corrupt("is cut off");
  const std::string_view body = bytes.substr(0, bytes.size() - kDigestBytes);
  if (bytes.substr(body.size()) != sha256(body)) return corrupt("is damaged: its SHA-256 does not fit");
  Reader in(body.substr(kMagic.size()));
  Capture out;
  for (std::string* text : {&out.model, &out.weights_sha256, &out.corpus_sha256, &out.build, &out.path}) {
    *text = in.text();
  }
  const auto documents = in.take<uint32_t>();
  for (uint32_t d = 0; d < documents && in.ok(); ++d) {
    CaptureDocument document{.id = in.text(), .workload = in.text(), .tokens = {}, .positions = {}};
    const auto tokens = in.take<uint32_t>();
    document.prompt = in.take<uint32_t>();
    const auto fits = [&](size_t count, size_t size) { return in.left() / size >= count; };
    // Before anything is allocated for them.
    if (!fits(tokens, sizeof(int32_t))) {
      return corrupt(format("document \"{}\": {} tokens do not fit into the file", document.id, tokens));
    }
    document.tokens.resize(tokens);
    for (int32_t& token : document.tokens) token = in.take<int32_t>();
    document.first = in.take<uint32_t>();
    if (document.first > tokens || !fits(tokens - document.first, kPositionBytes)) {
      return corrupt(format("document \"{}\": positions of {} tokens from {} on do not fit into the file", document.id,
                            tokens, document.first));
    }
    document.positions.resize(tokens - document.first);
    for (CapturePosition& at : document.positions) {
      at.logprob = in.take<float>();
      at.rank = in.take<uint32_t>();
      at.tail = in.take<float>();
      const auto count = in.take<uint32_t>();
      if (in.left() / kTokenBytes < count) {
        return corrupt(format("document \"{}\": a position has {} tokens, more than the file", document.id, count));
      }
      at.top.resize(count);
      for (auto& [id, logprob] : at.top) {
        id = in.take<int32_t>();
        logprob = in.take<float>();
      }
    }
    out.documents.push_back(std::move(document));
  }
  if (!in.ok()) return corrupt("ends within a document");
  if (in.left() != 0) return corrupt(format("has {} bytes behind the last document", in.left()));
  if (std::string problem = flaw(out); !problem.empty()) return corrupt(std::move(problem));
  return out;
}

Result<void> save_capture(const Capture& capture, const std::string& path) {
  auto bytes = capture_bytes(capture);
  if (!bytes) return std::move(bytes).error().in(path);
  return write_file(path, *bytes);
}

Result<Capture> load_capture(const std::string& path) {
  ONELANE_ASSIGN(const std::string bytes, read_file(path));
  auto capture = parse_capture(bytes);
  if (!capture) return std::move(capture).error().in(path);
  return capture;
}

}  // namespace onelane
