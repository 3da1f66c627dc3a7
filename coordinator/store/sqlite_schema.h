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

// How many jobs the file knows to have been accepted; 0 if it has no tables.
absl::StatusOr<int64_t> CountAcceptedJobs(SqliteDb* db);

}  // namespace sluice
