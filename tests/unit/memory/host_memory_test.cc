#include "runtime/memory/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::HasSubstr;

TEST(HostMemoryTest, ReadsSizes) {
  EXPECT_EQ(*ParseByteSize("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("1.5G"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseByteSize("500MB"), 500'000'000u);
  EXPECT_EQ(*ParseByteSize("1073741824"), uint64_t{1} << 30);
  EXPECT_EQ(*ParseByteSize("1048576"), uint64_t{1} << 20);
  EXPECT_EQ(*ParseByteSize("8B"), 8u);
  EXPECT_EQ(*ParseByteSize("1KiB"), 1024u);
  for (const char* wrong :
       {"", "GiB", "-1GiB", "0", "8 GiB!", "8QiB", "1e30"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseByteSize(wrong).status()))
        << wrong;
  }
}

TEST(HostMemoryTest, AFewBytesNeedAUnit) {
  for (const char* few : {"8", "1048575", "64"}) {
    EXPECT_THAT(std::string(ParseByteSize(few).status().message()),
                HasSubstr(std::string("was ") + few + "GiB meant?"));
  }
  EXPECT_THAT(std::string(ParseHostMemory("8").status().message()),
              HasSubstr("--host-memory"));
}

TEST(HostMemoryTest, NobodyHasMoreThanTheMachine) {
  EXPECT_GT(MachineMemory(), uint64_t{1} << 20);
  EXPECT_LE(AvailableHostMemory(), MachineMemory());
  EXPECT_EQ(*ParseHostMemory("2TiB"), uint64_t{2} << 40);  // a warning
}

}  // namespace
}  // namespace sluice
