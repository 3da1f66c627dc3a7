#include "scheduler/steps/waiting_queue.h"

#include <algorithm>
#include <cassert>

namespace sluice {

std::vector<SequenceId> WaitingQueue::Last(int64_t max) const {
  std::vector<SequenceId> last;
  const int64_t count = std::clamp<int64_t>(max, 0, size());
  for (auto it = std::prev(end(), count); it != end(); ++it) {
    last.push_back(it->sequence.id);
  }
  return last;
}

void WaitingQueue::Add(const WaitingSequence& sequence,
                       const PrefixTree& prefixes) {
  assert(!contains(sequence.id));
  const auto next = PlaceFor(sequence, prefixes);
  for (auto it = next; it != entries_.end(); ++it) ++it->overtaken;
  const auto own = entries_.insert(next, {.sequence = sequence});
  index_[sequence.id] = own;
  if (own != entries_.begin()) {
    own->common = Common(sequence.id, std::prev(own)->sequence.id, prefixes);
  }
  if (next != entries_.end()) {
    next->common = Common(sequence.id, next->sequence.id, prefixes);
  }
}

std::list<WaitingQueue::Entry>::iterator WaitingQueue::PlaceFor(
    const WaitingSequence& sequence, const PrefixTree& prefixes) {
  const int32_t limit = MaxOvertaken(order_);
  const bool by_turn =
      order_ == Order::kLongest || sequence.turn.rank == Turn::kBegun;
  // What it has in common with the last ones, from the end: those that it could
  // overtake, and the one before these.
  commons_.clear();
  int32_t most = 0;
  bool barred = false;
  for (auto it = entries_.rbegin(); it != entries_.rend() && !barred; ++it) {
    commons_.push_back(Common(sequence.id, it->sequence.id, prefixes));
    most = std::max(most, commons_.back());
    barred = std::ssize(commons_) > limit || it->overtaken >= limit ||
             (by_turn && it->sequence.turn.rank > sequence.turn.rank);
  }
  const size_t passable = commons_.size() - (barred ? 1 : 0);
  commons_.resize(passable + 1);  // nothing is before the first one
  auto place = entries_.end();
  bool found = false;
  auto next = entries_.end();  // the first of those passed
  for (size_t passed = 0;; ++passed, --next) {
    const int32_t behind = passed > 0 ? commons_[passed - 1] : 0;
    const bool beside = std::max(commons_[passed], behind) == most;
    const bool parts = passed > 0 && next->common > most;
    if (beside && !parts) {
      if (found && next->sequence.turn >= sequence.turn) break;
      place = next;
      found = true;
      if (!by_turn) break;
    }
    if (passed == passable) break;
  }
  return place;
}

WaitingQueue::Iterator WaitingQueue::Remove(Iterator it,
                                            const PrefixTree& prefixes) {
  index_.erase(it->sequence.id);
  const auto next = entries_.erase(it);
  if (next != entries_.end()) {
    next->common =
        next == entries_.begin()
            ? 0
            : Common(std::prev(next)->sequence.id, next->sequence.id, prefixes);
  }
  return next;
}

bool WaitingQueue::MayFill() const {
  return std::none_of(begin(), end(), [this](const Entry& entry) {
    return entry.overtaken >= MaxOvertaken(order_);
  });
}

void WaitingQueue::RemoveLast(const PrefixTree& prefixes) {
  Remove(std::prev(end()), prefixes);
  for (Entry& entry : entries_) ++entry.overtaken;
}

bool WaitingQueue::Remove(SequenceId id, const PrefixTree& prefixes) {
  const auto it = index_.find(id);
  if (it == index_.end()) return false;
  Remove(it->second, prefixes);
  return true;
}

void WaitingQueue::Clear() {
  entries_.clear();
  index_.clear();
}

}  // namespace sluice
