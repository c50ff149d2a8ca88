// Capture: what a model thought of every next token of fixed documents, in a file that another build can be held
// against. Format `lane-capture/1`.
//
// The documents are forced, so two captures of one corpus differ only by what computed them. Each position keeps the
// most likely tokens and the mass of all others; that gives a lower bound of the divergence and every change of the
// best token. Little endian throughout; strings are a u32 of bytes and the bytes:
//
//   magic "OLCAPT1\n"; strings model, weights_sha256, corpus_sha256, build, path; u32 documents
//   document: strings id, workload; u32 tokens, u32 prompt; i32 token ids; u32 first
//   position, one for each of tokens[first..]: f32 logprob, u32 rank, f32 tail, u32 n, n x (i32 id, f32 logprob)
//   SHA-256 of all that, in hexadecimal
//
// The reader takes nothing that the writer would not write: one changed byte anywhere is an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace onelane {

inline constexpr int kCaptureTop = 64;  // tokens kept at a position

// The distribution from which a document's token came. Natural logs.
struct CapturePosition {
  float logprob = 0;                           // of the token that stands there
  uint32_t rank = 1;                           // its rank; 1: the most likely
  float tail = 0;                              // the probability of all tokens that are not in `top`
  std::vector<std::pair<int32_t, float>> top;  // at most kCaptureTop, best first, at least one
};

struct CaptureDocument {
  std::string id, workload;  // "code/07", "code"
  std::vector<int32_t> tokens;
  uint32_t prompt = 0;                     // so many tokens were given, the others are what the reference went on with
  uint32_t first = 1;                      // the first token that has a position
  std::vector<CapturePosition> positions;  // of tokens[first], tokens[first + 1], ... to the end
};

struct Capture {
  std::string model, weights_sha256;  // the latter empty: the server does not say
  std::string corpus_sha256;          // of the ids, classes and tokens: corpus_digest()
  std::string build, path;            // "onelane 0.1.0", "prefill"
  std::vector<CaptureDocument> documents;
};

// SHA-256 of what was forced: ids, classes and tokens of all documents.
std::string corpus_digest(const std::vector<CaptureDocument>& documents);

// The mass that is left beside `top`, from 0 to 1.
float tail_mass(const std::vector<std::pair<int32_t, float>>& top);

// The bytes of a file. Errors name document, position and field that could not be read back.
Result<std::string> capture_bytes(const Capture& capture);
Result<Capture> parse_capture(std::string_view bytes);

// The same to a file and back. Errors name the path.
Result<void> save_capture(const Capture& capture, const std::string& path);
Result<Capture> load_capture(const std::string& path);

}  // namespace onelane
