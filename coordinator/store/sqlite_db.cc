#include "coordinator/store/sqlite_db.h"

#include <sqlite3.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int kBusyTimeoutMs = 10'000;

bool IsDiskFull(sqlite3* db, int code) {
  if (code == SQLITE_FULL) return true;
  if (code != SQLITE_IOERR) return false;
  // SQLite reports FULL for ENOSPC only, and not on all its paths. The error
  // may be the database's or the log's.
  int main_error = 0, log_error = 0;
  sqlite3_file* log = nullptr;
  sqlite3_file_control(db, "main", SQLITE_FCNTL_LAST_ERRNO, &main_error);
  sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (log != nullptr && log->pMethods != nullptr) {
    log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &log_error);
  }
  for (const int error : {sqlite3_system_errno(db), main_error, log_error}) {
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) return true;
  }
  return false;
}

absl::Status ToStatus(sqlite3* db, int rc) {
  if (rc == SQLITE_OK || rc == SQLITE_DONE || rc == SQLITE_ROW) {
    return absl::OkStatus();
  }
  const int code = rc & 0xff;
  const char* file = sqlite3_db_filename(db, "main");
  const std::string where = file && *file ? file : "the database";
  const std::string why =
      absl::StrCat(sqlite3_errmsg(db), " (SQLite error ", rc, ")");
  if (IsDiskFull(db, code)) {
    return ResourceExhausted("no space left to write ", where, ": ", why);
  }
  switch (code) {
    case SQLITE_NOTADB:
      return DataLoss(where, " is not a database or is damaged: ", why,
                      "; restore it from a copy, or move it away to start "
                      "with an empty one");
    case SQLITE_CORRUPT:
      return DataLoss(
          where, " is damaged: ", why,
          "; restore it from a copy, or move it away to start with an empty "
          "one");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(where, " is locked by another program: ", why);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY:
      return FailedPrecondition("cannot open or write ", where, ": ", why);
    case SQLITE_NOMEM:
      return ResourceExhausted(where, ": ", why);
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(absl::StrCat(where, ": ", why));
    case SQLITE_TOOBIG:
      return absl::OutOfRangeError(absl::StrCat(where, ": ", why));
    default:
      return Internal(where, ": ", why);
  }
}

}  // namespace

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)) {}

SqliteStatement& SqliteStatement::operator=(SqliteStatement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

// Binding fails only for a parameter that is not in the SQL text or out of
// turn, which the first run of the statement would show.
SqliteStatement& SqliteStatement::Bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_, parameter, value);
  return *this;
}

SqliteStatement& SqliteStatement::BindText(int parameter,
                                           absl::string_view value) {
  sqlite3_bind_text64(statement_, parameter, value.data() ? value.data() : "",
                      value.size(), SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

SqliteStatement& SqliteStatement::BindBlob(int parameter,
                                           absl::string_view value) {
  // A null pointer would bind NULL, not an empty blob.
  sqlite3_bind_blob64(statement_, parameter, value.data() ? value.data() : "",
                      value.size(), SQLITE_STATIC);
  return *this;
}

SqliteStatement& SqliteStatement::BindNull(int parameter) {
  sqlite3_bind_null(statement_, parameter);
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  absl::Status status = ToStatus(sqlite3_db_handle(statement_), rc);
  Reset();
  if (!status.ok()) return status;
  return false;
}

absl::Status SqliteStatement::Run() {
  SLUICE_ASSIGN_OR_RETURN(const bool row, Step());
  if (row) Reset();
  return absl::OkStatus();
}

void SqliteStatement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_, column);
}

absl::string_view SqliteStatement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr) return absl::string_view();
  return absl::string_view(static_cast<const char*>(data), size);
}

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(
    const std::string& path) {
  sqlite3* handle = nullptr;
  // NOMUTEX is safe, as each connection is guarded by its owner.
  const int rc =
      sqlite3_open_v2(path.c_str(), &handle,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                          SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                      nullptr);
  if (handle == nullptr) {
    return absl::ResourceExhaustedError("no memory to open a database");
  }
  std::unique_ptr<SqliteDb> db(new SqliteDb(path, handle));
  if (rc != SQLITE_OK) return Annotate(ToStatus(handle, rc), path);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return db;
}

SqliteDb::~SqliteDb() { sqlite3_close_v2(db_); }

absl::Status SqliteDb::Exec(const std::string& sql) {
  return ToStatus(db_,
                  sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr));
}

absl::StatusOr<std::string> SqliteDb::QueryText(const std::string& sql) {
  SLUICE_ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  SLUICE_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? std::string(statement.Bytes(0)) : std::string();
}

absl::StatusOr<int64_t> SqliteDb::QueryInt(const std::string& sql) {
  SLUICE_ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  SLUICE_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

absl::StatusOr<SqliteStatement> SqliteDb::Prepare(absl::string_view sql) {
  SqliteStatement statement;
  const int rc = sqlite3_prepare_v3(
      db_, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
      &statement.statement_, nullptr);
  SLUICE_RETURN_IF_ERROR(ToStatus(db_, rc));
  return statement;
}

void SqliteDb::KeepLog() {
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

void SqliteDb::EmptyLog() {
  sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr,
                            nullptr);
}

int64_t SqliteDb::last_insert_rowid() const {
  return sqlite3_last_insert_rowid(db_);
}

int64_t SqliteDb::changes() const { return sqlite3_changes64(db_); }

SqliteTransaction::~SqliteTransaction() {
  // Some errors have ended the transaction already.
  if (db_ && !sqlite3_get_autocommit(db_->db_)) {
    sqlite3_exec(db_->db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

absl::Status SqliteTransaction::Begin() { return db_->Exec("BEGIN IMMEDIATE"); }

absl::Status SqliteTransaction::Commit() {
  SLUICE_RETURN_IF_ERROR(db_->Exec("COMMIT"));
  db_ = nullptr;
  return absl::OkStatus();
}

}  // namespace sluice
