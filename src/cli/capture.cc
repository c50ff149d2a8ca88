#include "cli/capture.h"

#include <iostream>
#include <utility>

#include "base/format.h"
#include "cli/runtime.h"
#include "lane/capture_run.h"

namespace onelane {

std::vector<std::string> capture_path_names() {
  std::vector<std::string> names;
  for (const CapturePath path : kCapturePaths) names.emplace_back(capture_path_name(path));
  return names;
}

int run_capture_command(const CaptureCommand& command) {
  auto server = GateServer::connect({.url = command.url, .api_key = command.api_key}, command.model);
  if (!server) return fail(server.error());
  if (std::string problem = (*server)->forced_problem(); !problem.empty()) {
    return fail({ErrorCode::kUnsupported, std::move(problem)});
  }
  std::vector<CaptureDocument> documents;
  if (command.from.empty()) {
    auto own = capture_documents(**server, {.documents = command.documents,
                                            .most_tokens = command.tokens,
                                            .continuation = command.continuation,
                                            .held_out = command.held_out});
    if (!own) return fail(own.error());
    documents = *std::move(own);
  } else {
    auto other = load_capture(command.from);
    if (!other) return fail(other.error());
    documents = std::move(other->documents);
  }
  std::cerr << format("{} documents by the path {}\n", documents.size(), command.path);
  const auto capture = run_capture(**server, *find_capture_path(command.path), documents, "reference");
  if (!capture) return fail(capture.error());
  if (const auto saved = save_capture(*capture, command.file); !saved) return fail(saved.error());
  size_t positions = 0;
  for (const CaptureDocument& document : capture->documents) positions += document.positions.size();
  std::cerr << format("{}: {} positions, corpus {}\n", command.file, positions, capture->corpus_sha256.substr(0, 12));
  return 0;
}

}  // namespace onelane
