#include "common/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/device_loss.h"

namespace sluice {
namespace {

absl::Status Check(int value, int* calls) {
  ++*calls;
  return value >= 0 ? absl::OkStatus()
                    : absl::OutOfRangeError(absl::StrCat("got ", value));
}

absl::Status CheckBoth(int a, int b, int* calls) {
  SLUICE_RETURN_IF_ERROR(Check(a, calls));
  if (b != 0) SLUICE_RETURN_IF_ERROR(Check(b, calls));
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnIfError) {
  int calls = 0;
  EXPECT_TRUE(CheckBoth(1, 2, &calls).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(CheckBoth(-1, 2, &calls), absl::OutOfRangeError("got -1"));
  EXPECT_EQ(calls, 3) << "evaluated once, and nothing after it";
  EXPECT_EQ(CheckBoth(1, -2, &calls), absl::OutOfRangeError("got -2"));
}

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::NotFoundError("none");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Add(int a, int b) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<int> x, Make(a));
  std::unique_ptr<int> y;
  SLUICE_ASSIGN_OR_RETURN(y, Make(b));
  return *x + *y;
}

TEST(StatusMacrosTest, AssignOrReturn) {
  EXPECT_EQ(*Add(1, 2), 3);
  EXPECT_EQ(Add(-1, 2).status(), absl::NotFoundError("none"));
  EXPECT_EQ(Add(1, -2).status(), absl::NotFoundError("none"));
}

TEST(StatusMacrosTest, AnnotateKeepsTheCode) {
  EXPECT_EQ(Annotate(absl::DataLossError("short"), "file \"x\""),
            absl::DataLossError("file \"x\": short"));
  EXPECT_EQ(Annotate(absl::OkStatus(), "file"), absl::OkStatus());
}

TEST(StatusMacrosTest, AnnotateKeepsTheMarkOfALostDevice) {
  const absl::Status lost = DeviceLoss(absl::InternalError("gone"));
  EXPECT_TRUE(IsDeviceLoss(Annotate(lost, "step 3")));
  EXPECT_EQ(Annotate(lost, "step 3").message(), "step 3: gone");
  EXPECT_FALSE(IsDeviceLoss(Annotate(absl::InternalError("gone"), "step 3")));
  EXPECT_FALSE(IsDeviceLoss(absl::OkStatus()));
}

}  // namespace
}  // namespace sluice
