#include "proto/grpc_status.h"

#include <string>

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
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace sluice
