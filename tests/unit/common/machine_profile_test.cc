#include "common/machine_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/sample_profile.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(RateCurveTest, IsStraightOverTheLogarithm) {
  const RateCurve curve({{1, 10}, {100, 30}, {200, 20}});
  EXPECT_EQ(curve.At(1), 10);
  EXPECT_DOUBLE_EQ(curve.At(10), 20);  // half of the way in log x
  EXPECT_EQ(curve.At(100), 30);
  EXPECT_DOUBLE_EQ(curve.At(100 * std::sqrt(2.0)), 25);
  EXPECT_EQ(curve.At(200), 20);
  EXPECT_EQ(curve.Best(), 30);
}

TEST(RateCurveTest, IsLevelOutside) {
  const RateCurve curve({{4, 10}, {100, 30}});
  EXPECT_EQ(curve.At(0), 10);
  EXPECT_EQ(curve.At(0.5), 10);
  EXPECT_EQ(curve.At(1e9), 30);
  EXPECT_EQ(RateCurve::Constant(7).At(0.001), 7);
  EXPECT_EQ(RateCurve::Constant(7).At(1e6), 7);
  EXPECT_EQ(RateCurve().Best(), 0);
}

TEST(RateCurveTest, Scales) {
  const RateCurve curve({{4, 10}, {100, 30}});
  EXPECT_EQ(curve.Scaled(0.5), RateCurve({{4, 5}, {100, 15}}));
  EXPECT_EQ(curve, RateCurve({{4, 10}, {100, 30}}));
}

TEST(RateCurveTest, ChecksItsPoints) {
  const struct {
    RateCurve curve;
    const char* error;
  } kCases[] = {
      {RateCurve(), "c: missing"},
      {RateCurve({{1, 1}, {2, 0}}), "c[1].rate: missing or 0"},
      {RateCurve({{1, -1}}), "c[0].rate: -1 must be"},
      {RateCurve({{1, kNan}}), "c[0].rate: nan must be"},
      {RateCurve({{1, kInf}}), "c[0].rate: inf must be"},
      {RateCurve({{1, 2e18}}), "c[0].rate: 2e+18 must be at most"},
      {RateCurve({{0, 1}}), "c[0].x: 0 must be"},
      {RateCurve({{-1, 1}}), "c[0].x: -1 must be"},
      {RateCurve({{kNan, 1}}), "c[0].x: nan must be"},
      {RateCurve({{1, 1}, {kInf, 1}}), "c[1].x: inf must be"},
      {RateCurve({{1, 1}, {1, 1}}), "c[1].x: 1 must be above"},
      {RateCurve({{2, 1}, {1, 1}}), "c[1].x: 1 must be above"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = c.curve.Check("c");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_THAT(std::string(status.message()), StartsWith(c.error));
  }
  EXPECT_TRUE(RateCurve({{0.5, 1}, {2, 1e18}}).Check("c").ok());
}

TEST(MachineProfileTest, FindsWhatItHas) {
  const MachineProfile p = SampleProfile();
  ASSERT_NE(p.host.Products(DType::kBFloat16, WeightFormat::kInt4), nullptr);
  EXPECT_EQ(p.host.Products(DType::kBFloat16, WeightFormat::kInt4)->weights,
            WeightFormat::kInt4);
  EXPECT_EQ(p.host.Products(DType::kFloat32, WeightFormat::kInt4), nullptr);
  ASSERT_NE(p.host.Attention(KvFormat::kInt4), nullptr);
  EXPECT_EQ(p.host.Attention(KvFormat::kInt4)->format, KvFormat::kInt4);
  EXPECT_EQ(p.host.Attention(KvFormat::kFloat32), nullptr);
  ASSERT_NE(p.Link("10.0.0.2:7080"), nullptr);
  EXPECT_EQ(p.Link("10.0.0.2:7080")->bytes_per_second, 1.25e9);
  EXPECT_EQ(p.Link("elsewhere")->bytes_per_second, 1e9);
  EXPECT_EQ(p.Link(""), p.Link("elsewhere"));
  EXPECT_EQ(MachineProfile().Link("elsewhere"), nullptr);
}

TEST(MachineProfileTest, TheDeviceRunsTheLayers) {
  MachineProfile p = SampleProfile();
  EXPECT_TRUE(p.has_device());
  EXPECT_EQ(&p.compute(), &p.device_compute);
  p.device_memory_bytes = 0;
  EXPECT_FALSE(p.has_device());
  EXPECT_EQ(&p.compute(), &p.host);
}

TEST(MachineProfileTest, GoodOnesPass) {
  MachineProfile p = SampleProfile();
  EXPECT_TRUE(p.Check().ok()) << p.Check();
  // Beside a device the host only attends.
  p.host.products.clear();
  EXPECT_TRUE(p.Check().ok()) << p.Check();

  MachineProfile cpu = SampleProfile();
  cpu.device_memory_bytes = 0;
  cpu.device_compute = ComputeProfile();
  cpu.host_to_device_bytes_per_second = 0;
  cpu.device_to_host_bytes_per_second = 0;
  cpu.disk_bytes = 0;
  cpu.disk = DiskProfile();
  cpu.links.clear();
  cpu.remarks.clear();
  cpu.step_seconds = 0;
  cpu.host.layer_seconds = 0;
  EXPECT_TRUE(cpu.Check().ok()) << cpu.Check();
}

// An error in a good profile, and its message.
struct Wrong {
  std::function<void(MachineProfile&)> with;
  const char* error;
};

TEST(MachineProfileTest, EachBadValueIsNamed) {
  using P = MachineProfile;
  const Wrong kWrong[] = {
      {[](P& p) { p.host_memory_bytes = 0; }, "host_memory_bytes: missing"},
      {[](P& p) { p.host_memory_bytes = uint64_t{1} << 51; },
       "host_memory_bytes: 2251799813685248 must be at most"},
      {[](P& p) { p.device_memory_bytes = uint64_t{1} << 51; },
       "device_memory_bytes: 2251799813685248 must be at most"},
      {[](P& p) { p.disk_bytes = uint64_t{1} << 61; },
       "disk_bytes: 2305843009213693952 must be at most"},
      {[](P& p) { p.threads = 0; }, "threads: 0 must be"},
      {[](P& p) { p.threads = -1; }, "threads: -1 must be"},
      {[](P& p) { p.threads = 1 << 20; }, "threads: 1048576 must be"},
      {[](P& p) { p.ranks = 0; }, "ranks: 0 must be"},
      {[](P& p) { p.ranks = 65; }, "ranks: 65 must be"},
      {[](P& p) { p.exchange.bytes_per_second = 0; },
       "exchange.bytes_per_second: missing"},
      {[](P& p) { p.exchange.bytes_per_second = -1; },
       "exchange.bytes_per_second: -1 must be"},
      {[](P& p) { p.exchange.latency_seconds = kNan; },
       "exchange.latency_seconds: nan must be"},
      {[](P& p) {
         p.rank_choices = {{4, 1, 1, {1e9, 0}}};
       },
       "rank_choices: given, but"},
      {[](P& p) {
         p.rank_choices = {{1, 1, 1, {1e9, 0}}};
       },
       "rank_choices[0].ranks: 1 must be above 1"},
      {[](P& p) {
         p.rank_choices = {{4, 1, 1, {1e9, 0}}, {2, 1, 1, {1e9, 0}}};
       },
       "rank_choices[1].ranks: 2 must be above 4"},
      {[](P& p) {
         p.rank_choices = {{65, 1, 1, {1e9, 0}}};
       },
       "rank_choices[0].ranks: 65 must be"},
      {[](P& p) {
         p.rank_choices = {{2, 0, 1, {1e9, 0}}};
       },
       "rank_choices[0].memory_share: missing or 0"},
      {[](P& p) {
         p.rank_choices = {{2, 1, kNan, {1e9, 0}}};
       },
       "rank_choices[0].product_share: nan"},
      {[](P& p) {
         p.rank_choices = {{2, 1, 1, {0, 0}}};
       },
       "rank_choices[0].exchange.bytes_per_second: missing"},
      {[](P& p) { p.host.memory_bytes_per_second = kNan; },
       "host.memory_bytes_per_second: nan"},
      {[](P& p) { p.device_compute.memory_bytes_per_second = 0; },
       "device_compute.memory_bytes_per_second: missing or 0"},
      {[](P& p) { p.device_compute.products.clear(); },
       "device_compute.products: missing"},
      {[](P& p) { p.device_compute = ComputeProfile(); },
       "device_compute.memory_bytes_per_second: missing or 0"},
      {[](P& p) { p.device_memory_bytes = 0; }, "device_compute: given, but"},
      {[](P& p) {
         p.device_memory_bytes = 0;
         p.device_compute = ComputeProfile();
         p.host.products.clear();
       },
       "host.products: missing"},
      {[](P& p) { p.host.products[1].flops_by_rows = RateCurve(); },
       "host.products[1].flops_by_rows: missing"},
      {[](P& p) {
         p.host.products[1].flops_by_rows = RateCurve({{1, 1e9}, {2, -1}});
       },
       "host.products[1].flops_by_rows[1].rate: -1"},
      {[](P& p) { p.host.products[2] = p.host.products[0]; },
       "host.products[2]: the same dtype and weights as host.products[0]"},
      {[](P& p) { p.host.codes.push_back(p.host.codes[0]); },
       "host.codes[1]: the same dtype and format as host.codes[0]"},
      {[](P& p) { p.host.codes[0].flops_by_rows = RateCurve(); },
       "host.codes[0].flops_by_rows: missing"},
      {[](P& p) { p.host.codes[0].decode_bytes_per_second = 0; },
       "host.codes[0].decode_bytes_per_second: missing or 0"},
      {[](P& p) { p.host.attention.clear(); }, "host.attention: missing"},
      {[](P& p) { p.host.attention[1] = p.host.attention[0]; },
       "host.attention[1]: the same format as host.attention[0]"},
      {[](P& p) {
         p.device_compute.attention[0].decode_bytes_by_context = RateCurve();
       },
       "device_compute.attention[0].decode_bytes_by_context: missing"},
      {[](P& p) {
         p.host.attention[1].prefill_flops_by_context =
             RateCurve::Constant(kInf);
       },
       "host.attention[1].prefill_flops_by_context[0].rate: inf"},
      {[](P& p) { p.host.quantize_bytes_per_second = -1; },
       "host.quantize_bytes_per_second: -1"},
      {[](P& p) { p.host.dequantize_bytes_per_second = 0; },
       "host.dequantize_bytes_per_second: missing or 0"},
      {[](P& p) { p.host.layer_seconds = -1e-6; },
       "host.layer_seconds: -1e-06"},
      {[](P& p) { p.host.row_element_seconds = kNan; },
       "host.row_element_seconds: nan"},
      {[](P& p) { p.host.logit_seconds = 1e5; },
       "host.logit_seconds: 100000 must be at most"},
      {[](P& p) { p.host.share_by_threads = RateCurve(); },
       "host.share_by_threads: missing"},
      {[](P& p) {
         p.host.share_by_threads = RateCurve({{1, 50}, {2, 100}});
       },
       "host.share_by_threads: 50 must be a share"},
      {[](P& p) { p.host_to_device_bytes_per_second = 0; },
       "host_to_device_bytes_per_second: missing or 0"},
      {[](P& p) { p.device_to_host_bytes_per_second = 1e20; },
       "device_to_host_bytes_per_second: 1e+20 must be at most"},
      {[](P& p) { p.disk.read_bytes_per_second = 0; },
       "disk.read_bytes_per_second: missing or 0"},
      {[](P& p) { p.disk.write_bytes_per_second = kNan; },
       "disk.write_bytes_per_second: nan"},
      {[](P& p) {
         p.disk_bytes = 0;
         p.disk.write_bytes_per_second = -3;
       },
       "disk.write_bytes_per_second: -3"},
      {[](P& p) { p.disk.rates[0].request_bytes = 0; },
       "disk.rates[0].request_bytes: 0"},
      {[](P& p) { p.disk.rates[1].depth = 0; }, "disk.rates[1].depth: 0"},
      {[](P& p) { p.disk.rates[1].read_bytes_per_second = kInf; },
       "disk.rates[1].read_bytes_per_second: inf"},
      {[](P& p) { p.disk.rates[1].write_bytes_per_second = 0; },
       "disk.rates[1].write_bytes_per_second: missing or 0"},
      {[](P& p) { p.links[1].bytes_per_second = 0; },
       "links[1].bytes_per_second: missing or 0"},
      {[](P& p) { p.links[0].latency_seconds = -1; },
       "links[0].latency_seconds: -1"},
      {[](P& p) { p.step_seconds = kInf; }, "step_seconds: inf"},
  };
  for (const Wrong& wrong : kWrong) {
    MachineProfile p = SampleProfile();
    wrong.with(p);
    const absl::Status status = p.Check();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.error;
    EXPECT_THAT(std::string(status.message()), StartsWith(wrong.error));
  }
  EXPECT_THAT(std::string(MachineProfile().Check().message()),
              HasSubstr("host_memory_bytes: missing"));
}

TEST(MachineProfileTest, RanksHaveTheirShareOfTheRates) {
  MachineProfile p = SampleCpuProfile();
  p.ranks = 1;
  p.exchange = {};
  p.rank_choices = {{2, 0.75, 0.5, {1e9, 1e-5}}, {4, 0.5, 0.25, {5e8, 2e-5}}};
  ASSERT_TRUE(p.Check().ok()) << p.Check();
  const auto one = p.WithRanks(1);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->host, p.host);
  EXPECT_TRUE(one->rank_choices.empty());
  const auto two = p.WithRanks(2);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_TRUE(two->Check().ok()) << two->Check();
  EXPECT_EQ(two->ranks, 2);
  EXPECT_EQ(two->exchange, p.rank_choices[0].exchange);
  EXPECT_DOUBLE_EQ(two->host.memory_bytes_per_second,
                   0.75 * p.host.memory_bytes_per_second);
  // Products of one row wait for memory, those of many rows compute.
  const RateCurve& all = p.host.products[0].flops_by_rows;
  const RateCurve& of_rank = two->host.products[0].flops_by_rows;
  EXPECT_DOUBLE_EQ(of_rank.At(1), 0.75 * all.At(1));
  EXPECT_DOUBLE_EQ(of_rank.At(1e6), 0.5 * all.At(1e6));
  EXPECT_EQ(two->host_memory_bytes, p.host_memory_bytes);
  // The most, where nobody says how many.
  EXPECT_EQ(p.WithRanks(0)->ranks, 4);
  EXPECT_EQ(p.WithRanks(3).status().code(), absl::StatusCode::kInvalidArgument);
}

std::vector<std::string> Separated(std::vector<MachineProfile> workers) {
  SeparateMachines(&workers);
  std::vector<std::string> machines;
  for (const MachineProfile& worker : workers) {
    machines.push_back(worker.machine);
  }
  return machines;
}

TEST(SeparateMachinesTest, WorkersWhoseThreadsHaveCoresShareNothing) {
  std::vector<MachineProfile> workers(3);
  workers[0].machine = workers[2].machine = "box";
  workers[1].machine = "other";
  for (MachineProfile& worker : workers) worker.cores = 2;
  EXPECT_EQ(
      Separated(workers),
      (std::vector<std::string>{"box, worker 0", "other", "box, worker 2"}));
  workers[2].threads = 2;  // three on two cores
  const std::vector<std::string> shared = {"box", "other", "box"};
  EXPECT_EQ(Separated(workers), shared);
  workers[0].cores = workers[2].cores = 4;
  EXPECT_NE(Separated(workers), shared);
  workers[0].cores = 0;  // an old profile, or one by hand
  EXPECT_EQ(Separated(workers), shared);
}

TEST(SeparateMachinesTest, WorkersOfNamelessMachinesAreNotCountedTogether) {
  std::vector<MachineProfile> workers(2);
  for (MachineProfile& worker : workers) worker.cores = 8;
  EXPECT_EQ(Separated(workers), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace sluice
