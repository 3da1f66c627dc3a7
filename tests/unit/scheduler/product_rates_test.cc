#include "scheduler/cost/product_rates.h"

#include <gtest/gtest.h>

#include "scheduler/cost/cost_model.h"

namespace sluice {
namespace {

// Full weights in bfloat16, and codes of two formats.
ComputeProfile Compute() {
  ComputeProfile compute;
  compute.memory_bytes_per_second = 1e12;
  compute.products = {
      {DType::kBFloat16, WeightFormat::kFull, RateCurve::Constant(1e9)}};
  compute.codes = {{"Q8_0", DType::kBFloat16, RateCurve::Constant(3e8), 7e6},
                   {"Q4_K", DType::kBFloat16, RateCurve::Constant(5e8), 4e6}};
  compute.attention = {{KvFormat::kBFloat16, RateCurve::Constant(2e8),
                        RateCurve::Constant(5e8)}};
  compute.quantize_bytes_per_second = 1e7;
  compute.dequantize_bytes_per_second = 2e7;
  return compute;
}

ProductRates RatesOf(const ComputeProfile& compute, const char* codes,
                     DType dtype = DType::kBFloat16) {
  return {compute, dtype, {.codes = FindCodeFormat(codes)}};
}

TEST(ProductRatesTest, CodesHaveRatesOfTheirOwn) {
  const ComputeProfile compute = Compute();
  const ProductRates rates = RatesOf(compute, "Q4_K");
  EXPECT_TRUE(rates.measured());
  EXPECT_DOUBLE_EQ(rates.Multiply(1e6, 8, 3), 2 * 1e6 * 8 * 3 / 5e8);
  EXPECT_DOUBLE_EQ(rates.Decode(1e6), 2 * 1e6 / 4e6);
}

TEST(ProductRatesTest, TheNearestCountsWhereNobodyMeasured) {
  ComputeProfile compute = Compute();
  // As many bits; the dtype matters less.
  EXPECT_DOUBLE_EQ(RatesOf(compute, "MXFP4").Multiply(1e6, 1, 1), 2e6 / 5e8);
  EXPECT_DOUBLE_EQ(RatesOf(compute, "Q6_K").Multiply(1e6, 1, 1), 2e6 / 3e8);
  EXPECT_DOUBLE_EQ(
      RatesOf(compute, "Q4_K", DType::kFloat32).Multiply(1e6, 1, 1), 2e6 / 5e8);
  // Scaled codes are decoded in another way than GGUF's.
  compute.codes.push_back(
      {"INT8_BF16", DType::kBFloat16, RateCurve::Constant(1e8), 1e6});
  EXPECT_DOUBLE_EQ(RatesOf(compute, "INT4_F16_G128").Multiply(1e6, 1, 1),
                   2e6 / 1e8);
}

TEST(ProductRatesTest, WithoutRatesOfCodesTheyAreDecodedAsOursAre) {
  ComputeProfile compute = Compute();
  compute.codes.clear();
  const ProductRates rates = RatesOf(compute, "Q4_K");
  EXPECT_FALSE(rates.measured());
  EXPECT_DOUBLE_EQ(rates.Decode(1e6), 2 * 1e6 / 2e7);
}

TEST(ProductRatesTest, NoFasterThanCodesAreRead) {
  ComputeProfile compute = Compute();
  compute.memory_bytes_per_second = 1e6;
  EXPECT_DOUBLE_EQ(RatesOf(compute, "Q8_0").Multiply(1e6, 1, 2),
                   2 * 1e6 * (34.0 / 32) / 1e6);
}

// Gate and up of each layer are in codes.
TEST(ProductRatesTest, StepsArePricedByTheFormsOfTheirWeights) {
  DecoderSpec model;
  model.num_layers = 4;
  model.hidden_size = model.embed_dim = 256;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.rotaries = {{.dim = 16}};
  model.intermediate_size = 512;
  model.vocab_size = 640;
  model.layers.resize(4);
  for (LayerSpec& layer : model.layers) {
    layer.codes.gate = layer.codes.up = FindCodeFormat("Q4_K");
  }
  MachineProfile machine;
  machine.host_memory_bytes = uint64_t{1} << 30;
  machine.threads = 4;
  machine.host = Compute();
  StageCase stage;
  stage.model = &model;
  stage.machine = &machine;
  stage.layers = {1, 3};
  stage.longest = 128;
  stage.policy.dtype = DType::kBFloat16;
  stage.policy.gbs = 8;
  stage.policy.max_step_tokens = 64;
  const auto seconds = [&](int micro_batches) {
    stage.policy.num_microbatches = micro_batches;
    const StepShape step = {
        .count = 1, .micro_batches = 1.0 * micro_batches, .prefill_rows = 16};
    return StepCost(stage, step)[static_cast<int>(Resource::kDeviceCompute)].At(
        {0, 1, 0, 0, 1, 0, 0, 1, 0});
  };
  const double coded = 2 * 256 * 512;
  const double numbers =
      static_cast<double>(LayerElements(model, model.layer(0))) - coded;
  // One micro-batch's products decode, several share full weights.
  EXPECT_NEAR(seconds(1), 2 * 2 * 16 * (numbers / 1e9 + coded / 5e8), 1e-9);
  EXPECT_NEAR(seconds(2),
              2 * 2 * 16 * (numbers + coded) / 1e9 + 2 * 2 * coded / 4e6, 1e-9);
}

}  // namespace
}  // namespace sluice
