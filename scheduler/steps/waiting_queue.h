#pragma once

#include <compare>
#include <cstdint>
#include <iterator>
#include <list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/types.h"
#include "scheduler/steps/prefix_tree.h"

namespace sluice {

// The order in which waiting sequences are admitted.
enum class Order {
  kArrival,
  // Those expected to take most steps first: what is left at a job's end then
  // ends together, and no block runs for a few long ones alone.
  kLongest,
};

// What a sequence's place depends on with Order::kLongest: those of a higher
// rank go first, of one rank those with more tokens to be generated, of these
// those with more to be prefilled.
struct Turn {
  // The rank of those that had begun, who go before others in any order.
  static constexpr int64_t kBegun = INT64_MAX;

  int64_t rank = 0;
  int64_t expected = 0;
  int32_t prefill = 0;

  auto operator<=>(const Turn&) const = default;
};

// A sequence that is not admitted yet.
struct WaitingSequence {
  SequenceId id;
  int32_t known_tokens = 0;
  int32_t max_positions = 0;
  int64_t logit_biases = 0;
  Turn turn;
};

// The sequences that wait, next first. One that comes overtakes others only
//   * to stand beside the ones that begin most like it (as PrefixTree has it),
//     and never between two that are more alike;
//   * with Order::kLongest, or if it had begun, if its turn is before theirs.
//   Of those that begin
//     alike, whom others do not part, the first one's turn counts.
// Nobody overtakes a sequence of a higher rank with kLongest, or one that
// MaxOvertaken(order) have overtaken: so none waits without end. One overtakes
// as many at most, and is compared with these. Thread-compatible.
class WaitingQueue {
 public:
  struct Entry {
    WaitingSequence sequence;
    int32_t overtaken = 0;  // by those that came later
    int32_t common = 0;     // pages with the one before it
  };

  // `prefixes` is passed to each call: it has all sequences here that may share
  // pages.
  explicit WaitingQueue(Order order) : order_(order) {}

  static constexpr int32_t MaxOvertaken(Order order) {
    return order == Order::kLongest ? 1024 : 64;
  }

  using Iterator = std::list<Entry>::const_iterator;
  Iterator begin() const { return entries_.begin(); }
  Iterator end() const { return entries_.end(); }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  bool empty() const { return entries_.empty(); }
  bool contains(SequenceId id) const { return index_.contains(id); }
  // The ids of up to `max`, the last ones, in their order.
  std::vector<SequenceId> Last(int64_t max) const;

  // REQUIRES: it is not here.
  void Add(const WaitingSequence& sequence, const PrefixTree& prefixes);
  // Removes one; returns the next.
  Iterator Remove(Iterator it, const PrefixTree& prefixes);
  // Whether the last one may overtake all others, and has it do so and removes
  // it. Each takes as long as many wait.
  bool MayFill() const;
  void RemoveLast(const PrefixTree& prefixes);
  // Returns whether it was here.
  bool Remove(SequenceId id, const PrefixTree& prefixes);
  void Clear();

 private:
  // Returns where the sequence is to be put.
  std::list<Entry>::iterator PlaceFor(const WaitingSequence& sequence,
                                      const PrefixTree& prefixes);
  int32_t Common(SequenceId a, SequenceId b, const PrefixTree& prefixes) const {
    return prefixes.empty() ? 0 : prefixes.Common(a, b);
  }

  Order order_;
  std::list<Entry> entries_;
  absl::flat_hash_map<SequenceId, std::list<Entry>::iterator> index_;
  std::vector<int32_t> commons_;  // PlaceFor's, kept for its memory
};

}  // namespace sluice
