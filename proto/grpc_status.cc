#include "proto/grpc_status.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "common/threads/retry_delay.h"
#include "proto/wire_limits.h"
#include "sluice/v1/errors.pb.h"

namespace sluice {
namespace {

// Returns at most `bytes` of `message`, in whole characters.
std::string Clip(absl::string_view message, size_t bytes) {
  constexpr absl::string_view kCut = " ...";
  if (message.size() <= bytes) return std::string(message);
  return absl::StrCat(ClipUtf8(message, bytes - kCut.size()), kCut);
}

constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";

// The details of a status that may be tried again after `delay`.
std::string RetryDetails(absl::StatusCode code, const std::string& message,
                         absl::Duration delay) {
  v1::RetryInfo retry;
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  retry.mutable_retry_delay()->set_seconds(seconds);
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  v1::ErrorStatus details;
  details.set_code(static_cast<int32_t>(code));
  details.set_message(message);  // Google's clients compare it
  google::protobuf::Any* const any = details.add_details();
  any->set_type_url(kRetryInfo);
  any->set_value(retry.SerializeAsString());
  return details.SerializeAsString();
}

// Returns `status` with the delay that the details name, if they do.
absl::Status WithDetails(absl::Status status, const std::string& text) {
  v1::ErrorStatus details;
  if (text.empty() || !details.ParseFromString(text)) return status;
  for (const google::protobuf::Any& any : details.details()) {
    v1::RetryInfo retry;
    if (any.type_url() == kRetryInfo && retry.ParseFromString(any.value())) {
      return WithRetryDelay(std::move(status),
                            absl::Seconds(retry.retry_delay().seconds()) +
                                absl::Nanoseconds(retry.retry_delay().nanos()));
    }
  }
  return status;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::optional<absl::Duration> delay = RetryDelayOf(status);
  // With details, the message travels twice.
  const std::string message =
      Clip(EscapeInvalidUtf8(status.message()),
           static_cast<size_t>(delay ? kMaxStatusBytes / 2 : kMaxStatusBytes));
  if (!delay) return grpc::Status(code, message);
  return grpc::Status(code, message,
                      RetryDetails(status.code(), message, *delay));
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
  return WithDetails(
      absl::Status(static_cast<absl::StatusCode>(status.error_code()), message),
      status.error_details());
}

}  // namespace sluice
