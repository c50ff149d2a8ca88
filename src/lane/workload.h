// Workload classes: nine frozen sets of 24 chat prompts, sixteen to develop with and eight held out, each a kind of
// traffic whose speed, accept length and correctness differ from the others'.
//
// The texts are part of the program (src/lane/workloads, written by tools/workloads/build.py) and named by the SHA-256
// of their files in protocol.json: two receipts with the same protocol hash asked the same things. The weights are
// shares of the traffic that a coding assistant sees; they rank, they do not decide. A throughput figure without its
// class says nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded_file.h"
#include "base/result.h"
#include "lane/hay.h"
#include "lane/oracle.h"

namespace onelane {

struct WorkloadPrompt {
  std::string id;  // "code/07"
  bool held_out = false;
  std::string messages;        // JSON array as chat routes take it; {hay} in it stands for the hay
  std::string tools;           // JSON array; empty: none
  std::optional<HaySpec> hay;  // of the class long
  int turns = 1;               // user messages
  Oracle oracle;
  std::string reference;  // an answer that the oracle takes; empty where a call or any text is one

  // Messages up to and including the user's turn `turn` (1-based; 0: all), hay in its place: JSON array.
  std::string messages_json(int turn = 0) const;
};

struct WorkloadClass {
  std::string name, about;
  double share = 0;  // of the traffic; all classes make 1
  bool thinking = false;
  int max_tokens = 0;  // of an answer
  std::vector<WorkloadPrompt> prompts;
};

struct Workloads {
  std::string protocol;         // "onelane-workloads/1"
  std::string protocol_sha256;  // of protocol.json, and so of everything
  std::vector<WorkloadClass> classes;

  const WorkloadClass* find(std::string_view name) const;
  // "code/07" -> that prompt, or null.
  const WorkloadPrompt* find_prompt(std::string_view id) const;
};

// Reads the files of a set and holds them against their protocol. Errors name file, prompt and field, or the file whose
// hash is another.
Result<Workloads> read_workloads(std::span<const EmbeddedFile> files);

// The set in this program, read once.
const Workloads& builtin_workloads();

// The files behind it.
std::span<const EmbeddedFile> workload_files();

// Members of a chat request that make it this prompt: messages, tools, max_tokens and thinking. The caller adds model,
// sampling and streaming. A JSON object.
std::string workload_request(const WorkloadClass& of, const WorkloadPrompt& prompt, int turn = 0);

}  // namespace onelane
