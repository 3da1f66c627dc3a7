#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Watches generated text for the first stop string, also across token borders:
// the one that is complete first, the longest of several that end at the same
// place. The result does not depend on how the text is cut. Text that might be
// the start of one is held back. Empty stop strings never match. O(1) per byte.
// Thread-compatible.
class StopStringMatcher {
 public:
  explicit StopStringMatcher(std::vector<std::string> stop_strings);

  // Returns text that is safe to give out, without the stop string. After
  // stopped() it returns "".
  std::string Append(absl::string_view text);
  // Returns held-back text, when generation ended otherwise.
  std::string Flush();
  bool stopped() const { return stopped_; }
  // The stop string that matched; "" if none did.
  const std::string& matched() const { return matched_; }

 private:
  // An Aho-Corasick automaton. Its state is the longest beginning of a stop
  // string that the text ends with.
  struct Node {
    uint32_t depth = 0;
    uint32_t suffix = 0;  // the node of the longest proper suffix that has one
    int32_t stop = -1;    // the longest stop string that ends here
  };

  void Insert(absl::string_view stop, int32_t index);
  void LinkSuffixes();
  uint32_t Next(uint32_t node, unsigned char byte) const;

  std::vector<std::string> stop_strings_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // node << 8 | byte
  uint32_t state_ = 0;
  std::string held_;  // nodes_[state_].depth bytes
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace sluice
