#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

// Counts pieces of work as they are done, whatever they are, so that who waits
// for the whole can tell slow from stuck. Thread-safe.
class WorkMarks {
 public:
  void Add() { count_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

// For who may have been given none.
inline void AddMark(WorkMarks* marks) {
  if (marks != nullptr) marks->Add();
}

}  // namespace sluice
