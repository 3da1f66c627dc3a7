#include "proto/grpc_status.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "proto/wire_limits.h"

namespace sluice {
namespace {

// Returns at most kMaxStatusBytes of `message`, in whole characters.
std::string Clip(absl::string_view message) {
  if (message.size() <= static_cast<size_t>(kMaxStatusBytes)) {
    return std::string(message);
  }
  constexpr absl::string_view kCut = " ...";
  const size_t size = static_cast<size_t>(kMaxStatusBytes) - kCut.size();
  return absl::StrCat(ClipUtf8(message, size), kCut);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Clip(EscapeInvalidUtf8(status.message())));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  std::string message = status.error_message();
  if (absl::StrContains(message, "Trying to connect an http1.x server")) {
    message =
        "what listens there speaks HTTP, as do metrics and the console; a "
        "coordinator's --port, for jobs and workers, is another one, 7070 "
        "unless it was given";
  } else if (message.empty() &&
             status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    message =
        "what listens there does not know this call: a worker instead of a "
        "coordinator, another program or another version";
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      message);
}

}  // namespace sluice
