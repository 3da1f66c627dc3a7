#include "runtime/kernels/device_choice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(DeviceChoiceTest, ParsesItsNames) {
  EXPECT_EQ(ParseDevice("cpu")->backend, BackendKind::kCpu);
  EXPECT_EQ(ParseDevice("cpu-discrete")->backend, BackendKind::kCpuDiscrete);
  EXPECT_FALSE(ParseDevice("cpu")->has_memory());
  EXPECT_TRUE(ParseDevice("cpu-discrete")->has_memory());
  for (const char* name : {"cuda", "cuda:0", "cuda:3", "cuda:15"}) {
    const auto device = ParseDevice(name);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->backend, BackendKind::kCuda);
    EXPECT_TRUE(device->has_memory());
    EXPECT_EQ(DeviceName(*device),
              std::string(name) == "cuda" ? "cuda:0" : name);
  }
  for (const char* name :
       {"", "tpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda: 1",
        "cuda:1 ", "cuda1", "cuda:1:2", "cuda:99999999999", "cpu:0"}) {
    const absl::Status status = ParseDevice(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(status.message(), HasSubstr("cuda:N"));
  }
}

TEST(DeviceChoiceTest, TheCpuIsAlwaysHere) {
  EXPECT_TRUE(CheckDevice({BackendKind::kCpu}).ok());
  EXPECT_TRUE(CheckDevice({BackendKind::kCpuDiscrete}).ok());
  EXPECT_EQ(DescribeDevice({BackendKind::kCpuDiscrete}), "cpu-discrete");
}

TEST(DeviceChoiceTest, AGpuThatIsNotHereSaysWhy) {
  const absl::Status status = CheckDevice({BackendKind::kCuda, 999});
  // Either the build is without CUDA, or the machine without such a GPU.
  EXPECT_TRUE(absl::IsUnimplemented(status) ||
              absl::IsFailedPrecondition(status))
      << status;
  EXPECT_THAT(status.message(), HasSubstr("--device cuda:999: "));
  EXPECT_THAT(status.message(), HasSubstr("GPU"));
  EXPECT_EQ(ParseDeviceMemory({BackendKind::kCuda, 999}, "").status(), status);
  EXPECT_EQ(DescribeDevice({BackendKind::kCuda, 999}), "cuda:999");
}

TEST(DeviceChoiceTest, MemoryIsWhatTheFlagSays) {
  EXPECT_EQ(*ParseDeviceMemory({BackendKind::kCuda}, "16GiB"),
            uint64_t{16} << 30);
  EXPECT_EQ(*ParseDeviceMemory({BackendKind::kCpu}, ""), 0u);
  EXPECT_EQ(*ParseDeviceMemory({BackendKind::kCpuDiscrete}, ""), 0u);
  const absl::Status status =
      ParseDeviceMemory({BackendKind::kCpuDiscrete}, "much").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("--device-memory"));
}

TEST(DeviceChoiceTest, TheDiscreteCpuGetsItsMemory) {
  MemoryBudget budget(Tier::kDevice, 1 << 20);
  const auto device =
      CreateDevice({BackendKind::kCpuDiscrete}, &budget, nullptr);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_TRUE((*device)->Allocate("data", 1 << 20).ok());
}

}  // namespace
}  // namespace sluice
