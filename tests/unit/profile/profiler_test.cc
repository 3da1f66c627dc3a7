#include "runtime/profile/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "common/codec/profile_json.h"
#include "runtime/model/code_format.h"
#include "runtime/profile/disk_probe.h"
#include "runtime/profile/gemm_probe.h"
#include "tests/support/sample_profile.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool IsEmptyDir(const std::string& dir) {
  return std::filesystem::directory_iterator(dir) ==
         std::filesystem::directory_iterator();
}

// The shortest measurement: each probe does its minimum number of repeats.
ProfilerOptions Small() {
  ProfilerOptions options;
  options.threads = 2;
  options.host_memory_bytes = 128 << 20;
  options.seconds = 0.01;
  return options;
}

// The times are those of a machine that other programs kept busy while all
// threads were timed.
TEST(ThreadSharesTest, AreThoseThatAProfileMayHave) {
  const RateCurve shares = SharesOfLast({{1, 5.2}, {2, 0.5}, {4, 1}});
  EXPECT_EQ(shares, RateCurve({{1, 2}, {2, 0.5}, {4, 1}}));
}

TEST(ProfilerTest, MeasuresAllThatThePlannerWants) {
  const TempDir dir = TempDir::OnDisk();
  ProfilerOptions options = Small();
  options.disk_dir = dir.path();
  options.disk_bytes = 32 << 20;
  std::vector<std::string> told;
  double last = 0;
  const auto p = MeasureMachine(
      options,
      [&](absl::string_view what, double share) {
        EXPECT_GE(share, last);
        EXPECT_LE(share, 1);
        last = share;
        told.push_back(std::string(what));
      },
      nullptr);
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_TRUE(p->Check().ok()) << p->Check();
  EXPECT_EQ(p->host_memory_bytes, options.host_memory_bytes);
  EXPECT_EQ(p->disk_bytes, options.disk_bytes);
  EXPECT_EQ(p->threads, 2);
  EXPECT_FALSE(p->has_device());
  EXPECT_EQ(p->machine, MachineId());
  for (const WeightFormat format :
       {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const ProductRate* rate = p->host.Products(DType::kFloat32, format);
    ASSERT_NE(rate, nullptr);
    EXPECT_EQ(rate->flops_by_rows.points().front().x, 1);
    EXPECT_EQ(rate->flops_by_rows.points().back().x, 2048);
  }
  for (const CodeFormat& format : CodeFormats()) {
    EXPECT_TRUE(std::ranges::any_of(p->host.codes, [&](const CodeRate& rate) {
      return rate.format == format.name &&
             rate.flops_by_rows.points().front().x == 1;
    })) << format.name;
  }
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16,
                                KvFormat::kInt8, KvFormat::kInt4}) {
    EXPECT_NE(p->host.Attention(format), nullptr);
  }
  EXPECT_GT(p->host.layer_seconds, 0);
  EXPECT_GT(p->host.logit_seconds, 0);
  EXPECT_EQ(p->host.share_by_threads.points().size(), 2u);
  EXPECT_DOUBLE_EQ(p->host.share_by_threads.At(2), 1);
  EXPECT_GT(p->disk.rates.size(), 4u);
  // Beside computing it is no faster.
  EXPECT_GE(p->disk.rates.back().read_bytes_per_second,
            p->disk.read_bytes_per_second);
  EXPECT_GE(p->disk.compute_seconds_per_byte, 0);
  EXPECT_EQ(told.front(), "disk");
  EXPECT_EQ(told.back(), "done");
  EXPECT_EQ(last, 1);
  EXPECT_TRUE(IsEmptyDir(dir.path()));
  const auto again = ProfileFromJson(ProfileToJson(*p));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *p);
}

// The disk is too small to be measured, and so is no tier.
TEST(ProfilerTest, MeasuresADeviceWithMemoryOfItsOwn) {
  const TempDir dir = TempDir::OnDisk();
  ProfilerOptions options = Small();
  options.disk_dir = dir.path();
  options.disk_bytes = 1 << 20;
  options.threads = 1;
  options.device.backend = BackendKind::kCpuDiscrete;
  options.device_memory_bytes = 128 << 20;
  const auto p = MeasureMachine(options, nullptr, nullptr);
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_TRUE(p->Check().ok()) << p->Check();
  EXPECT_TRUE(p->has_device());
  EXPECT_GT(p->host_to_device_bytes_per_second, 0);
  EXPECT_GT(p->device_to_host_bytes_per_second, 0);
  EXPECT_EQ(p->device_compute.products, p->host.products);
  EXPECT_EQ(p->disk_bytes, 0u);
  EXPECT_THAT(p->remarks, Contains(HasSubstr("no disk tier: ")));
}

TEST(ProfilerTest, CanBeStoppedAnywhere) {
  const TempDir dir = TempDir::OnDisk();
  for (const char* when : {"disk", "memory", "threads"}) {
    ProfilerOptions options = Small();
    options.seconds = 1e6;  // not that it would last
    options.disk_dir = dir.path();
    options.disk_bytes = 32 << 20;
    if (std::string(when) != "disk") {
      options.seconds = 0.01;
    }
    std::atomic<bool> cancelled{false};
    const auto p = MeasureMachine(
        options,
        [&](absl::string_view what, double) {
          if (what == when) cancelled = true;
        },
        &cancelled);
    EXPECT_EQ(p.status().code(), absl::StatusCode::kCancelled) << when;
    EXPECT_TRUE(IsEmptyDir(dir.path())) << when;
  }
}

TEST(ProfilerTest, WrongOptionsAreNamed) {
  const struct {
    ProfilerOptions options;
    const char* error;
  } kCases[] = {
      {[] {
         auto o = Small();
         o.threads = 0;
         return o;
       }(),
       "0 threads"},
      {[] {
         auto o = Small();
         o.host_memory_bytes = 0;
         return o;
       }(),
       "no host memory"},
      {[] {
         auto o = Small();
         o.device_memory_bytes = 1;
         return o;
       }(),
       "device memory"},
      {[] {
         auto o = Small();
         o.device.backend = BackendKind::kCpuDiscrete;
         return o;
       }(),
       "device memory"},
      {[] {
         auto o = Small();
         o.disk_dir = "/tmp";
         return o;
       }(),
       "a disk directory goes with"},
      {[] {
         auto o = Small();
         o.disk_bytes = 1;
         return o;
       }(),
       "a disk directory goes with"},
      {[] {
         auto o = Small();
         o.seconds = 0;
         return o;
       }(),
       "no time"},
  };
  for (const auto& c : kCases) {
    const absl::Status status =
        MeasureMachine(c.options, nullptr, nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.error;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.error));
  }
  ProfilerOptions cuda = Small();
  cuda.device = {BackendKind::kCuda, 999};
  cuda.device_memory_bytes = 1 << 30;
  EXPECT_THAT(MeasureMachine(cuda, nullptr, nullptr).status().ToString(),
              HasSubstr("--device cuda:999"));
}

TEST(ProfilerTest, TooLittleMemoryIsAnError) {
  ProfilerOptions options = Small();
  options.host_memory_bytes = 4 << 20;
  EXPECT_EQ(MeasureMachine(options, nullptr, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(DiskProbeTest, ErrorsAreThoseOfTheDisk) {
  MemoryBudget disk(Tier::kDisk, 64 << 20), memory(Tier::kHost, 64 << 20);
  EXPECT_EQ(
      MeasureDisk("/not there", &disk, &memory, 0.01, nullptr).status().code(),
      absl::StatusCode::kNotFound);
  const TempDir dir = TempDir::OnDisk();
  MemoryBudget little(Tier::kHost, 1 << 20);
  EXPECT_EQ(
      MeasureDisk(dir.path(), &disk, &little, 0.01, nullptr).status().code(),
      absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(IsEmptyDir(dir.path()));
  EXPECT_EQ(disk.used_bytes(), 0u);
}

MachineFacts QuietFacts() {
  MachineFacts facts;
  facts.cpu = "cpu: Fast, AVX-512 bf16";
  facts.memory_bytes = uint64_t{64} << 30;
  facts.locked_bytes_limit = UINT64_MAX;
  facts.hardware_threads = 8;
  return facts;
}

MachineProfile GoodProfile() {
  MachineProfile p = SampleProfile();
  p.disk.direct = true;
  return p;
}

TEST(RemarksTest, NothingOddNothingSaid) {
  EXPECT_THAT(Remarks(QuietFacts(), GoodProfile(), true), IsEmpty());
}

TEST(RemarksTest, EachOddityIsSaid) {
  MachineProfile slow = GoodProfile();
  slow.disk.read_bytes_per_second = 1e8;
  EXPECT_THAT(Remarks(QuietFacts(), slow, true),
              ElementsAre(HasSubstr("slow disk: it reads 100 MB/s, so that "
                                    "each GB of weights on it takes 10.0 s")));
  MachineProfile cached = GoodProfile();
  cached.disk.direct = false;
  EXPECT_THAT(Remarks(QuietFacts(), cached, true),
              ElementsAre(HasSubstr("no O_DIRECT")));
  EXPECT_THAT(Remarks(QuietFacts(), GoodProfile(), false),
              ElementsAre(HasSubstr("the kernel is old, or forbids it")));
  MachineFacts limited = QuietFacts();
  limited.locked_bytes_limit = 64 << 10;
  EXPECT_THAT(Remarks(limited, GoodProfile(), false),
              ElementsAre(HasSubstr("may lock only 64 KiB")));
  EXPECT_THAT(Remarks(limited, GoodProfile(), true), IsEmpty());
  MachineProfile none = cached;
  none.disk_bytes = 0;  // no disk, nothing to say of it
  EXPECT_THAT(Remarks(limited, none, false), IsEmpty());

  MachineFacts plain = QuietFacts();
  plain.cpu = "cpu: Old, AVX2";
  EXPECT_THAT(Remarks(plain, GoodProfile(), true),
              ElementsAre(HasSubstr("neither AMX nor AVX-512 bf16")));
  plain.cpu = "cpu: New, AMX";
  EXPECT_THAT(Remarks(plain, GoodProfile(), true), IsEmpty());
  MachineProfile float32 = GoodProfile();
  float32.host.products.erase(float32.host.products.begin());
  EXPECT_THAT(Remarks(QuietFacts(), float32, true),
              ElementsAre(HasSubstr("no products in bfloat16")));
  MachineProfile little = GoodProfile();
  little.host_memory_bytes = 100 << 20;
  EXPECT_THAT(Remarks(QuietFacts(), little, true),
              ElementsAre(HasSubstr("measured within 100 MiB")));
  MachineFacts busy = QuietFacts();
  busy.load = 3.25;
  EXPECT_THAT(Remarks(busy, GoodProfile(), true),
              ElementsAre(HasSubstr("load 3.2 on 8 hardware threads")));
  MachineFacts few = QuietFacts();
  few.hardware_threads = 1;
  EXPECT_THAT(Remarks(few, GoodProfile(), true),
              ElementsAre(HasSubstr("2 threads compute, but there are 1")));
}

}  // namespace
}  // namespace sluice
