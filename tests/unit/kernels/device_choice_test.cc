#include "runtime/kernels/device_choice.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_join.h"
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

TEST(DeviceChoiceTest, DevicesOfSeveralRanks) {
  const auto names = [](absl::string_view text, int32_t ranks) {
    std::vector<std::string> names;
    const auto devices = ParseDevices(text, ranks);
    if (!devices.ok()) return std::string(devices.status().message());
    for (const DeviceChoice& device : *devices) {
      names.push_back(DeviceName(device));
    }
    return absl::StrJoin(names, " ");
  };
  EXPECT_EQ(names("cpu", 1), "cpu");
  EXPECT_EQ(names("cpu", 3), "cpu cpu cpu");
  EXPECT_EQ(names("cpu-discrete", 2), "cpu-discrete cpu-discrete");
  EXPECT_EQ(names("cuda:2,cuda:0", 1), "cuda:2 cuda:0");
  EXPECT_EQ(names("cuda:2,cuda:0", 2), "cuda:2 cuda:0");
  EXPECT_EQ(names("cuda:1", 3), "cuda:1 cuda:2 cuda:3");
  for (const auto& [text, ranks, why] :
       std::vector<std::tuple<const char*, int32_t, const char*>>{
           {"cpu", 0, "not within 1..64"},
           {"cpu", 65, "not within 1..64"},
           {"cuda:0,cuda:1", 3, "leave one of them out"},
           {"cuda,cpu", 1, "of one kind"},
           {"cuda,cuda:0", 1, "named twice"},
           {"cpu,cpu", 1, "--tensor-parallel 2"},
           {"cuda:0,", 1, "no device"}}) {
    EXPECT_THAT(names(text, ranks), testing::HasSubstr(why));
  }
}

}  // namespace
}  // namespace sluice
