#include "coordinator/store/custom_id_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<CustomIdSet>> CustomIdSet::Create(
    const std::filesystem::path& directory) {
  std::string path = (directory / "upload-XXXXXX").string();
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    return FailedPrecondition("cannot create ", path, ": ", strerror(errno));
  }
  close(fd);
  auto db = SqliteDb::Open(path);
  std::unique_ptr<CustomIdSet> set(new CustomIdSet);
  absl::Status status = db.status();
  if (status.ok()) {
    set->db_ = *std::move(db);
    // The set need not survive a crash: no journal, no fsync, one long
    // transaction.
    status = set->db_->Exec(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-8192;"
        "CREATE TABLE ids(custom_id TEXT PRIMARY KEY, line INTEGER NOT NULL)"
        " WITHOUT ROWID;"
        "BEGIN EXCLUSIVE;");
  }
  unlink(path.c_str());
  SLUICE_RETURN_IF_ERROR(status);
  SLUICE_ASSIGN_OR_RETURN(
      set->insert_,
      set->db_->Prepare("INSERT OR IGNORE INTO ids VALUES(?1, ?2)"));
  SLUICE_ASSIGN_OR_RETURN(
      set->find_,
      set->db_->Prepare("SELECT line FROM ids WHERE custom_id = ?1"));
  return set;
}

absl::StatusOr<int64_t> CustomIdSet::Insert(absl::string_view custom_id,
                                            int64_t line) {
  SqliteReset reset_insert(&insert_);
  SLUICE_RETURN_IF_ERROR(insert_.BindText(1, custom_id).Bind(2, line).Run());
  if (db_->changes() == 1) return 0;
  SqliteReset reset_find(&find_);
  SLUICE_ASSIGN_OR_RETURN(const bool found,
                          find_.BindText(1, custom_id).Step());
  return found ? find_.Int(0) : line;
}

}  // namespace sluice
