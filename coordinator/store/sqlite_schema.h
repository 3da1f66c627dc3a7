#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/store/sqlite_db.h"

namespace sluice {

// Gives a new file the tables of the job store, and brings those of earlier
// versions up to date. kFailedPrecondition if `path` is another program's file,
// of a later version, or on a file system without what SQLite's log needs.
absl::Status PrepareSqliteSchema(SqliteDb* db, const std::string& path);

// The number of accepted jobs that the file has; 0 if it has no tables.
absl::StatusOr<int64_t> CountAcceptedJobs(SqliteDb* db);

}  // namespace sluice
