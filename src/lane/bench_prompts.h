// What the bench asks.
//
// lib: the shape of llm-inference-bench's prompts (spec/operations.md 1.4): one fixed request for a long article,
// behind a document of twenty sentences, cycled, for contexts above 0. Its own texts are not ours to ship: without a
// file of them our own sentences stand in, and the report says so. strict: the frozen prompts of a workload class, one
// after another, behind a document of seeded hay that all streams of a cell share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "lane/chat_stream.h"
#include "lane/workload.h"

namespace onelane {

struct LibTexts {
  std::string question;
  std::vector<std::string> sentences;
  bool original = false;  // the texts of llm-inference-bench 0.4.18, by their hashes

  std::string sha256() const;  // of question and sentences
};

LibTexts builtin_lib_texts();

// {"question": "...", "sentences": ["...", ...]} from a file. Errors name path and field.
Result<LibTexts> read_lib_texts(const std::string& path);

// The hidden mark at the beginning of a document, so that no earlier run's cache knows it:
// "[BENCH_qwertyuiopas_CTX_8192] ". `kind`: BENCH, WARMUP, MIXED; `sample` 0 or more adds "_R<sample>".
std::string document_mark(const std::string& kind, int64_t context_tokens, int sample = -1);

// Twelve random lower-case letters.
std::string random_tag();

// A document of about `context_tokens` tokens: `mark`, then sentences until their characters are at least tokens x
// characters per token.
std::string lib_document(const LibTexts& texts, const std::string& mark, int64_t context_tokens,
                         double characters_per_token);

// The fixed request, behind a document unless that is empty.
std::vector<ChatMessage> lib_messages(const LibTexts& texts, const std::string& document);

// The members of a chat request for a prompt of a class, behind a document (empty: none) that comes after the system
// message, if there is one, and with another limit of tokens (0: the class's own). A JSON object for ChatRequest::more.
std::string class_request(const WorkloadClass& of, const WorkloadPrompt& prompt, const std::string& document,
                          int64_t max_tokens = 0);

// A document of hay of about so many tokens behind `mark`; the seed is in the mark.
std::string hay_document(const std::string& mark, int64_t context_tokens, double characters_per_token);

}  // namespace onelane
