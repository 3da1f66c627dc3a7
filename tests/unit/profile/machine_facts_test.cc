#include "runtime/profile/machine_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(MachineFactsTest, DescribesTheCpu) {
  EXPECT_EQ(DescribeCpu("processor : 0\nmodel name\t: Fast CPU @ 3: GHz\n"
                        "flags\t\t: fpu avx2 avx512f avx512_bf16\n"),
            "cpu: Fast CPU @ 3: GHz, AVX-512 bf16");
  EXPECT_EQ(DescribeCpu("model name : Old\nflags : fpu sse2\n"),
            "cpu: Old, baseline");
  EXPECT_EQ(DescribeCpu("Features\t: fp asimd\n"), "cpu: unknown, NEON");
  EXPECT_EQ(DescribeCpu(""), "cpu: unknown, baseline");
  EXPECT_THAT(DescribeCpu(), HasSubstr("cpu: "));
}

TEST(MachineFactsTest, ReadsThisMachine) {
  const MachineFacts facts = ReadMachineFacts();
  EXPECT_EQ(facts.cpu, DescribeCpu());
  EXPECT_GT(facts.memory_bytes, uint64_t{1} << 20);
  EXPECT_GE(facts.hardware_threads, 1);
  EXPECT_GE(facts.load, 0);
  EXPECT_FALSE(MachineId().empty());
  EXPECT_EQ(MachineId(), MachineId());
}

FingerprintParts Parts() {
  FingerprintParts parts;
  parts.cpu = "cpu: Fast";
  parts.kernels = "oneDNN 3";
  parts.device = "cpu";
  parts.threads = 2;
  parts.cores = {0, 1};
  parts.memory_bytes = uint64_t{64} << 30;
  parts.host_memory_bytes = uint64_t{32} << 30;
  parts.disk_bytes = uint64_t{100} << 30;
  parts.disk_dir = "/";
  parts.version = "1.2.3";
  return parts;
}

TEST(FingerprintTest, ChangesWithWhatRatesDependOn) {
  const TempDir dir = TempDir::OnDisk();
  const std::function<void(FingerprintParts&)> kChanges[] = {
      [](FingerprintParts&) {},
      [](FingerprintParts& p) { p.cpu = "cpu: Slow"; },
      [](FingerprintParts& p) { p.cpu_quota = 0.5; },
      [](FingerprintParts& p) { p.kernels = "oneDNN 4"; },
      [](FingerprintParts& p) { p.device = "cpu-discrete"; },
      [](FingerprintParts& p) { p.threads = 3; },
      [](FingerprintParts& p) {
        p.rank_counts = {2, 4};
      },
      [](FingerprintParts& p) {
        p.cores = {2, 3};
      },
      [](FingerprintParts& p) { p.cores.clear(); },
      [](FingerprintParts& p) { p.memory_bytes *= 2; },
      [](FingerprintParts& p) { p.host_memory_bytes = 500 << 20; },
      [](FingerprintParts& p) { p.device_memory_bytes = 500 << 20; },
      [](FingerprintParts& p) { p.disk_bytes = 500 << 20; },
      [&](FingerprintParts& p) { p.disk_dir = dir.path(); },
      [](FingerprintParts& p) { p.disk_dir = "/not there"; },
      [](FingerprintParts& p) { p.disk_dir = ""; },
      [](FingerprintParts& p) { p.version = "1.2.4"; },
  };
  std::set<std::string> seen;
  for (const auto& change : kChanges) {
    FingerprintParts parts = Parts();
    change(parts);
    const std::string fingerprint = Fingerprint(parts);
    EXPECT_TRUE(seen.insert(fingerprint).second) << fingerprint;
    EXPECT_EQ(fingerprint.find('\n'), std::string::npos);
  }
}

TEST(FingerprintTest, BudgetsThatAllowAllAreAlike) {
  // Free memory changes from start to start.
  FingerprintParts other = Parts();
  other.host_memory_bytes = uint64_t{2} << 30;
  other.disk_bytes = uint64_t{3} << 30;
  EXPECT_EQ(Fingerprint(other), Fingerprint(Parts()));
  // Small budgets are distinguished roughly.
  FingerprintParts a = Parts(), b = Parts();
  a.disk_bytes = 300 << 20;
  b.disk_bytes = 310 << 20;
  EXPECT_EQ(Fingerprint(a), Fingerprint(b));
}

}  // namespace
}  // namespace sluice
