#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

// Finds all of many strings that a text begins with, in a step per byte. A
// double array: the child of node n by byte b is node base[n] + b, if that
// node's parent is n. Immutable, thread-safe.
class PrefixTrie {
 public:
  using Key = std::pair<absl::string_view, int32_t>;  // and its value, >= 0

  // Makes a trie without keys.
  PrefixTrie() : PrefixTrie(std::vector<Key>()) {}
  // Empty keys are left out; the last of equal keys keeps its value.
  explicit PrefixTrie(std::vector<Key> keys);

  // Calls found(length, value) for each key that `text` begins with, the
  // shortest first.
  template <typename Found>
  void ForEachPrefix(absl::string_view text, Found found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t child =
          nodes_[node].base + static_cast<unsigned char>(text[i]);
      if (nodes_[child].parent != node) return;
      node = child;
      if (nodes_[node].value >= 0) found(i + 1, nodes_[node].value);
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Node {
    uint32_t base = 0;  // all nodes from here to here + 255 exist
    uint32_t parent = kFree;
    int32_t value = -1;
  };

  // Finds a base at which all of `bytes`, in order, have a free node.
  uint32_t FindBase(const std::vector<uint8_t>& bytes);

  std::vector<Node> nodes_;
  // No node before it is free, but for the root's neighbours: a base is never
  // below 1.
  uint32_t first_free_ = 257;
  uint32_t end_ = 257;  // all nodes from here on are free
};

}  // namespace sluice
