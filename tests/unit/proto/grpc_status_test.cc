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

TEST(GrpcStatusTest, MessagesAreUtf8) {
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("caf\xE9: no such file"))
                .error_message(),
            "caf\\xe9: no such file");
}

}  // namespace
}  // namespace sluice
