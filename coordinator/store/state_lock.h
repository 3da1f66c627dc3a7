#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"

namespace sluice {

// Locks a state directory for this process: at most one at a time, released
// when destroyed or when the process ends, however it ends.
class StateLock {
 public:
  // Creates the directory if it is missing. kFailedPrecondition names the
  // process that holds it.
  static absl::StatusOr<std::unique_ptr<StateLock>> Acquire(
      const std::filesystem::path& state_dir);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace sluice
