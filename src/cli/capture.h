// `onelane capture`: a server's logprobs of forced documents, into a file (lane/capture.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onelane {

struct CaptureCommand {
  std::string url, api_key, model, file;
  std::string path = "prefill";
  std::string from;  // a capture whose documents are taken; empty: the server writes its own
  int documents = 16;
  int64_t tokens = 4096;
  int continuation = 64;
  bool held_out = false;
};

// What `path` may be.
std::vector<std::string> capture_path_names();

// Progress to stderr. Returns 0 when the file is written.
int run_capture_command(const CaptureCommand& command);

}  // namespace onelane
