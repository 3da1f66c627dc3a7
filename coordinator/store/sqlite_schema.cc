#include "coordinator/store/sqlite_schema.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int64_t kApplicationId = 0x534c5543;  // "SLUC"
// Version 2: jobs have a plan. 3: they have wanted tokens. 4: jobs have the
// hash of their input; accepted jobs are counted.
constexpr int64_t kSchemaVersion = 4;

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
  content BLOB NOT NULL DEFAULT x'');
CREATE INDEX jobs_by_state ON jobs(state);
CREATE TABLE requests(
  job INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  prompt BLOB NOT NULL,
  params TEXT NOT NULL,
  PRIMARY KEY(job, idx)) WITHOUT ROWID;
CREATE TABLE results(
  job INTEGER NOT NULL,
  idx INTEGER NOT NULL,
  is_error INTEGER NOT NULL,
  line BLOB NOT NULL,
  PRIMARY KEY(job, idx)) WITHOUT ROWID;
CREATE TABLE accepted(jobs INTEGER NOT NULL);
INSERT INTO accepted VALUES(0);
)";

// Files of earlier versions are brought up to date.
absl::Status MigrateSchema(SqliteDb* db, int64_t version) {
  if (version == kSchemaVersion) return absl::OkStatus();
  SqliteTransaction transaction(db);
  SLUICE_RETURN_IF_ERROR(transaction.Begin());
  if (version < 2) {
    SLUICE_RETURN_IF_ERROR(
        db->Exec("ALTER TABLE jobs ADD COLUMN plan TEXT NOT NULL DEFAULT ''"));
  }
  if (version < 3) {
    for (const char* column :
         {"wanted_prompt_tokens", "wanted_max_tokens", "answered_max_tokens",
          "by_default", "cut_by_default"}) {
      SLUICE_RETURN_IF_ERROR(
          db->Exec(absl::StrCat("ALTER TABLE jobs ADD COLUMN ", column,
                                " INTEGER NOT NULL DEFAULT 0")));
    }
  }
  SLUICE_RETURN_IF_ERROR(db->Exec(
      absl::StrCat("ALTER TABLE jobs ADD COLUMN content BLOB NOT NULL DEFAULT "
                   "x'';"
                   "CREATE TABLE accepted(jobs INTEGER NOT NULL);"
                   "INSERT INTO accepted VALUES(0);"
                   "PRAGMA user_version=",
                   kSchemaVersion, ";")));
  return transaction.Commit();
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
