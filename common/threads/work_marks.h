#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

// Counts finished pieces of any work, so that a thread that waits for all of it
// can tell slow from stuck. Thread-safe.
class WorkMarks {
 public:
  void Add() { count_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

// Adds a mark; `marks` may be null.
inline void AddMark(WorkMarks* marks) {
  if (marks != nullptr) marks->Add();
}

}  // namespace sluice
