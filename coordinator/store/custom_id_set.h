#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/sqlite_db.h"

namespace sluice {

// The custom_ids of one upload, on disk because there may be a hundred million:
// tells which lines repeat one. Its file has no name, and is deleted with the
// object or the process. Thread-compatible.
class CustomIdSet {
 public:
  static absl::StatusOr<std::unique_ptr<CustomIdSet>> Create(
      const std::filesystem::path& directory);

  // Returns 0 if `custom_id` is new (it then belongs to `line`, counted from
  // 1); otherwise the line that it belongs to. kResourceExhausted if the disk
  // is full.
  absl::StatusOr<int64_t> Insert(absl::string_view custom_id, int64_t line);

 private:
  CustomIdSet() = default;
  std::unique_ptr<SqliteDb> db_;
  SqliteStatement insert_;
  SqliteStatement find_;
};

}  // namespace sluice
