#include "coordinator/cluster/links/link_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Names = absl::flat_hash_set<std::string>;

// Returns "b=link:b" for each peer.
std::vector<std::string> Asks(int workers, size_t place, Names* asked) {
  std::vector<v1::Register> infos(workers);
  std::vector<const v1::Register*> pointers;
  for (int i = 0; i < workers; ++i) {
    infos[i].set_name(std::string(1, static_cast<char>('a' + i)));
    infos[i].set_link_address(absl::StrCat("link:", infos[i].name()));
    pointers.push_back(&infos[i]);
  }
  std::vector<std::string> out;
  const v1::MeasureLinks ask = LinksToMeasure(pointers, place, asked);
  for (const auto& peer : ask.peers()) {
    out.push_back(absl::StrCat(peer.name(), "=", peer.link_address()));
  }
  return out;
}

TEST(LinkFactsTest, EachMeasuresTheNextOnesFirst) {
  Names a, b, c;
  EXPECT_THAT(Asks(3, 0, &a), ElementsAre("b=link:b", "c=link:c"));
  EXPECT_THAT(Asks(3, 1, &b), ElementsAre("c=link:c", "a=link:a"));
  EXPECT_THAT(Asks(3, 2, &c), ElementsAre("a=link:a", "b=link:b"));
  // Each link is asked for once; later only new ones are.
  EXPECT_THAT(Asks(3, 0, &a), ElementsAre());
  EXPECT_THAT(Asks(4, 0, &a), ElementsAre("d=link:d"));
  Names alone;
  EXPECT_THAT(Asks(1, 0, &alone), ElementsAre());
  Names many;
  EXPECT_EQ(Asks(20, 0, &many).size(), kMaxLinkPeers);
}

// Links are measured by what they will go by.
TEST(LinkFactsTest, ByTcpWhereBothHaveIt) {
  v1::Register a, b, c;
  a.set_name("a");
  b.set_name("b");
  c.set_name("c");
  for (v1::Register* info : {&a, &b}) {
    info->add_link_transports(v1::LINK_TRANSPORT_GRPC);
    info->add_link_transports(v1::LINK_TRANSPORT_TCP);
  }
  Names asked;
  const v1::MeasureLinks ask = LinksToMeasure({&a, &b, &c}, 0, &asked);
  ASSERT_EQ(ask.peers_size(), 2);
  EXPECT_EQ(ask.peers(0).link(), v1::LINK_TRANSPORT_TCP);
  EXPECT_EQ(ask.peers(1).link(), v1::LINK_TRANSPORT_GRPC);
}

v1::LinksMeasured Measured(
    const std::vector<std::pair<std::string, double>>& rates) {
  v1::LinksMeasured out;
  for (const auto& [peer, rate] : rates) {
    auto* link = out.add_links();
    link->set_peer(peer);
    link->set_bytes_per_second(rate);
    link->set_latency_seconds(1 / rate);
  }
  return out;
}

TEST(LinkFactsTest, WhatWasMeasuredIsKnownOfEachPeerAndOfAny) {
  MachineProfile profile;
  profile.links.push_back(
      {.bytes_per_second = 1e9, .latency_seconds = 1e-9});  // the loopback's
  const Names asked = {"b", "c"};
  EXPECT_EQ(
      AddMeasuredLinks(Measured({{"b", 100}, {"c", 50}}), asked, &profile), "");
  EXPECT_EQ(profile.Link("b")->bytes_per_second, 100);
  EXPECT_EQ(profile.Link("c")->bytes_per_second, 50);
  EXPECT_EQ(profile.Link("c")->latency_seconds, 1.0 / 50);
  // The link to any peer is the slowest.
  EXPECT_EQ(profile.Link("")->bytes_per_second, 50);
  EXPECT_EQ(profile.Link("")->latency_seconds, 1.0 / 50);
  EXPECT_EQ(profile.Link("d")->bytes_per_second, 50);
  // A second measurement makes no second entry.
  EXPECT_EQ(AddMeasuredLinks(Measured({{"c", 200}}), asked, &profile), "");
  EXPECT_EQ(profile.links.size(), 3u);
  EXPECT_EQ(profile.Link("")->bytes_per_second, 100);
}

TEST(LinkFactsTest, NonsenseAndFailuresAreToldAndChangeNothing) {
  MachineProfile profile;
  profile.links.push_back({.bytes_per_second = 1e9, .latency_seconds = 1e-4});
  const MachineProfile before = profile;
  v1::LinksMeasured failed = Measured({{"b", 0}, {"c", 1}});
  failed.mutable_links(0)->set_error("link to x: nobody answers");
  failed.mutable_links(1)->set_bytes_per_second(
      std::numeric_limits<double>::infinity());
  const std::string why = AddMeasuredLinks(failed, {"b", "c"}, &profile);
  EXPECT_THAT(why, HasSubstr("to 'b': link to x: nobody answers"));
  EXPECT_THAT(why, HasSubstr("to 'c': inf bytes/s"));
  for (const double rate : {0.0, -1.0, std::nan("")}) {
    EXPECT_NE(AddMeasuredLinks(Measured({{"b", rate}}), {"b"}, &profile), "");
  }
  // This link was not asked for.
  EXPECT_EQ(AddMeasuredLinks(Measured({{"z", 5}}), {"b"}, &profile), "");
  EXPECT_EQ(profile, before);
  // A long error is cut.
  failed.mutable_links(0)->set_error(std::string(100000, 'x'));
  EXPECT_LT(AddMeasuredLinks(failed, {"b", "c"}, &profile).size(), 1000u);
}

}  // namespace
}  // namespace sluice
