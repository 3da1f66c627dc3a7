#include "server/cli/plan/profile_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "tests/support/sample_profile.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ProfileTableTest, ShowsAllWithUnits) {
  const std::string text = ProfileTable(SampleProfile());
  for (const char* line : {"machine +node-1",
                           "device memory +16.0 GiB",
                           "host memory +64.0 GiB",
                           "disk space +1024.0 GiB",
                           "memory, read +300 GB/s",
                           "host to device +12.0 GB/s",
                           "memory, read +40.0 GB/s",
                           "bfloat16, weights int4 +20.0 G ",
                           "int4, decode, B/s +8.00 G",
                           "quantizing KV +3.00 GB/s",
                           "dequantizing weights +20.0 GB/s",
                           "20.0 us a layer, 1.25 ns for each row",
                           "share of the rate +52 % +100 %",
                           "as the runtime reads beside computing +3.30 GB/s",
                           "1 MiB +32 +3.30 GB/s +1.00 GB/s",
                           "4 KiB +1 +10.0 MB/s +20.0 MB/s",
                           "to any peer +1.00 GB/s, 100.0 us",
                           "to 10.0.0.2:7080 +1.25 GB/s, 50.0 us",
                           "a step, beside stages +300.0 us",
                           "odd\n  - the disk is slow\n  - say"}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
  EXPECT_EQ(text.back(), '\n');
}

TEST(ProfileTableTest, LeavesOutWhatIsNotThere) {
  MachineProfile p = SampleProfile();
  p.device_memory_bytes = 0;
  p.device_compute = ComputeProfile();
  p.disk_bytes = 0;
  p.remarks.clear();
  const std::string text = ProfileTable(p);
  EXPECT_THAT(text, Not(HasSubstr("host to device")));
  EXPECT_THAT(text, Not(HasSubstr("odd")));
  EXPECT_THAT(text, HasSubstr("no disk tier (--disk-dir)"));
  // Values that were not measured break nothing.
  EXPECT_THAT(ProfileTable(MachineProfile()), HasSubstr("host memory"));
}

}  // namespace
}  // namespace sluice
