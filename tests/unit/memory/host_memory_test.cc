#include "runtime/memory/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(HostMemoryTest, AnErrorNamesTheFlag) {
  EXPECT_THAT(std::string(ParseHostMemory("8").status().message()),
              HasSubstr("--host-memory"));
}

TEST(HostMemoryTest, ControlGroupsLimitAlongThePath) {
  const TempDir root;
  const auto write = [&](const std::string& dir, const std::string& name,
                         const std::string& text) {
    std::filesystem::create_directories(root.path() / dir);
    std::ofstream(root.path() / dir / name) << text << "\n";
  };
  const std::string at = root.path().string();
  EXPECT_EQ(CgroupMemoryLeft("0::/a/b\n", at), std::nullopt);
  write("a", "memory.max", "1000");
  write("a", "memory.current", "300");
  write("a/b", "memory.max", "max");
  write("a/b", "memory.current", "250");
  EXPECT_EQ(CgroupMemoryLeft("0::/a/b\n", at), 700u);
  EXPECT_EQ(CgroupMemoryLeft("0::/c\n", at), std::nullopt);
  write("a/b", "memory.max", "200");
  EXPECT_EQ(CgroupMemoryLeft("0::/a/b\n", at), 0u);  // it has more already
  // The first version, and a container that has its own group at the root.
  write("memory/x", "memory.limit_in_bytes", "90");
  write("memory/x", "memory.usage_in_bytes", "50");
  EXPECT_EQ(CgroupMemoryLeft("4:cpu,memory:/x/y\n3:pids:/a\n", at), 40u);
  write("memory", "memory.limit_in_bytes", "35");
  write("memory", "memory.usage_in_bytes", "20");
  EXPECT_EQ(CgroupMemoryLeft("0::/elsewhere\n", at), 15u);
}

TEST(HostMemoryTest, NobodyHasMoreThanTheMachine) {
  EXPECT_GT(MachineMemory(), uint64_t{1} << 20);
  EXPECT_LE(AvailableHostMemory(), MachineMemory());
  EXPECT_EQ(*ParseHostMemory("2TiB"), uint64_t{2} << 40);  // a warning
}

}  // namespace
}  // namespace sluice
