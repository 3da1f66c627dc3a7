// A profile of a machine with a GPU, which is emulated: what the figures are
// says nothing, but all of them are there, and nothing is left behind. The GPU
// is an old one; cuda_rehearsal_test has a profile of a new one.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/profile/profiler.h"
#include "tests/cuda/emulation/streams.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(CudaProfileTest, MeasuresAllThatThePlannerWants) {
  emulation::SetCapability(75);
  ProfilerOptions options;
  options.device = {BackendKind::kCuda};
  options.device_memory_bytes = uint64_t{128} << 20;
  options.host_memory_bytes = uint64_t{128} << 20;
  options.seconds = 0.01;
  std::vector<std::string> told;
  const auto profile = MeasureMachine(
      options,
      [&](absl::string_view what, double share) {
        told.emplace_back(what);
        EXPECT_LE(share, 1);
      },
      nullptr);
  emulation::SetCapability(90);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_TRUE(profile->Check().ok()) << profile->Check();
  EXPECT_THAT(profile->device, HasSubstr("cuda:0: emulated device, sm_75"));
  const ComputeProfile& device = profile->device_compute;
  for (const WeightFormat format :
       {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
    // Float16 takes the place of bfloat16, which such GPUs lack.
    const ProductRate* rate = device.Products(DType::kFloat16, format);
    ASSERT_NE(rate, nullptr);
    EXPECT_EQ(rate->flops_by_rows.points().back().x, 32);
    EXPECT_EQ(device.Products(DType::kBFloat16, format), nullptr);
    EXPECT_NE(device.Products(DType::kFloat32, format), nullptr);
  }
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16,
                                KvFormat::kInt8, KvFormat::kInt4}) {
    EXPECT_NE(device.Attention(format), nullptr);
  }
  EXPECT_GT(device.logit_seconds, 0);
  EXPECT_NE(device.logit_seconds, profile->host.logit_seconds);
  EXPECT_NE(device.products, profile->host.products);
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, total_bytes);
  EXPECT_THAT(told, testing::Contains("memory of the device"));
  EXPECT_EQ(told.back(), "done");
}

}  // namespace
}  // namespace sluice
