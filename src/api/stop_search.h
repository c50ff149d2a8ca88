// StopSearch: finds stop strings in a text that arrives in pieces.
//
// The string that is complete first ends the text; of several that are complete at the same character, the longest. So
// what comes out does not depend on how the text was cut.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onelane {

class StopSearch {
 public:
  // Empty strings are ignored.
  explicit StopSearch(std::vector<std::string> stops);

  // Takes a piece and returns the text that is certain to stand in front of any stop string. After found(): nothing.
  std::string push(std::string_view piece);
  // The text ends here: what was held back.
  std::string flush();

  bool found() const { return found_; }
  const std::string& stop() const { return stop_; }  // which one

 private:
  size_t held_length() const;

  std::vector<std::string> stops_;
  std::string pending_;
  bool found_ = false;
  std::string stop_;
};

}  // namespace onelane
