#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
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

  // Appends the tokens of `word` and returns true, or returns false.
  bool Find(absl::string_view word, uint64_t hash,
            std::vector<int32_t>* ids) const {
    const size_t index = hash % kSlots;
    MutexLock lock(&stripes_[index % kStripes].mu);
    const Slot& slot = slots_[index];
    if (slot.word != word) return false;
    ids->insert(ids->end(), slot.ids.data(), slot.ids.data() + slot.count);
    return true;
  }
  void Put(absl::string_view word, uint64_t hash, const int32_t* ids,
           size_t count) {
    if (word.size() > kMaxWordBytes || count > kMaxTokens) return;
    const size_t index = hash % kSlots;
    MutexLock lock(&stripes_[index % kStripes].mu);
    Slot& slot = slots_[index];
    slot.word.assign(word.data(), word.size());
    slot.count = static_cast<uint8_t>(count);
    for (size_t i = 0; i < count; ++i) slot.ids[i] = ids[i];
  }

  static uint64_t Hash(absl::string_view word) { return absl::HashOf(word); }

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
  // Slot i belongs to stripe i % kStripes.
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

}  // namespace sluice
