#include "proto/grpc_status.h"

#include <gtest/gtest.h>

#include "common/threads/retry_delay.h"
#include "proto/wire_limits.h"

namespace sluice {
namespace {

TEST(GrpcStatusTest, EveryCodeThereAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code),
                              code == 0 ? "" : "what was wrong");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(wire.error_code(), code);
    EXPECT_EQ(FromGrpcStatus(wire), status) << code;
  }
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("x")).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ToGrpcStatus(absl::UnauthenticatedError("x")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST(GrpcStatusTest, AWrongPortIsExplained) {
  const auto said = [](grpc::StatusCode code, const std::string& text) {
    return std::string(FromGrpcStatus(grpc::Status(code, text)).message());
  };
  EXPECT_EQ(said(grpc::StatusCode::UNAVAILABLE,
                 "failed to connect to all addresses; last error: INTERNAL: "
                 "ipv4:127.0.0.1:7071: Trying to connect an http1.x server")
                .find("what listens there speaks HTTP, as do metrics"),
            0u);
  EXPECT_EQ(said(grpc::StatusCode::UNIMPLEMENTED, "")
                .find("what listens there does not know this call"),
            0u);
  EXPECT_EQ(said(grpc::StatusCode::UNIMPLEMENTED, "not here"), "not here");
}

// What Python's googleapis-common-protos 1.66 makes of
// google.rpc.Status(code=8, message="full", details=[RetryInfo of 90.5 s]).
const std::string kRetryDetails =
    "\x08\x08\x12\x04"
    "full\x1a"
    "6\n(type.googleapis.com/google.rpc.RetryInfo\x12\n\n\x08\x08Z\x10"
    "\x80\xca\xb5\xee\x01";

TEST(GrpcStatusTest, TheTimeToTryAgainGoesAsGooglesRetryInfo) {
  const absl::Status full = WithRetryDelay(absl::ResourceExhaustedError("full"),
                                           absl::Milliseconds(90'500));
  const grpc::Status wire = ToGrpcStatus(full);
  EXPECT_EQ(wire.error_details(), kRetryDetails);
  EXPECT_EQ(RetryDelayOf(FromGrpcStatus(wire)), absl::Milliseconds(90'500));
  EXPECT_EQ(ToGrpcStatus(absl::ResourceExhaustedError("x")).error_details(),
            "");
}

TEST(GrpcStatusTest, DetailsOfOthersAreTakenWithCare) {
  const auto delay = [](const std::string& details) {
    return RetryDelayOf(FromGrpcStatus(
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", details)));
  };
  EXPECT_EQ(delay("no message"), std::nullopt);
  EXPECT_EQ(delay(kRetryDetails.substr(0, 20)), std::nullopt);
  std::string other = kRetryDetails;
  other.replace(other.find("RetryInfo"), 9, "ErrorInfo");
  EXPECT_EQ(delay(other), std::nullopt);
  // More than a day is a day.
  EXPECT_EQ(RetryDelayOf(WithRetryDelay(absl::UnavailableError("x"),
                                        absl::InfiniteDuration())),
            absl::Hours(24));
  EXPECT_EQ(RetryDelayOf(
                WithRetryDelay(absl::UnavailableError("x"), -absl::Seconds(1))),
            absl::ZeroDuration());
}

TEST(GrpcStatusTest, AMessageThatTravelsTwiceIsShort) {
  const grpc::Status wire = ToGrpcStatus(
      WithRetryDelay(absl::ResourceExhaustedError(std::string(100'000, 'x')),
                     absl::Seconds(1)));
  EXPECT_LE(3 * wire.error_message().size() + wire.error_details().size() * 2,
            static_cast<size_t>(kMaxMetadataBytes));
}

TEST(GrpcStatusTest, MessagesAreUtf8) {
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("caf\xE9: no such file"))
                .error_message(),
            "caf\\xe9: no such file");
}

}  // namespace
}  // namespace sluice
