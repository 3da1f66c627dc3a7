// The probes of a device with memory of its own, on the discrete CPU.

#include <memory>

#include "gtest/gtest.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/profile/attention_probe.h"
#include "runtime/profile/layer_probe.h"
#include "runtime/profile/memory_probe.h"

namespace sluice {
namespace {

constexpr double kSeconds = 0.01;
constexpr int32_t kRows = 64;

class DeviceProbesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device =
        CreateDevice({BackendKind::kCpuDiscrete}, &device_memory_, nullptr);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override {
    EXPECT_EQ(device_memory_.used_bytes(), 0u);
    EXPECT_EQ(host_.used_bytes(), 0u);
  }
  LayerProbeOptions Layers(WeightFormat format) {
    return {.backend = BackendKind::kCpuDiscrete,
            .device = device_.get(),
            .device_budget = &device_memory_,
            .host_budget = &host_,
            .dtype = DType::kFloat32,
            .format = format,
            .max_rows = kRows};
  }
  AttentionProbeOptions Attention(KvFormat format) {
    return {.format = format,
            .budget = &host_,
            .backend = BackendKind::kCpuDiscrete,
            .device = device_.get(),
            .device_budget = &device_memory_,
            .max_rows = kRows};
  }

  MemoryBudget device_memory_{Tier::kDevice, uint64_t{64} << 20};
  MemoryBudget host_{Tier::kHost, uint64_t{256} << 20};
  std::unique_ptr<Device> device_;
};

TEST_F(DeviceProbesTest, Products) {
  for (const WeightFormat format : {WeightFormat::kFull, WeightFormat::kInt4}) {
    auto probe = LayerProbe::Create(Layers(format));
    ASSERT_TRUE(probe.ok()) << probe.status();
    const auto curve = (*probe)->FlopsByRows(kSeconds, nullptr);
    ASSERT_TRUE(curve.ok()) << curve.status();
    EXPECT_TRUE(curve->Check("products").ok());
    EXPECT_EQ(curve->points().front().x, 1);
    EXPECT_EQ(curve->points().back().x, kRows);
    if (format == WeightFormat::kFull) continue;
    const auto bytes = (*probe)->DequantizedBytes(kSeconds, nullptr);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_GT(*bytes, 0);
  }
}

TEST_F(DeviceProbesTest, OverheadsAreNoPartOfProducts) {
  LayerProbeOptions options = Layers(WeightFormat::kFull);
  options.overheads.layer_seconds = 3600;  // more than any layer takes
  auto probe = LayerProbe::Create(options);
  ASSERT_TRUE(probe.ok()) << probe.status();
  const auto most = (*probe)->FlopsByRows(kSeconds, nullptr);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_TRUE(most->Check("products").ok()) << "but something is left";
}

TEST_F(DeviceProbesTest, AttentionAndQuantization) {
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kInt4}) {
    const auto rate = MeasureAttention(Attention(format), kSeconds, nullptr);
    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_TRUE(rate->decode_bytes_by_context.Check("decode").ok());
    EXPECT_TRUE(rate->prefill_flops_by_context.Check("prefill").ok());
    EXPECT_LE(rate->decode_bytes_by_context.points().back().x, kRows);
  }
  const auto bytes =
      MeasureKvQuantization(Attention(KvFormat::kInt4), kSeconds, nullptr);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_GT(*bytes, 0);
}

TEST_F(DeviceProbesTest, Memory) {
  const auto within =
      MeasureDeviceMemory(device_.get(), device_memory_, kSeconds, nullptr);
  ASSERT_TRUE(within.ok()) << within.status();
  EXPECT_GT(*within, 0);
  const auto rates =
      MeasureCopies(device_.get(), &device_memory_, &host_, kSeconds, nullptr);
  ASSERT_TRUE(rates.ok()) << rates.status();
  EXPECT_GT(rates->to_device_bytes_per_second, 0);
  EXPECT_GT(rates->to_host_bytes_per_second, 0);
}

TEST_F(DeviceProbesTest, TooLittleMemoryIsAnError) {
  MemoryBudget little(Tier::kDevice, uint64_t{1} << 20);
  const auto device =
      CreateDevice({BackendKind::kCpuDiscrete}, &little, nullptr);
  ASSERT_TRUE(device.ok());
  LayerProbeOptions layers = Layers(WeightFormat::kFull);
  layers.device = device->get();
  layers.device_budget = &little;
  EXPECT_EQ(LayerProbe::Create(layers).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace sluice
