#include "common/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(VersionTest, IsTheReleaseAndTheCommit) {
  EXPECT_THAT(ReleaseVersion(), testing::MatchesRegex("[0-9]+.[0-9]+.[0-9]+"));
  EXPECT_THAT(BuildCommit(),
              testing::MatchesRegex("unknown|([0-9a-f]{12}(-dirty)?)"));
  EXPECT_EQ(BuildVersion(),
            std::string(ReleaseVersion()) + "+" + BuildCommit());
}

}  // namespace
}  // namespace sluice
