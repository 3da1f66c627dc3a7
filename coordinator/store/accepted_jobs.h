#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "absl/status/status.h"

namespace sluice {

// How many jobs a database has accepted, in a small file beside it that is
// written after each: SQLite takes a write-ahead log that is missing or damaged
// for one that ended earlier, and this tells that jobs went with it.
// Thread-compatible.
class AcceptedJobs {
 public:
  // `database` names the file that this is about, which lies beside it.
  explicit AcceptedJobs(const std::filesystem::path& database);

  // What was written last; nothing if there is no file, or one that was never
  // whole.
  std::optional<int64_t> Read() const;
  // On disk when it returns.
  absl::Status Write(int64_t accepted) const;
  // kDataLoss if the database knows of fewer than are written.
  absl::Status Check(int64_t accepted) const;

 private:
  const std::filesystem::path database_;
  const std::filesystem::path path_;
};

}  // namespace sluice
