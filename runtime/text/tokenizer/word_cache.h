#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/threads/mutex.h"

namespace sluice {

// Remembers the tokens of words. Bounded: a word has one slot, which keeps the
// latest of the words that share it. Thread-safe; only threads that meet on the
// same stripe wait for each other.
class WordCache {
 public:
  // Longer words are not kept.
  static constexpr size_t kMaxWordBytes = 64;
  static constexpr size_t kMaxTokens = 16;

  WordCache();

  // Appends the tokens of `word` and returns true, or returns false.
  bool Find(absl::string_view word, uint64_t hash,
            std::vector<int32_t>* ids) const;
  void Put(absl::string_view word, uint64_t hash, const int32_t* ids,
           size_t count);

  static uint64_t Hash(absl::string_view word);

 private:
  static constexpr size_t kStripes = 64;
  static constexpr size_t kSlots = 1 << 15;

  struct Slot {
    std::string word;
    uint8_t count = 0;
    std::array<int32_t, kMaxTokens> ids;
  };
  struct alignas(64) Stripe {
    mutable Mutex mu;
  };

  std::array<Stripe, kStripes> stripes_;
  std::vector<Slot> slots_;  // slot i belongs to stripe i % kStripes
};

}  // namespace sluice
