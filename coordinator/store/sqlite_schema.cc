#include "coordinator/store/sqlite_schema.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {
namespace {

constexpr int64_t kApplicationId = 0x534c5543;  // "SLUC"
constexpr int64_t kSchemaVersion = 9;

constexpr char kSchema[] = R"(
CREATE TABLE jobs(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  request_id TEXT UNIQUE,
  model TEXT NOT NULL,
  spec BLOB NOT NULL,
  state INTEGER NOT NULL,
  created_us INTEGER NOT NULL,
  started_us INTEGER NOT NULL DEFAULT 0,
  finished_us INTEGER NOT NULL DEFAULT 0,
  total INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  prompt_tokens INTEGER NOT NULL DEFAULT 0,
  generation_tokens INTEGER NOT NULL DEFAULT 0,
  replays INTEGER NOT NULL DEFAULT 0,
  plan TEXT NOT NULL DEFAULT '',
  wanted_prompt_tokens INTEGER NOT NULL DEFAULT 0,
  wanted_max_tokens INTEGER NOT NULL DEFAULT 0,
  answered_max_tokens INTEGER NOT NULL DEFAULT 0,
  by_default INTEGER NOT NULL DEFAULT 0,
  cut_by_default INTEGER NOT NULL DEFAULT 0,
  content BLOB NOT NULL DEFAULT x'',
  tenant TEXT NOT NULL DEFAULT '',
  paused INTEGER NOT NULL DEFAULT 0,
  priority INTEGER NOT NULL DEFAULT 0,
  cached_tokens INTEGER NOT NULL DEFAULT 0,
  input_bytes INTEGER NOT NULL DEFAULT 0);
CREATE INDEX jobs_by_state ON jobs(state);
CREATE TABLE requests(
  job INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  prompt BLOB NOT NULL,
  params TEXT NOT NULL,
  sum INTEGER,
  PRIMARY KEY(job, idx)) WITHOUT ROWID;
CREATE TABLE results(
  job INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  is_error INTEGER NOT NULL,
  line BLOB NOT NULL,
  sum INTEGER,
  PRIMARY KEY(job, idx)) WITHOUT ROWID;
CREATE INDEX failed_results ON results(job, idx) WHERE is_error = 1;
CREATE TABLE progress(
  job INTEGER NOT NULL,
  part INTEGER NOT NULL,
  key TEXT NOT NULL,
  data BLOB NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(job, part)) WITHOUT ROWID;
CREATE TABLE accepted(jobs INTEGER NOT NULL);
INSERT INTO accepted VALUES(0);
)";

// What changes a file of the version before to one of this version.
struct Migration {
  int64_t version;
  const char* sql;
  absl::Status (*then)(SqliteDb* db) = nullptr;
};

// Jobs had their priority in their spec only.
absl::Status CopyPriorities(SqliteDb* db) {
  SLUICE_ASSIGN_OR_RETURN(SqliteStatement read,
                          db->Prepare("SELECT id, spec FROM jobs"));
  SLUICE_ASSIGN_OR_RETURN(
      SqliteStatement write,
      db->Prepare("UPDATE jobs SET priority = ?2 WHERE id = ?1"));
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const bool row, read.Step());
    if (!row) return absl::OkStatus();
    v1::JobSpec spec;
    const absl::string_view bytes = read.Bytes(1);
    // A damaged one is told of when the job is read.
    if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
        spec.priority() == 0) {
      continue;
    }
    SqliteReset reset(&write);
    SLUICE_RETURN_IF_ERROR(
        write.Bind(1, read.Int(0)).Bind(2, spec.priority()).Run());
  }
}

constexpr Migration kMigrations[] = {
    {2, "ALTER TABLE jobs ADD COLUMN plan TEXT NOT NULL DEFAULT ''"},
    {3, R"(
ALTER TABLE jobs ADD COLUMN wanted_prompt_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN wanted_max_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN answered_max_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN by_default INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cut_by_default INTEGER NOT NULL DEFAULT 0)"},
    {4, R"(
ALTER TABLE jobs ADD COLUMN content BLOB NOT NULL DEFAULT x'';
CREATE TABLE accepted(jobs INTEGER NOT NULL);
INSERT INTO accepted VALUES(0))"},
    {5, R"(
ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE requests ADD COLUMN sum INTEGER;
ALTER TABLE results ADD COLUMN sum INTEGER)",
     CopyPriorities},
    {6, "CREATE INDEX failed_results ON results(job, idx) WHERE is_error = 1"},
    {7, R"(
CREATE TABLE IF NOT EXISTS progress(
  job INTEGER NOT NULL,
  part INTEGER NOT NULL,
  key TEXT NOT NULL,
  data BLOB NOT NULL,
  sum INTEGER NOT NULL,
  PRIMARY KEY(job, part)) WITHOUT ROWID)"},
    {8, "ALTER TABLE jobs ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0"},
    {9, "ALTER TABLE jobs ADD COLUMN input_bytes INTEGER NOT NULL DEFAULT 0"},
};
static_assert(kMigrations[std::size(kMigrations) - 1].version ==
              kSchemaVersion);

// Brings a file of an earlier version up to date, all in one transaction.
absl::Status MigrateSchema(SqliteDb* db, int64_t version) {
  if (version == kSchemaVersion) return absl::OkStatus();
  SqliteTransaction transaction(db);
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  for (const Migration& migration : kMigrations) {
    if (migration.version <= version) continue;
    SLUICE_RETURN_IF_ERROR(db->Exec(migration.sql));
    if (migration.then != nullptr) SLUICE_RETURN_IF_ERROR(migration.then(db));
  }
  SLUICE_RETURN_IF_ERROR(
      db->Exec(absl::StrCat("PRAGMA user_version=", kSchemaVersion)));
  SLUICE_RETURN_IF_ERROR(transaction.Commit());
  LogInfo("the database of format version ", version, " was brought to ",
          kSchemaVersion);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CountAcceptedJobs(SqliteDb* db) {
  SLUICE_ASSIGN_OR_RETURN(
      const int64_t tables,
      db->QueryInt("SELECT count(*) FROM sqlite_schema WHERE name = "
                   "'accepted'"));
  if (tables == 0) return 0;
  return db->QueryInt("SELECT jobs FROM accepted");
}

absl::Status PrepareSqliteSchema(SqliteDb* db, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t tables,
                          db->QueryInt("SELECT count(*) FROM sqlite_schema"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t application,
                          db->QueryInt("PRAGMA application_id"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t version,
                          db->QueryInt("PRAGMA user_version"));
  if (tables == 0 && application == 0 && version == 0) {
    // auto_vacuum takes effect only before the first table exists.
    SLUICE_RETURN_IF_ERROR(db->Exec("PRAGMA auto_vacuum=INCREMENTAL"));
  } else if (application != kApplicationId) {
    return FailedPrecondition(
        path,
        " is a database of another program; use another state "
        "directory");
  } else if (version < 1 || version > kSchemaVersion) {
    return FailedPrecondition(path, " has format version ", version,
                              ", this program knows ", kSchemaVersion,
                              "; use the version of Sluice that wrote it");
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string mode,
                          db->QueryText("PRAGMA journal_mode=WAL"));
  if (mode != "wal") {
    return FailedPrecondition(
        path,
        ": the file system does not support SQLite's write-ahead log "
        "(journal mode ",
        mode, "); use a local directory");
  }
  if (tables > 0) return MigrateSchema(db, version);
  SqliteTransaction transaction(db);
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  SLUICE_RETURN_IF_ERROR(
      db->Exec(absl::StrCat(kSchema, "PRAGMA application_id=", kApplicationId,
                            "; PRAGMA user_version=", kSchemaVersion, ";")));
  return transaction.Commit();
}

}  // namespace sluice
