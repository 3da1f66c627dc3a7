#include "worker/name_claim.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

TEST(NameClaimTest, GivesEachTheFirstFreeName) {
  const std::string host = absl::StrCat("name-claim-test-", getpid());
  std::optional<NameClaim> first(host);
  const NameClaim second(host);
  const NameClaim third(host);
  EXPECT_EQ(first->name(), host);
  EXPECT_EQ(second.name(), host + "-2");
  EXPECT_EQ(third.name(), host + "-3");
  first.reset();
  EXPECT_EQ(NameClaim(host).name(), host);
}

TEST(NameClaimTest, LongNamesAreKept) {
  const std::string host(200, 'h');
  EXPECT_EQ(NameClaim(host).name(), host);
}

}  // namespace
}  // namespace sluice
