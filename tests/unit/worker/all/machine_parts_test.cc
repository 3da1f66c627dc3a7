#include "worker/all/machine_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/all/command_line.h"
#include "worker/all/line_buffer.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

MachineLayout Machine(const std::string& synthetic) {
  MachineLayout machine;
  machine.numa_nodes = CoreGroups(CoreGroupKind::kNumaNode, synthetic);
  machine.l3_groups = CoreGroups(CoreGroupKind::kL3, synthetic);
  machine.cores = CoreGroups(CoreGroupKind::kCore, synthetic);
  return machine;
}

PartsOptions Options(const std::string& per) {
  PartsOptions options;
  options.per = per;
  options.name = "box";
  options.host_memory_bytes = 8 * kGiB;
  return options;
}

std::vector<MachinePart> Parts(const MachineLayout& machine,
                               const PartsOptions& options) {
  const auto parts = DivideMachine(machine, options);
  EXPECT_TRUE(parts.ok()) << parts.status();
  return parts.ok() ? *parts : std::vector<MachinePart>();
}

std::vector<std::string> Names(const std::vector<MachinePart>& parts) {
  std::vector<std::string> names;
  for (const MachinePart& part : parts) names.push_back(part.name);
  return names;
}

constexpr char kTwoNodes[] = "numa:2 l3:2 core:2 pu:2";

TEST(DivideMachineTest, PrefersGpusThenNodesThenCaches) {
  MachineLayout machine = Machine(kTwoNodes);
  EXPECT_THAT(Names(Parts(machine, Options("auto"))),
              ElementsAre("box-numa0", "box-numa1"));
  EXPECT_THAT(Names(Parts(machine, Options("l3"))),
              ElementsAre("box-l3-0", "box-l3-1", "box-l3-2", "box-l3-3"));
  EXPECT_THAT(Names(Parts(Machine("numa:1 l3:3 core:1 pu:1"), Options("auto"))),
              ElementsAre("box-l3-0", "box-l3-1", "box-l3-2"));
  EXPECT_THAT(Names(Parts(Machine("numa:1 core:2 pu:1"), Options("auto"))),
              ElementsAre("box-part0"));
  machine.gpus = 2;
  const std::vector<MachinePart> gpus = Parts(machine, Options("auto"));
  EXPECT_THAT(Names(gpus), ElementsAre("box-gpu0", "box-gpu1"));
  EXPECT_EQ(gpus[1].device, "cuda:1");
  EXPECT_EQ(gpus[0].cpus.size(), 8u);
}

TEST(DivideMachineTest, GpusOfTheirOwnHaveNoRanks) {
  MachineLayout machine = Machine(kTwoNodes);
  PartsOptions options = Options("auto");
  options.tensor_parallel = "2";
  EXPECT_EQ(Parts(machine, options).size(), 2u);  // each node's cores
  machine.gpus = 2;
  EXPECT_THAT(DivideMachine(machine, options).status().message(),
              HasSubstr("--tensor-parallel 2: with --all each GPU"));
}

TEST(DivideMachineTest, PartsHaveAllThreadsOfTheirCores) {
  const std::vector<MachinePart> parts =
      Parts(Machine(kTwoNodes), Options("numa"));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_THAT(parts[0].cpus, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(parts[1].cpus, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(parts[0].threads, 4);  // one for each core
  EXPECT_EQ(parts[0].device, "cpu");
  EXPECT_EQ(parts[0].host_memory_bytes, 4 * kGiB);
}

TEST(DivideMachineTest, ANumberCutsTheCoresEvenly) {
  const MachineLayout machine = Machine("numa:1 core:5 pu:1");
  const std::vector<MachinePart> parts = Parts(machine, Options("2"));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_THAT(parts[0].cpus, ElementsAre(0, 1));
  EXPECT_THAT(parts[1].cpus, ElementsAre(2, 3, 4));
  EXPECT_EQ(Parts(machine, Options("5")).size(), 5u);
  for (const char* per : {"6", "0", "-1", "socket", "", "2x"}) {
    const auto refused = DivideMachine(machine, Options(per));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << per;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--per"));
  }
}

TEST(DivideMachineTest, DividesBudgetsQuotaAndPorts) {
  MachineLayout machine = Machine("numa:2 core:4 pu:1");
  machine.numa_nodes[0].memory_bytes = 3 * kGiB;
  machine.numa_nodes[1].memory_bytes = 1 * kGiB;
  machine.cpu_quota = 6;
  PartsOptions options = Options("numa");
  options.disk_bytes = 10 * kGiB;
  options.port = 7072;
  options.metrics_port = 7100;
  const std::vector<MachinePart> parts = Parts(machine, options);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].host_memory_bytes, 6 * kGiB);
  EXPECT_EQ(parts[1].host_memory_bytes, 2 * kGiB);
  EXPECT_EQ(parts[1].disk_bytes, 5 * kGiB);
  EXPECT_EQ(parts[0].threads, 3);
  EXPECT_EQ(parts[1].port, 7073);
  EXPECT_EQ(parts[1].metrics_port, 7101);
  options.threads = 7;
  EXPECT_EQ(Parts(machine, options)[1].threads, 7);
  options.metrics_port = 7073;
  EXPECT_THAT(DivideMachine(machine, options).status().message(),
              HasSubstr("--port 7072 and --metrics-port 7073"));
  options.metrics_port = 65535;
  EXPECT_TRUE(
      absl::IsInvalidArgument(DivideMachine(machine, options).status()));
  options.metrics_port = options.port = 0;
  EXPECT_EQ(Parts(machine, options)[1].port, 0);
  options.host_memory_bytes = 100 << 20;
  EXPECT_TRUE(
      absl::IsResourceExhausted(DivideMachine(machine, options).status()));
}

TEST(DivideMachineTest, MoreGpusThanCoresShareThem) {
  MachineLayout machine = Machine("numa:1 core:2 pu:1");
  machine.gpus = 3;
  for (const MachinePart& part : Parts(machine, Options("gpu"))) {
    EXPECT_EQ(part.cpus.size(), 1u) << part.name;
  }
  machine.gpus = 0;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      DivideMachine(machine, Options("gpu")).status()));
}

TEST(PartsTableTest, HasALineForEachPart) {
  PartsOptions options = Options("numa");
  options.port = 7072;
  const std::string table = PartsTable(Parts(Machine(kTwoNodes), options));
  EXPECT_THAT(table, HasSubstr("box-numa1"));
  EXPECT_THAT(table, HasSubstr("8-15"));
  EXPECT_THAT(table, HasSubstr("4096 MiB"));
  EXPECT_THAT(table, HasSubstr("any"));
}

TEST(PartArgumentsTest, ReplacesWhatThePartDecides) {
  MachinePart part;
  part.suffix = "numa1";
  part.name = "box-numa1";
  part.device = "cpu";
  part.threads = 4;
  part.host_memory_bytes = 1000;
  part.disk_bytes = 77;
  const std::vector<std::string> all = {
      "--all",    "--model",       "dir",       "--per=2",
      "--per",    "numa",          "--dry-run", "--port",
      "7072",     "--host",        "0.0.0.0",   "--threads=9",
      "--name=x", "--disk-dir=/d", "--trace",   "t.json"};
  EXPECT_THAT(PartArguments(all, part, 2, "t.json"),
              ElementsAre("--model", "dir", "--host", "0.0.0.0",
                          "--disk-dir=/d", "--name=box-numa1", "--device=cpu",
                          "--threads=4", "--host-memory=1000B",
                          "--disk-space=77B", "--port=0", "--metrics-port=0",
                          "--trace=t.json.numa1", "--machine-part=numa1/2"));
  part.disk_bytes = 0;
  EXPECT_THAT(
      PartArguments({"--all"}, part, 1, ""),
      ElementsAre("--name=box-numa1", "--device=cpu", "--threads=4",
                  "--host-memory=1000B", "--port=0", "--metrics-port=0"));
}

TEST(LineBufferTest, MakesLinesOfPieces) {
  LineBuffer buffer;
  std::vector<std::string> lines;
  const auto take = [&](absl::string_view line) { lines.emplace_back(line); };
  buffer.Add("one\ntw", take);
  buffer.Add("o\n\nthr", take);
  EXPECT_THAT(lines, ElementsAre("one", "two", ""));
  buffer.Flush(take);
  buffer.Flush(take);
  EXPECT_THAT(lines, ElementsAre("one", "two", "", "thr"));
  lines.clear();
  buffer.Add(std::string(LineBuffer::kMaxLine + 5, 'x'), take);
  buffer.Add("\n", take);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), LineBuffer::kMaxLine);
  EXPECT_EQ(lines[1], "xxxxx");
}

}  // namespace
}  // namespace sluice
