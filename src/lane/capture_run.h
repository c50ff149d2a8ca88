// Making captures of a running server: its documents, and the paths through it on which they are computed.
//
// A document is a prompt of a workload class and what the reference goes on with, greedily. So every path can force it:
// as a prompt, and token by token behind the prompt, where the greedy choice is the document's token but for ties.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lane/capture.h"
#include "lane/gate.h"

namespace onelane {

enum class CapturePath {
  kPrefill,  // the whole document as a prompt, one at a time: without any cache
  kMixed,    // the same, several at a time
  kDecode,   // behind the prompt, one token a step
  kVerify,   // the same with drafts, many tokens a step
  kCache,    // behind a prompt that the prefix cache has
};
inline constexpr CapturePath kCapturePaths[] = {CapturePath::kPrefill, CapturePath::kMixed, CapturePath::kDecode,
                                                CapturePath::kVerify, CapturePath::kCache};
std::string_view capture_path_name(CapturePath path);  // "prefill"
const CapturePath* find_capture_path(std::string_view name);

struct CaptureCorpus {
  int documents = 16;          // of each class, at most
  int64_t most_tokens = 4096;  // of a document; longer prompts are cut off
  int continuation = 64;       // tokens of it that the server writes
  bool held_out = false;
};

// What a gate's arm takes of them, as its plan says.
CaptureCorpus corpus_of(const GatePlan& plan, ArmKind kind);

// Asks for `tokens` greedy tokens behind `prompt`, come what may, with logprobs by token id. `role` stands as the user.
GateJson forced_request(std::span<const int32_t> prompt, int64_t tokens, std::string_view role);

// The documents, without positions. Errors: the server cannot tokenise a chat, or does not answer.
Result<std::vector<CaptureDocument>> capture_documents(GateServer& server, const CaptureCorpus& corpus);

// What the server thinks of `documents` (whose positions are not looked at) on this path. An Error of kUnsupported: the
// path cannot be walked over HTTP, or the server's own counts do not show that it was. `role` stands in the requests as
// their user, so that a fault can be planted into one side alone.
Result<Capture> run_capture(GateServer& server, CapturePath path, std::span<const CaptureDocument> documents,
                            std::string_view role);

}  // namespace onelane
