#include "worker/probe/worker_profile.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "common/codec/profile_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/memory/cpu_topology.h"
#include "tests/integration/worker/fake_executor.h"
#include "tests/integration/worker/test_coordinator.h"
#include "tests/support/sample_profile.h"
#include "tests/support/temp_dir.h"
#include "worker/link/link_server.h"
#include "worker/machine_share.h"
#include "worker/worker.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Worker::Options Options(const std::string& coordinator) {
  Worker::Options options;
  options.name = "w0";
  options.model_dir = "/models/test";
  options.coordinator_address = coordinator;
  options.machine.host_memory_bytes = uint64_t{1} << 30;
  options.machine.threads = 3;
  options.channels = TcpChannels();
  options.reconnect_delay = absl::Milliseconds(5);
  return options;
}

// Returns the profile that a worker with these options registers, which has so
// many ranks, or, if a plan says how many, up to as many.
std::string RegisteredProfile(std::shared_ptr<const MachineProfile> profile,
                              size_t ranks = 0, bool by_plan = false) {
  TestCoordinator coordinator;
  Worker::Options options = Options(coordinator.address());
  options.machine.ranks.resize(ranks);
  options.machine.ranks_by_plan = by_plan;
  options.link_address = "127.0.0.1:1";
  options.profile = std::move(profile);
  FakeModel fake;
  Worker::Model model;
  model.hidden_size = FakeModel::kHidden;
  model.num_layers = FakeModel::kLayers;
  model.loader = fake.Loader();
  Worker worker(std::move(options), std::move(model));
  const std::string json = coordinator.AwaitAttached("w0").profile_json();
  worker.Shutdown();
  return json;
}

TEST(WorkerProfileTest, IsSentUnderTheWorkersName) {
  const auto profile = ProfileFromJson(RegisteredProfile(
      std::make_shared<const MachineProfile>(SampleCpuProfile())));
  ASSERT_TRUE(profile.ok()) << profile.status();
  MachineProfile expected = SampleCpuProfile();
  expected.name = "w0";
  EXPECT_EQ(*profile, expected);
}

TEST(WorkerProfileTest, SaysWhatRanksThereMayBe) {
  MachineProfile measured = SampleCpuProfile();
  measured.ranks = 1;
  measured.exchange = {};
  measured.rank_choices = {{2, 0.75, 0.5, {1e9, 1e-5}},
                           {3, 0.75, 0.5, {1e9, 1e-5}},
                           {4, 0.5, 0.25, {5e8, 2e-5}}};
  const auto shared = std::make_shared<const MachineProfile>(measured);
  const auto alone = ProfileFromJson(RegisteredProfile(shared));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(alone->rank_choices.empty());
  EXPECT_EQ(alone->ranks, 1);
  // Those that divide the four.
  const auto open = ProfileFromJson(RegisteredProfile(shared, 4, true));
  ASSERT_TRUE(open.ok()) << open.status();
  ASSERT_EQ(open->rank_choices.size(), 2u);
  EXPECT_EQ(open->rank_choices[0], measured.rank_choices[0]);
  EXPECT_EQ(open->rank_choices[1], measured.rank_choices[2]);
  EXPECT_EQ(open->host, measured.host);
  // Where it is fixed, the figures are those of a rank.
  const auto fixed = ProfileFromJson(RegisteredProfile(shared, 4));
  ASSERT_TRUE(fixed.ok()) << fixed.status();
  EXPECT_TRUE(fixed->rank_choices.empty());
  EXPECT_EQ(fixed->ranks, 4);
  EXPECT_EQ(fixed->exchange, measured.rank_choices[2].exchange);
  EXPECT_DOUBLE_EQ(fixed->host.memory_bytes_per_second,
                   0.5 * measured.host.memory_bytes_per_second);
}

TEST(WorkerProfileTest, FlagsOfRanks) {
  MachineFlags flags;
  flags.host_memory = "1GiB";
  flags.tensor_parallel = "3";
  auto machine = ParseMachine(flags);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->ranks.size(), 3u);
  EXPECT_EQ(machine->RankCounts(), std::vector<int32_t>{3});
  flags.tensor_parallel = "auto:6";
  machine = ParseMachine(flags);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->RankCounts(), (std::vector<int32_t>{2, 3, 6}));
  flags.tensor_parallel = "auto";  // one for each NUMA node
  machine = ParseMachine(flags);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_TRUE(machine->ranks_by_plan);
  for (const char* wrong :
       {"0", "65", "-1", "auto:", "auto:0", "autos", "x", "2.5", "", "auto2"}) {
    flags.tensor_parallel = wrong;
    EXPECT_THAT(std::string(ParseMachine(flags).status().message()),
                StartsWith("--tensor-parallel "))
        << wrong;
  }
}

TEST(WorkerProfileTest, NoneIsSentWithoutOne) {
  EXPECT_EQ(RegisteredProfile(nullptr), "");
}

TEST(WorkerProfileTest, TakesWhatTheWorkerMayUse) {
  const TempDir dir = TempDir::OnDisk();
  const int32_t cores = static_cast<int32_t>(UsableCores().size());
  MachineFlags flags;
  flags.threads = cores + 1;
  flags.host_memory = "1GiB";
  flags.disk_dir = dir / "made";
  flags.disk_space = "4MiB";
  auto machine = ParseMachine(flags);
  ASSERT_TRUE(machine.ok()) << machine.status();
  ASSERT_TRUE(PrepareDisk(&*machine).ok());
  EXPECT_EQ(machine->threads, cores + 1);
  EXPECT_TRUE(machine->cores.empty());
  EXPECT_EQ(machine->host_memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(machine->disk_dir, flags.disk_dir);
  EXPECT_EQ(machine->disk_bytes, uint64_t{4} << 20);
  EXPECT_TRUE(std::filesystem::is_directory(flags.disk_dir));
  EXPECT_EQ(ProfileCacheOf(*machine).cache_dir, flags.disk_dir);
  flags.threads = cores;
  EXPECT_EQ(ParseMachine(flags)->cores, UsableCores());
  flags.disk_space = "";  // 90 % of what is free
  flags.threads = 0;      // all cores
  machine = ParseMachine(flags);
  ASSERT_TRUE(machine.ok()) << machine.status();
  ASSERT_TRUE(PrepareDisk(&*machine).ok());
  EXPECT_GT(machine->disk_bytes, 0u);
  EXPECT_GE(machine->threads, 1);
  std::ofstream(dir / "file") << "x";
  machine->disk_dir = dir / "file/below";
  EXPECT_THAT(std::string(PrepareDisk(&*machine).message()),
              StartsWith("--disk-dir: "));
}

TEST(WorkerProfileTest, AFileGetsTheWorkersCapacities) {
  const TempDir dir = TempDir::OnDisk();
  const std::string path = dir / "profile.json";
  ASSERT_TRUE(WriteProfileFile(SampleCpuProfile(), path).ok());
  const MachineShare machine = Options("nowhere").machine;
  const auto profile = ReadWorkerProfile(path, machine);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->host_memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(profile->disk_bytes, 0u);
  EXPECT_EQ(profile->threads, 3);
  EXPECT_EQ(profile->host, SampleCpuProfile().host);
  ASSERT_TRUE(WriteProfileFile(SampleProfile(), path).ok());
  EXPECT_THAT(std::string(ReadWorkerProfile(path, machine).status().message()),
              StartsWith(path + ": the profile is of a machine with a device"));
}

TEST(LinkProfileTest, MeasuresTheLoopback) {
  const auto link = MeasureLoopbackLink(0.01, nullptr);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ(link->peer, "");
  EXPECT_GT(link->bytes_per_second, 0);
  EXPECT_GT(link->latency_seconds, 0);
}

TEST(LinkProfileTest, CanBeStopped) {
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(MeasureLoopbackLink(1e6, &cancelled).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sluice
