#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/access.h"
#include "common/host/file_descriptor.h"
#include "common/threads/mutex.h"

namespace sluice {

// Who did what, and who was refused: a line of JSON each, {"time", "who",
// "tenant", "peer", "what", "scope", "outcome"}, appended to a file. Refusals
// beyond some a second are counted instead of written, so that nobody fills the
// disk with them. Thread-safe.
class AuditLog {
 public:
  // kFailedPrecondition if the file can't be opened for appending.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(
      const std::string& path);

  void Write(const Caller& caller, Scope scope, absl::string_view peer,
             absl::string_view what, const absl::Status& outcome);
  // Opens the file anew, which log rotation has moved away.
  void Reopen();

 private:
  AuditLog(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  Mutex mu_;
  FileDescriptor file_ ABSL_GUARDED_BY(mu_);
  int64_t second_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;  // in this second
  int64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
};

// "read", "submit", "admin", "cluster" or "open".
const char* ScopeName(Scope scope);

}  // namespace sluice
