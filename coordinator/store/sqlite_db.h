#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace sluice {

// A prepared statement. Bound text and blobs are not copied: they must stay
// until Reset. Belongs to one SqliteDb, which must outlive it.
class SqliteStatement {
 public:
  SqliteStatement() = default;
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&& other) noexcept;
  ~SqliteStatement();

  // Parameters count from 1.
  SqliteStatement& Bind(int parameter, int64_t value);
  SqliteStatement& BindText(int parameter, absl::string_view value);
  SqliteStatement& BindBlob(int parameter, absl::string_view value);
  SqliteStatement& BindNull(int parameter);

  // Returns true if there is a row. After false or an error it is reset.
  absl::StatusOr<bool> Step();
  // Runs a statement that has no rows.
  absl::Status Run();
  // Ends reading; also ends the read transaction that this statement opened.
  void Reset();

  // Columns count from 0. Views last until the next Step or Reset.
  int64_t Int(int column) const;
  absl::string_view Bytes(int column) const;

 private:
  friend class SqliteDb;
  sqlite3_stmt* statement_ = nullptr;
};

// Resets a statement at the end of a scope.
class SqliteReset {
 public:
  explicit SqliteReset(SqliteStatement* statement) : statement_(statement) {}
  ~SqliteReset() { statement_->Reset(); }
  SqliteReset(const SqliteReset&) = delete;
  SqliteReset& operator=(const SqliteReset&) = delete;

 private:
  SqliteStatement* statement_;
};

// A connection. Errors of SQLite become: full disk kResourceExhausted, damaged
// or no database kDataLoss, busy kUnavailable, cannot be opened or written
// kFailedPrecondition, violated constraint kAlreadyExists. Thread-compatible.
class SqliteDb {
 public:
  // Opens the file, or creates it if it is missing.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(
      const std::string& path);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  // Runs one or more statements, whose rows are ignored.
  absl::Status Exec(const std::string& sql);
  // Returns the first column of the first row; "" if there is no row.
  absl::StatusOr<std::string> QueryText(const std::string& sql);
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);
  absl::StatusOr<SqliteStatement> Prepare(absl::string_view sql);

  // Makes closing keep the write-ahead log as it is, for inspection.
  void KeepLog();
  // Brings the write-ahead log into the database and empties its file, as far
  // as that is possible now.
  void EmptyLog();

  int64_t last_insert_rowid() const;
  // Rows changed by the last insert, update or delete.
  int64_t changes() const;

 private:
  friend class SqliteTransaction;
  SqliteDb(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  const std::string path_;
  sqlite3* db_;
};

// A write transaction, rolled back unless committed.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDb* db) : db_(db) {}
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  absl::Status Begin();
  absl::Status Commit();

 private:
  SqliteDb* db_;
};

}  // namespace sluice
