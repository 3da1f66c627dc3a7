#include "proto/grpc_status.h"

#include <gtest/gtest.h>

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

TEST(GrpcStatusTest, MessagesAreUtf8) {
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("caf\xE9: no such file"))
                .error_message(),
            "caf\\xe9: no such file");
}

}  // namespace
}  // namespace sluice
