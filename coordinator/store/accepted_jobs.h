#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/status.h"

namespace sluice {

// Keeps the number of jobs that a database has accepted in a small file beside
// it, which is written after each: SQLite takes a missing or damaged
// write-ahead log for one that ended earlier, and the number shows that jobs
// were lost with it. Thread-compatible.
class AcceptedJobs {
 public:
  // `database` is the path of the database.
  explicit AcceptedJobs(const std::filesystem::path& database);

  // The number written last; nullopt if there is no file, or one that was never
  // complete.
  std::optional<int64_t> Read() const;
  // Writes the number, which is on disk when it returns.
  absl::Status Write(int64_t accepted) const;
  // kDataLoss if the database has `accepted` jobs, fewer than were written.
  absl::Status Check(int64_t accepted) const;

 private:
  const std::filesystem::path database_;
  const std::filesystem::path path_;
};

}  // namespace sluice
