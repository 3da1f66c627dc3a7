#include "common/host/host_port.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(HostPortTest, BracketsStandAroundAnIpv6Address) {
  EXPECT_EQ(JoinHostPort("127.0.0.1", 80), "127.0.0.1:80");
  EXPECT_EQ(JoinHostPort("localhost", 0), "localhost:0");
  EXPECT_EQ(JoinHostPort("::1", 80), "[::1]:80");
  EXPECT_EQ(JoinHostPort("[::1]", 80), "[::1]:80");
}

}  // namespace
}  // namespace sluice
