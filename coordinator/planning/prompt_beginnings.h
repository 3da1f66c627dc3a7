#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/container/flat_hash_set.h"

namespace sluice {

// Tells of prompts, one after the other, with how many tokens of an earlier one
// each begins, for the planner: an estimate, by hashes of whole pages. Takes a
// bounded memory. Thread-compatible.
class PromptBeginnings {
 public:
  // Returns these tokens; at least one of the prompt is left.
  int32_t Add(std::span<const int32_t> prompt);

 private:
  // Of all tokens to the end of a page.
  absl::flat_hash_set<size_t> pages_;
};

}  // namespace sluice
