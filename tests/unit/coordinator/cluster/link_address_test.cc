#include "coordinator/cluster/links/link_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::HasSubstr;

PeerPlace Elsewhere() { return {PeerPlace::kElsewhere, "10.77.0.2"}; }
PeerPlace Here() { return {PeerPlace::kThisMachine, "127.0.0.1"}; }

std::string Refusal(const std::string& address, const PeerPlace& place,
                    const std::vector<std::string>& resolved = {}) {
  const absl::Status status = CheckLinkAddress("w", address, resolved, place);
  return std::string(status.message());
}

TEST(LinkAddressTest, ALoopbackFromAnotherMachineIsRefusedWithTheRemedy) {
  for (const char* address : {"127.0.0.1:7072", "127.9.9.9:1", "localhost:1",
                              "[::1]:7072", "[::ffff:127.0.0.1]:1"}) {
    const std::string why = Refusal(address, Elsewhere());
    EXPECT_THAT(why, HasSubstr(address));
    EXPECT_THAT(why, HasSubstr("its own loopback"));
    EXPECT_THAT(why, HasSubstr("--host 0.0.0.0 --advertise 10.77.0.2"));
    EXPECT_EQ(Refusal(address, Here()), "") << address;
    EXPECT_EQ(Refusal(address, PeerPlace()), "") << address;
  }
}

TEST(LinkAddressTest, ANameOfTheLoopbackIsOneToo) {
  EXPECT_THAT(Refusal("vm:1", Elsewhere(), {"127.0.1.1"}),
              HasSubstr("which here is 127.0.1.1, a loopback address"));
  EXPECT_EQ(Refusal("vm:1", Elsewhere(), {"127.0.1.1", "10.0.0.1"}), "");
  EXPECT_EQ(Refusal("vm:1", Here(), {"127.0.1.1"}), "");
}

TEST(LinkAddressTest, NoMachineHasTheUnspecifiedAddress) {
  for (const char* address : {"0.0.0.0:1", "[::]:1"}) {
    EXPECT_THAT(Refusal(address, Elsewhere()), HasSubstr("no machine's"));
    EXPECT_THAT(Refusal(address, Here()), HasSubstr("--advertise ADDRESS"));
  }
}

TEST(LinkAddressTest, WhatIsNoAddressIsRefused) {
  for (const char* address : {"nowhere", ":1", "[]:1", "[::1:1", ""}) {
    EXPECT_THAT(Refusal(address, Here()), HasSubstr("HOST:PORT")) << address;
  }
}

TEST(LinkAddressTest, OthersPass) {
  for (const char* address :
       {"10.0.0.1:7072", "node-b:7072", "[fe80::1%eth0]:1", "128.0.0.1:1"}) {
    EXPECT_EQ(Refusal(address, Elsewhere()), "") << address;
  }
}

TEST(LinkAddressTest, KnowsWhereAPeerIs) {
  struct Case {
    const char* peer;
    PeerPlace::Kind kind;
    const char* host;
  };
  // 192.0.2.0/24 and 2001:db8::/32 are reserved for documentation.
  const Case cases[] = {
      {"ipv4:127.0.0.1:33", PeerPlace::kThisMachine, "127.0.0.1"},
      {"ipv6:[::1]:33", PeerPlace::kThisMachine, "::1"},
      {"ipv6:%5B::1%5D:33", PeerPlace::kThisMachine, "::1"},
      {"ipv6:[::ffff:127.0.0.1]:33", PeerPlace::kThisMachine,
       "::ffff:127.0.0.1"},
      {"ipv4:192.0.2.7:33", PeerPlace::kElsewhere, "192.0.2.7"},
      {"ipv6:%5B2001:db8::7%5D:33", PeerPlace::kElsewhere, "2001:db8::7"},
      {"unix:/tmp/x", PeerPlace::kUnknown, ""},
      {"inproc", PeerPlace::kUnknown, ""},
      {"ipv4:nonsense:33", PeerPlace::kUnknown, ""},
      {"", PeerPlace::kUnknown, ""},
  };
  for (const Case& c : cases) {
    const PeerPlace place = PlaceOf(c.peer);
    EXPECT_EQ(place.kind, c.kind) << c.peer;
    EXPECT_EQ(place.host, c.host) << c.peer;
  }
}

TEST(LinkAddressTest, ResolvesNumbersWithoutAskingAnybody) {
  const auto addresses = ResolveHost("127.0.0.1");
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_THAT(*addresses, testing::ElementsAre("127.0.0.1"));
  EXPECT_TRUE(IsNumericHost("10.0.0.1"));
  EXPECT_TRUE(IsNumericHost("::1"));
  EXPECT_FALSE(IsNumericHost("node-b"));
}

}  // namespace
}  // namespace sluice
