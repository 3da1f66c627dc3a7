#include "scheduler/cost/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/paper/flexgen_overlap.h"

namespace sluice {
namespace {

DecoderSpec Model() {
  DecoderSpec model;
  model.num_layers = 4;
  model.hidden_size = model.embed_dim = 64;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.rotaries = {{.dim = model.head_dim}};
  model.intermediate_size = 128;
  model.vocab_size = 640;
  return model;
}
constexpr double kLayerElements = 2 * 4096 + 2 * 2048 + 3 * 8192;
constexpr double kKvBytes = 2 * 2 * 16 * 2;  // of a position in bfloat16

ComputeProfile Compute(double flops, double memory) {
  ComputeProfile compute;
  compute.memory_bytes_per_second = memory;
  for (const WeightFormat format :
       {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
    compute.products.push_back(
        {DType::kBFloat16, format, RateCurve::Constant(flops)});
  }
  compute.attention = {
      {KvFormat::kBFloat16, RateCurve::Constant(2e8), RateCurve::Constant(5e8)},
      {KvFormat::kInt4, RateCurve::Constant(1e8), RateCurve::Constant(4e8)}};
  compute.quantize_bytes_per_second = 1e7;
  compute.dequantize_bytes_per_second = 2e7;
  compute.layer_seconds = 0;
  return compute;
}

MachineProfile Cpu() {
  MachineProfile machine;
  machine.host_memory_bytes = uint64_t{1} << 30;
  machine.disk_bytes = uint64_t{1} << 34;
  machine.threads = 4;
  machine.host = Compute(1e9, 1e12);
  machine.disk.read_bytes_per_second = 1e6;
  machine.disk.write_bytes_per_second = 5e5;
  machine.links = {{"", 1e5, 1e-3}};
  return machine;
}

MachineProfile Gpu() {
  MachineProfile machine = Cpu();
  machine.device_memory_bytes = uint64_t{1} << 26;
  machine.device_compute = Compute(1e11, 1e12);
  machine.device_compute.attention[0].decode_bytes_by_context =
      RateCurve::Constant(1e9);
  machine.host_to_device_bytes_per_second = 4e6;
  machine.device_to_host_bytes_per_second = 2e6;
  return machine;
}

class CostModelTest : public testing::Test {
 protected:
  CostModelTest() {
    stage_.model = &model_;
    stage_.machine = &machine_;
    stage_.layers = {0, 4};
    stage_.longest = 128;
    stage_.policy.dtype = DType::kBFloat16;
    stage_.policy.gbs = 8;
    stage_.policy.num_microbatches = 2;
    stage_.policy.max_step_tokens = 64;
  }

  double LayerBytes() const {
    return static_cast<double>(stage_.Sizes()->units[0]);
  }

  double Seconds(Resource resource, const Fractions& f) {
    return StepCost(stage_, step_)[static_cast<int>(resource)].At(f);
  }

  DecoderSpec model_ = Model();
  MachineProfile machine_ = Cpu();
  StageCase stage_;
  // Two micro-batches with 8 decoding rows each at 100 positions.
  StepShape step_{.count = 1,
                  .micro_batches = 2,
                  .decode_rows = 16,
                  .decode_positions = 1600,
                  .read_positions = 1584,
                  .head_rows = 16};
  const Fractions in_memory_ = {0, 1, 0, 0, 1, 0, 0, 1, 0};
  const Fractions weights_on_disk_ = {0, 0, 1, 0, 1, 0, 0, 1, 0};
  const Fractions kv_on_disk_ = {0, 1, 0, 0, 0, 1, 0, 1, 0};
  const Fractions activations_on_disk_ = {0, 1, 0, 0, 1, 0, 0, 0, 1};
};

TEST_F(CostModelTest, FractionsThereAndBack) {
  Policy policy;
  const Fractions fractions = {0.1, 0.2, 0.7, 0.3, 0.3, 0.4, 0, 1, 0};
  SetFractions(fractions, &policy);
  EXPECT_EQ(FractionsOf(policy), fractions);
  EXPECT_EQ(policy.weights.disk, 0.7);
  EXPECT_EQ(policy.kv_cache.device, 0.3);
  EXPECT_EQ(policy.activations.host, 1);
  EXPECT_FALSE(policy.automatic_weights || policy.automatic_kv_cache ||
               policy.automatic_activations);
  EXPECT_THAT(SupportOf(fractions),
              testing::ElementsAre(true, true, true, true, true, true, false,
                                   true, false));
}

TEST_F(CostModelTest, LinearFormsAddUp) {
  LinearForm form = {.constant = 1, .slope = {2}};
  form.Add({.constant = 10, .slope = {0, 3}}, 2);
  EXPECT_EQ(form.At({1, 1}), 21 + 2 + 6);
}

TEST_F(CostModelTest, ResourcesHaveNames) {
  for (int r = 0; r < kNumResources; ++r) {
    EXPECT_FALSE(ResourceName(static_cast<Resource>(r)).empty()) << r;
  }
}

TEST_F(CostModelTest, NothingOnDiskTakesNoDiskTime) {
  stage_.may_use = SupportOf(in_memory_);
  for (const Resource r :
       {Resource::kDiskRead, Resource::kDiskWrite, Resource::kHostToDevice,
        Resource::kDeviceToHost, Resource::kHostCompute, Resource::kLink}) {
    EXPECT_EQ(Seconds(r, in_memory_), 0) << ResourceName(r);
  }
}

TEST_F(CostModelTest, WeightsAreReadOnceForAllMicroBatches) {
  stage_.layers = {1, 3};  // no embedding, no head
  const double bytes = 2 * LayerBytes();
  // Norms and biases come to little.
  EXPECT_NEAR(bytes, 2 * 2 * kLayerElements, 0.1 * bytes);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, weights_on_disk_), bytes / 1e6,
              1e-9);
  stage_.policy.schedule = Schedule::kRowByRow;
  EXPECT_NEAR(Seconds(Resource::kDiskRead, weights_on_disk_), 2 * bytes / 1e6,
              1e-9);
}

// Two ranks: each has half of the products and of attention, and gets half of
// what a layer exchanges: attention's 64 columns and the MLP's 128 in bfloat16,
// and 64 of the stream twice in float32.
TEST_F(CostModelTest, RanksDivideALayerAndExchangeItsColumns) {
  stage_.layers = {1, 3};
  step_.head_rows = 0;
  machine_.ranks = 1;
  machine_.links.clear();
  const double alone = Seconds(Resource::kDeviceCompute, in_memory_);
  machine_.ranks = 2;
  machine_.exchange = {1e6, 1e-3};
  const double row = ((64 + 128) * 2 + 2 * 4 * 64) / 2.0;
  // Two micro-batches, whose rows begin at the leading rank.
  const double exchange =
      (16 * (2 * row + 4 * 64)) / 1e6 + 2 * (2 * 4 + 1) * 1e-3;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              alone / 2 + exchange, 1e-9);
  EXPECT_EQ(Seconds(Resource::kDiskRead, in_memory_), 0);
  // One disk has the weights of both.
  const double bytes = 2 * 2 * LayerBytes();
  EXPECT_GE(bytes, 2 * 2 * kLayerElements);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, weights_on_disk_), bytes / 1e6,
              1e-9);
}

TEST_F(CostModelTest, TheLeadingRankGetsAllLogits) {
  stage_.layers = {2, 4};
  machine_.links.clear();
  machine_.ranks = 2;
  machine_.exchange = {1e6, 1e-3};
  const double with = Seconds(Resource::kDeviceCompute, in_memory_);
  step_.head_rows = 0;
  const double without = Seconds(Resource::kDeviceCompute, in_memory_);
  const double head = 2.0 * 16 * (640 / 2) * 64 / 1e9;
  EXPECT_NEAR(with - without, head + 16 * 640 * 4 / 2 / 1e6 + 1e-3, 1e-9);
}

// More ranks than KV heads, and heads that can't be divided.
TEST_F(CostModelTest, RanksThatShareHeads) {
  EXPECT_EQ(RankWorkOf(model_, {0, 1}, stage_.policy, 4).kv_width, 16);
  EXPECT_EQ(RankWorkOf(model_, {0, 1}, stage_.policy, 4).query_width, 16);
  EXPECT_EQ(RankWorkOf(model_, {0, 1}, stage_.policy, 4).exchanges, 4);
  const RankWork many = RankWorkOf(model_, {0, 1}, stage_.policy, 8);
  EXPECT_EQ(many.query_width, 64);
  EXPECT_EQ(many.exchanges, 3);
  const RankWork one = RankWorkOf(model_, {0, 1}, stage_.policy, 1);
  EXPECT_EQ(one.layer_elements(), kLayerElements);
  EXPECT_EQ(one.exchanges + one.exchanged_bytes, 0);
}

// What a group holds are its ranks' bytes, as the capacities' rows have them.
TEST_F(CostModelTest, CapacitiesOfRanksAddUp) {
  for (MachineProfile machine : {Cpu(), Gpu()}) {
    machine.ranks = 3;
    machine.exchange = {1e9, 1e-5};
    stage_.machine = &machine;
    const Fractions at = machine.has_device()
                             ? Fractions{0.3, 0.3, 0.4, 0.5, 0.5, 0, 1, 0, 0}
                             : Fractions{0, 0.6, 0.4, 0, 1, 0, 0, 1, 0};
    const RanksPlacement placement = PlacementOf(stage_, at);
    const auto ranks = stage_.Ranks();
    EXPECT_EQ(ranks->count(), 3);
    uint64_t host = 0, disk = 0, device = 0;
    for (int32_t rank = 0; rank < 3; ++rank) {
      Policy policy = stage_.policy;
      SetFractions(at, &policy);
      const StagePlacement one = Place(
          StageSizes(stage_.Shape(rank)), policy,
          {machine.device_memory_bytes, uint64_t{1} << 50, uint64_t{1} << 50});
      host += one.use(Tier::kHost).peak_bytes();
      disk += one.use(Tier::kDisk).peak_bytes();
      device = std::max(device, one.use(Tier::kDevice).peak_bytes());
    }
    EXPECT_EQ(placement.use(Tier::kHost).peak_bytes, host);
    EXPECT_EQ(placement.use(Tier::kDisk).peak_bytes, disk);
    EXPECT_EQ(placement.use(Tier::kDevice).peak_bytes, device);
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      if (tier == Tier::kDevice && !machine.has_device()) continue;
      double most = 0;
      for (const CapacityRow& row : CapacityRows(stage_, at, placement)) {
        if (row.tier == tier) most = std::max(most, row.bytes.At(at));
      }
      EXPECT_NEAR(most, static_cast<double>(placement.use(tier).peak_bytes), 1);
    }
  }
}

TEST_F(CostModelTest, TheHeadIsReadToo) {
  stage_.layers = {2, 4};
  const auto bytes = static_cast<double>(stage_.Sizes()->streamable);
  EXPECT_GE(bytes - 2 * LayerBytes(), 2 * 640 * 64);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, weights_on_disk_), bytes / 1e6,
              1e-9);
}

TEST_F(CostModelTest, WithWeightsOnDiskTheEmbeddingIsLookedUpThere) {
  model_.vocab_size = 200000;  // or else its table is smaller than its buffers
  stage_.layers = {0, 2};
  StageCase without = stage_;
  without.may_use = SupportOf(in_memory_);
  const ResourceForms forms = StepCost(stage_, step_);
  const ResourceForms none = StepCost(without, step_);
  // A row of 128 bytes is read as a block of 4096, now and then as two.
  const double seconds = 16 * (128 + 4096 - 128) / 1e6;
  EXPECT_NEAR(forms[0].constant - none[0].constant, seconds, 1e-9);
  const int compute = static_cast<int>(Resource::kDeviceCompute);
  EXPECT_NEAR(forms[compute].constant - none[compute].constant, seconds, 1e-9)
      << "the sweep waits for them";
  // Small requests have a rate of their own.
  machine_.disk.rates = {
      {4096, 1, 1e5, 1e5}, {4096, 32, 4e5, 1e5}, {65536, 32, 9e5, 1e5}};
  EXPECT_NEAR(StepCost(stage_, step_)[0].constant, seconds * 1e6 / 4e5, 1e-9);
}

TEST_F(CostModelTest, KvOnDiskIsReadAndWrittenByPages) {
  const double position = kKvBytes;  // a page is 2 heads of 2 KiB
  EXPECT_EQ(stage_.Sizes()->kv.layer_page_bytes(), 32 * position);
  stage_.may_use = SupportOf(kv_on_disk_);
  // A sequence's pages hold half a page more than its positions, on average.
  EXPECT_NEAR(Seconds(Resource::kDiskRead, kv_on_disk_),
              4 * (1584 + 16 * 15.5) * position / 1e6, 1e-9);
  // Each new position writes a page.
  EXPECT_NEAR(Seconds(Resource::kDiskWrite, kv_on_disk_),
              4 * 16 * 32 * position / 5e5, 1e-9);
  step_ = {.count = 1,
           .micro_batches = 2,
           .prefill_rows = 100,
           .prefill_chunks = 2,
           .prefill_pairs = 2550,
           .head_rows = 2};
  EXPECT_EQ(Seconds(Resource::kDiskRead, kv_on_disk_), 0);
  EXPECT_NEAR(Seconds(Resource::kDiskWrite, kv_on_disk_),
              4 * (100 + 31) * position / 5e5, 1e-9);
}

TEST_F(CostModelTest, ReadingTakesTheCoresSomeTime) {
  for (const Fractions& f :
       {weights_on_disk_, kv_on_disk_, activations_on_disk_}) {
    stage_.may_use = SupportOf(f);
    const double disk = Seconds(Resource::kDiskRead, f);
    const double before = Seconds(Resource::kDeviceCompute, f);
    machine_.disk.compute_seconds_per_byte = 2e-8;  // a fiftieth of a second
    // The lookup of the embedding, which is small, is left out.
    EXPECT_NEAR(Seconds(Resource::kDeviceCompute, f) - before, disk * 0.02,
                disk * 0.001);
    EXPECT_DOUBLE_EQ(Seconds(Resource::kDiskRead, f), disk);
    machine_.disk.compute_seconds_per_byte = 0;
  }
  machine_ = Gpu();
  machine_.disk.compute_seconds_per_byte = 2e-8;
  // Reads from disk take time of the host, and not of the device.
  const double host = Seconds(Resource::kHostCompute, weights_on_disk_);
  const double device = Seconds(Resource::kDeviceCompute, weights_on_disk_);
  machine_.disk.compute_seconds_per_byte = 0;
  EXPECT_GT(host, Seconds(Resource::kHostCompute, weights_on_disk_));
  EXPECT_DOUBLE_EQ(device, Seconds(Resource::kDeviceCompute, weights_on_disk_));
}

TEST_F(CostModelTest, ActivationsMoveBetweenTurns) {
  stage_.may_use = SupportOf(activations_on_disk_);
  const double bytes = 4 * 16 * 64 * 4;
  EXPECT_NEAR(Seconds(Resource::kDiskRead, activations_on_disk_), bytes / 1e6,
              1e-9);
  EXPECT_NEAR(Seconds(Resource::kDiskWrite, activations_on_disk_), bytes / 5e5,
              1e-9);
  // Each of two micro-batches makes a request of its own in each of four
  // layers.
  machine_.disk.rates = {{4096, 1, 4096 / 0.01, 4096 / 0.02},
                         {4096, 32, 4e6, 4e6},
                         {65536, 1, 4e6, 4e6}};
  EXPECT_NEAR(Seconds(Resource::kDiskRead, activations_on_disk_),
              bytes / 1e6 + 8 * 0.01, 1e-9);
  EXPECT_NEAR(Seconds(Resource::kDiskWrite, activations_on_disk_),
              bytes / 5e5 + 8 * 0.02, 1e-9);
  // A single micro-batch waits for nobody, and row by row nobody waits.
  step_.micro_batches = 1;
  EXPECT_EQ(Seconds(Resource::kDiskRead, activations_on_disk_), 0);
  step_.micro_batches = 2;
  stage_.policy.schedule = Schedule::kRowByRow;
  EXPECT_EQ(Seconds(Resource::kDiskWrite, activations_on_disk_), 0);
}

// 16 rows take 2 of 8 experts each.
TEST_F(CostModelTest, RowsMeetTheExpertsThatTheyTake) {
  stage_.layers = {1, 3};
  model_.mixture = {.experts = 8, .experts_per_token = 2, .expert_size = 32};
  model_.layers.assign(4, {.mixture = true});
  const double attention = 2 * kKvBytes * 1600 / 2e8;
  const double dense = 2 * 4096 + 2 * 2048, expert = 3 * 64 * 32;
  EXPECT_EQ(RowElements(model_, model_.layer(0)), dense + 2 * expert);
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * (dense + 2 * expert) * 16 / 1e9 + attention, 1e-12);
  // Nearly all experts are read for 16 rows, and few for one.
  const double many = Seconds(Resource::kDiskRead, weights_on_disk_);
  EXPECT_GT(many, 2 * 2 * (dense + 7.9 * expert) / 1e6);
  step_.decode_rows = 1;
  step_.micro_batches = 1;
  const double few = Seconds(Resource::kDiskRead, weights_on_disk_);
  EXPECT_LT(few, 0.6 * many);
  EXPECT_GT(few, 2 * 2 * (dense + 2 * expert) / 1e6);
}

TEST_F(CostModelTest, ComputesProductsAndAttention) {
  stage_.layers = {1, 3};
  const double products = 2 * 2 * kLayerElements * 16 / 1e9;
  const double attention = 2 * kKvBytes * 1600 / 2e8;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              products + attention, 1e-12);
  // Attention of prompts is counted in flops.
  step_ = {.count = 1,
           .micro_batches = 1,
           .prefill_rows = 50,
           .prefill_chunks = 1,
           .prefill_pairs = 1275,
           .head_rows = 1};
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * (2 * kLayerElements * 50 / 1e9 + 4 * 64 * 1275 / 5e8), 1e-12);
}

TEST_F(CostModelTest, RatesAreCurves) {
  stage_.layers = {1, 3};
  // Eight rows in a micro-batch are half way between, on a scale of logarithms.
  machine_.host.products[0].flops_by_rows = RateCurve({{4, 1e8}, {16, 3e8}});
  machine_.host.attention[0].decode_bytes_by_context =
      RateCurve({{50, 1e8}, {100, 5e8}});
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * kLayerElements * 16 / 2e8 + 2 * kKvBytes * 1600 / 5e8,
              1e-9);
}

TEST_F(CostModelTest, NoFasterThanWeightsAreRead) {
  stage_.layers = {1, 3};
  machine_.host.memory_bytes_per_second = 1e6;
  // Each micro-batch reads the weights anew.
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * 2 * kLayerElements / 1e6 + 2 * kKvBytes * 1600 / 2e8,
              1e-9);
}

TEST_F(CostModelTest, TheHeadAndSampling) {
  stage_.layers = {2, 4};
  const double without =
      Seconds(Resource::kDeviceCompute, in_memory_) - 2 * 640 * 64 * 16 / 1e9;
  machine_.host.logit_seconds = 1e-6;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              without + 2 * 640 * 64 * 16 / 1e9 + 1e-6 * 640 * 16, 1e-9);
  // Rows of all micro-batches share a pass, as long as they fit.
  stage_.policy.max_step_tokens = 8;
  machine_.host.logit_seconds = 0;
  machine_.host.memory_bytes_per_second = 1e6;
  const double two = Seconds(Resource::kDeviceCompute, in_memory_);
  stage_.policy.max_step_tokens = 64;
  const double one = Seconds(Resource::kDeviceCompute, in_memory_);
  EXPECT_NEAR(two - one, 2 * 640 * 64 / 1e6, 1e-9);
}

TEST_F(CostModelTest, WhatCallsAndRowsCostBeside) {
  stage_.layers = {1, 3};
  const double before = Seconds(Resource::kDeviceCompute, in_memory_);
  machine_.host.layer_seconds = 1e-3;
  machine_.host.row_element_seconds = 1e-8;
  machine_.step_seconds = 5e-3;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_) - before,
              2 * 2 * 1e-3 + 2 * 16 * 64 * 1e-8 + 5e-3, 1e-9);
}

TEST_F(CostModelTest, QuantizedWeightsAreDequantizedOnceForSeveral) {
  stage_.layers = {1, 3};
  stage_.policy.compress_weights = WeightFormat::kInt4;
  machine_.host.products[2].flops_by_rows = RateCurve::Constant(5e8);
  const double attention = 2 * kKvBytes * 1600 / 2e8;
  const double full = 2 * 2 * kLayerElements;  // bytes
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * kLayerElements * 16 / 1e9 + full / 2e7 + attention, 1e-9);
  // FlexGen dequantizes for each micro-batch.
  stage_.options.dequantize_per_micro_batch = true;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * kLayerElements * 16 / 1e9 + 2 * full / 2e7 + attention,
              1e-9);
  // A single micro-batch dequantizes inside its products, at their rate.
  stage_.options.dequantize_per_micro_batch = false;
  stage_.policy.num_microbatches = 1;
  step_.micro_batches = 1;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              2 * 2 * kLayerElements * 16 / 5e8 + attention, 1e-9);
  // Quantized weights are fewer bytes to read.
  EXPECT_NEAR(Seconds(Resource::kDiskRead, weights_on_disk_),
              2 * kLayerElements * 0.5625 / 1e6,
              0.3 * 2 * kLayerElements * 0.5625 / 1e6);
}

TEST_F(CostModelTest, QuantizedKv) {
  stage_.layers = {1, 3};
  stage_.policy.compress_kv = WeightFormat::kInt4;
  const double products = 2 * 2 * kLayerElements * 16 / 1e9;
  const double int4 = 2 * 2 * (8 + 4);
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              products + 2 * int4 * 1600 / 1e8, 1e-9);
}

TEST_F(CostModelTest, SparseAttentionReadsLessOfV) {
  stage_.layers = {1, 3};
  const double products = 2 * 2 * kLayerElements * 16 / 1e9;
  stage_.policy.sparsity = 0.1F;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              products + 2 * kKvBytes * 1600 * 0.55 / 2e8, 1e-6);
}

TEST_F(CostModelTest, FewerThreadsComputeSlower) {
  stage_.layers = {1, 3};
  machine_.host.share_by_threads = RateCurve({{1, 0.4}, {4, 1.0}});
  const double all = Seconds(Resource::kDeviceCompute, in_memory_);
  stage_.policy.compute_threads = 1;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_), all / 0.4, 1e-9);
  stage_.policy.compute_threads = 4;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_), all, 1e-12);
}

TEST_F(CostModelTest, LinksCarryActivations) {
  EXPECT_EQ(Seconds(Resource::kLink, in_memory_), 0) << "the last stage";
  stage_.layers = {0, 2};
  EXPECT_NEAR(Seconds(Resource::kLink, in_memory_), 16 * 64 * 4 / 1e5, 1e-9);
  stage_.policy.link_dtype = DType::kBFloat16;
  EXPECT_NEAR(Seconds(Resource::kLink, in_memory_), 16 * 64 * 2 / 1e5, 1e-9);
  // Two micro-batches, four credits: half a round trip.
  machine_.links = {{"", 1e5, 0.5}};
  EXPECT_NEAR(Seconds(Resource::kLink, in_memory_), 0.5, 1e-9);
}

// The worker charges the buffers before it loads the stage (StageRunner).
TEST_F(CostModelTest, LinksByNcclTakeDeviceMemory) {
  machine_ = Gpu();
  machine_.device = "cuda:0: made up";
  stage_.policy.max_step_tokens = 128;
  const auto device = [&](LayerRange layers, bool nccl) {
    stage_.layers = layers;
    machine_.nccl_links = nccl;
    return LimitsOf(stage_)[0];
  };
  const uint64_t all = machine_.device_memory_bytes;
  const auto payload =
      uint64_t{4} * 128 * static_cast<uint64_t>(model_.hidden_size);
  EXPECT_EQ(device({1, 3}, false), all);
  EXPECT_EQ(device({0, 4}, true), all) << "no neighbours";
  EXPECT_EQ(device({0, 2}, true), all - 2 * payload);
  EXPECT_EQ(device({2, 4}, true), all - 2 * payload);
  EXPECT_EQ(device({1, 3}, true), all - 4 * payload);
  machine_.device_memory_bytes = payload;
  EXPECT_EQ(device({1, 3}, true), 0);
  EXPECT_EQ(LimitsOf(stage_)[1], machine_.host_memory_bytes);
}

TEST_F(CostModelTest, AFormatWithoutARateTakesTheNearest) {
  stage_.layers = {1, 3};
  const double full = Seconds(Resource::kDeviceCompute, in_memory_);
  stage_.policy.dtype = DType::kFloat32;
  EXPECT_GT(Seconds(Resource::kDeviceCompute, in_memory_), 0.5 * full);
  stage_.policy.dtype = DType::kBFloat16;
  // Quantized products that nobody measured are dequantized first.
  machine_.host.products.resize(1);
  stage_.policy.compress_weights = WeightFormat::kInt4;
  stage_.policy.num_microbatches = 1;
  step_.micro_batches = 1;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, in_memory_),
              full + 2 * 2 * kLayerElements / 2e7, 1e-9);
}

class DeviceCostTest : public CostModelTest {
 protected:
  DeviceCostTest() { machine_ = Gpu(); }
  const Fractions on_device_ = {1, 0, 0, 1, 0, 0, 1, 0, 0};
};

TEST_F(DeviceCostTest, WhatIsOnTheDeviceStaysThere) {
  stage_.layers = {1, 3};
  stage_.policy.attention_site = AttentionSite::kDevice;
  // Only the residual stream comes in and goes out.
  const double bytes = 16 * 64 * 4;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, on_device_), bytes / 4e6, 1e-12);
  EXPECT_NEAR(Seconds(Resource::kDeviceToHost, on_device_), bytes / 2e6, 1e-12);
  EXPECT_EQ(Seconds(Resource::kHostCompute, on_device_), 0);
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, on_device_),
              2 * 2 * kLayerElements * 16 / 1e11 + 2 * kKvBytes * 1600 / 1e9,
              1e-12);
}

TEST_F(DeviceCostTest, WeightsGoUpTheWholeWay) {
  stage_.layers = {1, 3};
  const double bytes = 2 * LayerBytes();
  Fractions f = on_device_;
  const double none = Seconds(Resource::kHostToDevice, f);
  f[0] = 0.25, f[1] = 0.5, f[2] = 0.25;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f) - none, 0.75 * bytes / 4e6,
              1e-9);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, f), 0.25 * bytes / 1e6, 1e-9);
}

TEST_F(DeviceCostTest, KvAttendedOnTheHostNeverCrosses) {
  stage_.layers = {1, 3};
  const Fractions f = {1, 0, 0, 0.25, 0.5, 0.25, 1, 0, 0};
  const double base_in = 16 * 64 * 4 / 4e6, base_out = 16 * 64 * 4 / 2e6;
  // The q, k and v of 64 + 2 * 32 columns go there, and results of 64 come
  // back.
  EXPECT_NEAR(Seconds(Resource::kDeviceToHost, f),
              base_out + 2 * 16 * 128 * 4 / 2e6 * 0.75, 1e-9);
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f),
              base_in + 2 * 16 * 64 * 2 / 4e6 * 0.75, 1e-9);
  EXPECT_NEAR(Seconds(Resource::kHostCompute, f),
              0.75 * 2 * kKvBytes * 1600 / 2e8, 1e-9);
  EXPECT_NEAR(
      Seconds(Resource::kDeviceCompute, f),
      2 * 2 * kLayerElements * 16 / 1e11 + 0.25 * 2 * kKvBytes * 1600 / 1e9,
      1e-9);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, f),
              0.25 * 2 * (1584 + 16 * 15.5) * kKvBytes / 1e6, 1e-9);
}

TEST_F(DeviceCostTest, KvAttendedOnTheDeviceCrosses) {
  stage_.layers = {1, 3};
  stage_.policy.attention_site = AttentionSite::kDevice;
  const Fractions f = {1, 0, 0, 0.25, 0.5, 0.25, 1, 0, 0};
  const double base_in = 16 * 64 * 4 / 4e6, base_out = 16 * 64 * 4 / 2e6;
  const double read = 2 * (1584 + 16 * 15.5) * kKvBytes;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f), base_in + 0.75 * read / 4e6,
              1e-9);
  EXPECT_NEAR(Seconds(Resource::kDeviceToHost, f),
              base_out + 0.75 * 2 * 16 * 32 * kKvBytes / 2e6, 1e-9);
  EXPECT_EQ(Seconds(Resource::kHostCompute, f), 0);
  // KV that lives in pageable memory goes through it.
  stage_.options.kv_in_share = 0.5;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f),
              base_in + 0.5 * read / 2e6 + 0.25 * read / 4e6, 1e-9);
}

TEST_F(DeviceCostTest, TokensAreSampledThere) {
  stage_.layers = {2, 4};
  const double before = Seconds(Resource::kDeviceCompute, on_device_);
  const double host = Seconds(Resource::kHostCompute, on_device_);
  machine_.host.logit_seconds = 1;
  EXPECT_EQ(Seconds(Resource::kDeviceCompute, on_device_), before);
  machine_.device_compute.logit_seconds = 1e-7;
  EXPECT_NEAR(Seconds(Resource::kDeviceCompute, on_device_) - before,
              1e-7 * 640 * 16, 1e-12);
  EXPECT_EQ(Seconds(Resource::kHostCompute, on_device_), host);
}

TEST_F(DeviceCostTest, FlexGenAttendsPromptsOnTheDevice) {
  stage_.layers = {1, 3};
  stage_.options = {.prefill_on_device = true,
                    .page_positions = 1,
                    .activation_bytes = 2,
                    .kv_out_share = 0.25};
  step_ = {.count = 1,
           .micro_batches = 2,
           .prefill_rows = 100,
           .prefill_chunks = 2,
           .prefill_pairs = 2550,
           .head_rows = 2};
  const Fractions f = {1, 0, 0, 0, 1, 0, 1, 0, 0};
  EXPECT_EQ(Seconds(Resource::kHostCompute, f), 0);
  EXPECT_NEAR(Seconds(Resource::kDeviceToHost, f),
              100 * 64 * 2 / 2e6 + 2 * 100 * kKvBytes / (0.25 * 2e6), 1e-9);
}

TEST_F(DeviceCostTest, ActivationsOfMicroBatchesThatWait) {
  stage_.layers = {1, 3};
  const Fractions f = {1, 0, 0, 1, 0, 0, 0.5, 0.25, 0.25};
  const double bytes = 16 * 64 * 4;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f),
              bytes / 4e6 + 0.5 * 2 * bytes / 4e6, 1e-9);
  EXPECT_NEAR(Seconds(Resource::kDiskRead, f), 0.25 * 2 * bytes / 1e6, 1e-9);
  // FlexGen's halves of a layer are layers of their own.
  stage_.options.activation_turns = 2;
  EXPECT_NEAR(Seconds(Resource::kHostToDevice, f),
              bytes / 4e6 + 0.5 * 4 * bytes / 4e6, 1e-9);
}

TEST_F(DeviceCostTest, StepSecondsByOverlap) {
  const Fractions f = {0.25, 0.5, 0.25, 0.25, 0.5, 0.25, 0.5, 0.25, 0.25};
  double longest = 0, sum = 0;
  for (const LinearForm& form : StepCost(stage_, step_)) {
    longest = std::max(longest, form.At(f));
    sum += form.At(f);
  }
  EXPECT_NEAR(StepSeconds(stage_, step_, f), longest, 1e-12);
  stage_.options.overlap = Overlap::kNone;
  EXPECT_NEAR(StepSeconds(stage_, step_, f), sum, 1e-12);
  stage_.options.overlap = Overlap::kFull;
  stage_.policy.overlap = false;
  EXPECT_NEAR(StepSeconds(stage_, step_, f), sum, 1e-12);
}

TEST_F(DeviceCostTest, ABarrierHidesWeightsBehindTheFirstMicroBatch) {
  // The case can be followed by hand: two layers without a head, KV on the
  // device, weights on the host.
  stage_.layers = {1, 3};
  stage_.options = {
      .activation_bytes = 0, .activation_turns = 2, .seconds = BarrierSeconds};
  machine_.device_compute = Compute(1e9, 1e12);
  machine_.links.clear();
  step_.micro_batches = 4;
  const Fractions f = {0, 1, 0, 1, 0, 0, 1, 0, 0};
  const double weights = LayerBytes() / 4e6;  // of a layer
  const double attention_weights = 2 * 4096 + 2 * 2048, mlp = 3 * 8192;
  const double share = attention_weights / (attention_weights + mlp);
  const double first = 2 * attention_weights * 4 / 1e9 + kKvBytes * 400 / 2e8;
  const double second = 2 * mlp * 4 / 1e9;
  // The bus is what is waited for.
  ASSERT_GT((1 - share) * weights, first);
  ASSERT_GT(share * weights, second);
  EXPECT_NEAR(StepSeconds(stage_, step_, f),
              2 * (weights + 3 * (first + second)), 1e-9);
  // A bus that is faster than a micro-batch is not waited for.
  machine_.host_to_device_bytes_per_second = 1e12;
  EXPECT_NEAR(StepSeconds(stage_, step_, f), 2 * 4 * (first + second), 1e-9);
}

// Properties of many stages.
TEST(CostModelPropertyTest, LinearMonotoneAndBetweenItsBounds) {
  std::mt19937 random(3);
  const auto uniform = [&] {
    return static_cast<double>(random()) / std::mt19937::max();
  };
  const auto any = [&](int from, int to) {
    return from + static_cast<int>(random() % (to - from + 1));
  };
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    DecoderSpec model = Model();
    model.num_layers = any(2, 12);
    model.gated_mlp = any(0, 1) == 1;
    MachineProfile machine = any(0, 1) == 1 ? Gpu() : Cpu();
    StageCase stage;
    stage.model = &model;
    stage.machine = &machine;
    stage.layers.begin = any(0, model.num_layers - 1);
    stage.layers.end = any(stage.layers.begin + 1, model.num_layers);
    stage.longest = any(1, 500);
    stage.policy.dtype = DType::kBFloat16;
    stage.policy.num_microbatches = any(1, 5);
    stage.policy.compress_weights = static_cast<WeightFormat>(any(0, 2));
    stage.policy.compress_kv =
        any(0, 1) == 1 ? WeightFormat::kInt4 : WeightFormat::kFull;
    stage.policy.attention_site = static_cast<AttentionSite>(any(0, 1));
    stage.policy.schedule = static_cast<Schedule>(any(0, 1));
    stage.options.prefill_on_device = any(0, 1) == 1;
    StepShape step;
    step.micro_batches = any(1, stage.policy.num_microbatches);
    step.decode_rows = any(0, 50);
    step.decode_positions = step.decode_rows * any(1, 400);
    step.prefill_rows = any(1, 300);
    step.prefill_chunks = any(1, 5);
    step.prefill_pairs = step.prefill_rows * any(1, 300);
    step.read_positions = step.decode_positions;
    step.head_rows = step.decode_rows + step.prefill_chunks;
    Fractions f;
    for (int kind = 0; kind < 3; ++kind) {
      const double a = uniform(), b = uniform() * (1 - a);
      f[3 * kind] = a, f[3 * kind + 1] = b, f[3 * kind + 2] = 1 - a - b;
    }
    const ResourceForms forms = StepCost(stage, step);
    for (int r = 0; r < kNumResources; ++r) {
      const double at = forms[r].At(f);
      EXPECT_GE(at, 0) << r;
      for (int k = 0; k < kNumFractions; ++k) {
        // Finite differences are the slopes.
        Fractions moved = f;
        moved[k] += 0.125;
        EXPECT_NEAR(forms[r].At(moved) - at, 0.125 * forms[r].slope[k],
                    1e-9 * (1 + at));
        EXPECT_GE(forms[r].slope[k], 0);
      }
      if (!machine.has_device()) {
        // Device and host are one.
        for (int kind = 0; kind < 3; ++kind) {
          EXPECT_EQ(forms[r].slope[3 * kind], forms[r].slope[3 * kind + 1]);
        }
      }
    }
    // FlexGen's schedule is between everything at once and one by one.
    const double full = StepSeconds(stage, step, f);
    StageCase none = stage, barrier = stage;
    none.options.overlap = Overlap::kNone;
    barrier.options.activation_turns = 2;
    barrier.options.seconds = BarrierSeconds;
    EXPECT_LE(full, StepSeconds(none, step, f) * (1 + 1e-12));
    StageCase same = barrier;  // its activations move twice as often
    ResourceForms twice = StepCost(same, step);
    double longest = 0, sum = 0;
    for (const LinearForm& form : twice) {
      longest = std::max(longest, form.At(f));
      sum += form.At(f);
    }
    EXPECT_GE(StepSeconds(barrier, step, f), longest * (1 - 1e-12));
    EXPECT_LE(StepSeconds(barrier, step, f), sum * (1 + 1e-12));
    // Faster machines are no slower; more rows are no faster.
    MachineProfile faster = machine;
    faster.disk.read_bytes_per_second *= 2;
    faster.disk.write_bytes_per_second *= 2;
    faster.host_to_device_bytes_per_second *= 2;
    faster.device_to_host_bytes_per_second *= 2;
    faster.host.products[0].flops_by_rows =
        machine.host.products[0].flops_by_rows.Scaled(2);
    StageCase on_faster = stage;
    on_faster.machine = &faster;
    EXPECT_LE(StepSeconds(on_faster, step, f), full * (1 + 1e-12));
    StepShape more = step;
    more.prefill_rows *= 2;
    more.prefill_pairs *= 2;
    EXPECT_GE(StepSeconds(stage, more, f), full * (1 - 1e-12));
  }
}

}  // namespace
}  // namespace sluice
