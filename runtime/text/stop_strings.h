#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Watches generated text for the first stop string, also across token borders.
// Text that might be the start of one is held back. Thread-compatible.
class StopStringMatcher {
 public:
  explicit StopStringMatcher(std::vector<std::string> stop_strings);

  // Returns text that is safe to give out. After stopped() nothing more comes;
  // the stop string is not part of the text.
  std::string Append(absl::string_view text);
  // What was held back, when generation ended otherwise.
  std::string Flush();
  bool stopped() const { return stopped_; }
  // The one that matched; "" if none did.
  const std::string& matched() const { return matched_; }

 private:
  std::vector<std::string> stop_strings_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace sluice
