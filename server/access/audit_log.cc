#include "server/access/audit_log.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr int64_t kMaxRefusalsASecond = 20;

absl::StatusOr<FileDescriptor> OpenForAppending(const std::string& path) {
  FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!file.open()) {
    return FailedPrecondition("the audit log ", path,
                              " can't be opened: ", strerror(errno));
  }
  return file;
}

}  // namespace

const char* ScopeName(Scope scope) {
  switch (scope) {
    case Scope::kOpen:
      return "open";
    case Scope::kRead:
      return "read";
    case Scope::kSubmit:
      return "submit";
    case Scope::kAdmin:
      return "admin";
    case Scope::kCluster:
      return "cluster";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(
    const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(FileDescriptor file, OpenForAppending(path));
  return std::unique_ptr<AuditLog>(new AuditLog(path, std::move(file)));
}

void AuditLog::Write(const Caller& caller, Scope scope, absl::string_view peer,
                     absl::string_view what, const absl::Status& outcome) {
  const absl::Time now = absl::Now();
  nlohmann::ordered_json entry = {
      {"time",
       absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone())},
      {"who", caller.name},
      {"tenant", caller.tenant},
      {"peer", std::string(peer)},
      {"what", std::string(what)},
      {"scope", ScopeName(scope)},
      {"outcome", outcome.ok() ? "allowed" : std::string(outcome.message())}};
  MutexLock lock(&mu_);
  if (const int64_t second = absl::ToUnixSeconds(now); second != second_) {
    second_ = second;
    refusals_ = 0;
  }
  if (!outcome.ok() && ++refusals_ > kMaxRefusalsASecond) {
    ++unwritten_;
    return;
  }
  if (unwritten_ > 0)
    entry["refusals_not_written"] = std::exchange(unwritten_, 0);
  const std::string line =
      entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  if (write(file_.get(), line.data(), line.size()) !=
      static_cast<ssize_t>(line.size())) {
    LogError("the audit log ", path_,
             " could not be written: ", strerror(errno), "; ", line);
  }
}

void AuditLog::Reopen() {
  absl::StatusOr<FileDescriptor> file = OpenForAppending(path_);
  if (!file.ok()) {
    LogError(file.status().message(), "; the old file is written on");
    return;
  }
  MutexLock lock(&mu_);
  file_ = *std::move(file);
}

}  // namespace sluice
