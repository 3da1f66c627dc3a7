#include "runtime/text/tokenizer/word_cache.h"

#include "absl/hash/hash.h"

namespace sluice {

WordCache::WordCache() : slots_(kSlots) {}

uint64_t WordCache::Hash(absl::string_view word) { return absl::HashOf(word); }

bool WordCache::Find(absl::string_view word, uint64_t hash,
                     std::vector<int32_t>* ids) const {
  const size_t index = hash % kSlots;
  MutexLock lock(&stripes_[index % kStripes].mu);
  const Slot& slot = slots_[index];
  if (slot.word != word) return false;
  ids->insert(ids->end(), slot.ids.data(), slot.ids.data() + slot.count);
  return true;
}

void WordCache::Put(absl::string_view word, uint64_t hash, const int32_t* ids,
                    size_t count) {
  if (word.size() > kMaxWordBytes || count > kMaxTokens) return;
  const size_t index = hash % kSlots;
  MutexLock lock(&stripes_[index % kStripes].mu);
  Slot& slot = slots_[index];
  slot.word.assign(word.data(), word.size());
  slot.count = static_cast<uint8_t>(count);
  for (size_t i = 0; i < count; ++i) slot.ids[i] = ids[i];
}

}  // namespace sluice
