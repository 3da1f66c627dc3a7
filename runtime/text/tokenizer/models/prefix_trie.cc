#include "runtime/text/tokenizer/models/prefix_trie.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr int kMostTries = 64;

}  // namespace

PrefixTrie::PrefixTrie(std::vector<Key> keys) : nodes_(512) {
  std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return a.first < b.first;
  });
  struct Work {
    uint32_t node;
    size_t begin, end;  // keys that share the node's path
    size_t depth;
  };
  // The root has itself as its parent, and no child has index 0.
  nodes_[0].parent = 0;
  nodes_[0].base = 1;
  std::vector<Work> stack = {{0, 0, keys.size(), 0}};
  std::vector<uint8_t> bytes;
  while (!stack.empty()) {
    Work work = stack.back();
    stack.pop_back();
    while (work.begin < work.end &&
           keys[work.begin].first.size() == work.depth) {
      if (work.depth > 0) nodes_[work.node].value = keys[work.begin].second;
      ++work.begin;
    }
    if (work.begin == work.end) {
      nodes_[work.node].base = 1;
      continue;
    }
    const auto byte_of = [&](size_t key) {
      return static_cast<uint8_t>(keys[key].first[work.depth]);
    };
    bytes.clear();
    for (size_t key = work.begin; key < work.end; ++key) {
      if (bytes.empty() || bytes.back() != byte_of(key)) {
        bytes.push_back(byte_of(key));
      }
    }
    const uint32_t base = FindBase(bytes);
    nodes_[work.node].base = base;
    size_t begin = work.begin;
    for (const uint8_t byte : bytes) {
      size_t end = begin;
      while (end < work.end && byte_of(end) == byte) ++end;
      nodes_[base + byte].parent = work.node;
      stack.push_back({base + byte, begin, end, work.depth + 1});
      begin = end;
    }
  }
  nodes_.shrink_to_fit();
}

uint32_t PrefixTrie::FindBase(const std::vector<uint8_t>& bytes) {
  const auto is_free = [&](size_t node) {
    return node >= nodes_.size() || nodes_[node].parent == kFree;
  };
  while (!is_free(first_free_)) ++first_free_;
  // A single child fits into the first free node. For more of them, a few
  // places are tried, and then the end: a search of all would make the time
  // quadratic. Single children fill what stays free.
  size_t base = first_free_ - bytes[0];
  const auto fits = [&] {
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](uint8_t byte) { return is_free(base + byte); });
  };
  for (int tries = 0; !fits(); ++tries, ++base) {
    if (tries == kMostTries) {
      base = end_ - bytes[0];
      break;
    }
  }
  end_ = std::max(end_, static_cast<uint32_t>(base + bytes.back() + 1));
  if (base + 256 > nodes_.size()) {
    nodes_.resize(std::max(base + 256, nodes_.size() * 3 / 2));
  }
  return static_cast<uint32_t>(base);
}

}  // namespace sluice
