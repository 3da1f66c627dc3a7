#include "coordinator/cluster/links/link_facts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/links/link_plan.h"

namespace sluice {
namespace {

constexpr size_t kMaxErrorBytes = 256;

LinkProfile* FindLink(MachineProfile* profile, const std::string& peer) {
  for (LinkProfile& link : profile->links) {
    if (link.peer == peer) return &link;
  }
  profile->links.push_back({.peer = peer});
  return &profile->links.back();
}

bool MakesSense(const v1::LinksMeasured::Link& link) {
  return std::isfinite(link.bytes_per_second()) &&
         link.bytes_per_second() > 0 && std::isfinite(link.latency_seconds()) &&
         link.latency_seconds() >= 0;
}

}  // namespace

v1::MeasureLinks LinksToMeasure(const std::vector<const v1::Register*>& workers,
                                size_t place,
                                absl::flat_hash_set<std::string>* asked) {
  v1::MeasureLinks out;
  const size_t peers = std::min(workers.size() - 1, kMaxLinkPeers);
  for (size_t i = 1; i <= peers; ++i) {
    const v1::Register& peer = *workers[(place + i) % workers.size()];
    if (!asked->insert(peer.name()).second) continue;
    auto* to = out.add_peers();
    to->set_name(peer.name());
    to->set_link_address(peer.link_address());
    const LinkPlan link =
        PlanLinks({LinkAbility::Of(*workers[place]), LinkAbility::Of(peer)});
    if (link.misfit < 0 && link.links[0] == v1::LINK_TRANSPORT_TCP) {
      to->set_link(v1::LINK_TRANSPORT_TCP);
    }
  }
  return out;
}

std::string AddMeasuredLinks(const v1::LinksMeasured& measured,
                             const absl::flat_hash_set<std::string>& asked,
                             MachineProfile* profile) {
  std::string trouble;
  const auto tell = [&](const v1::LinksMeasured::Link& link,
                        const std::string& why) {
    absl::StrAppend(&trouble, trouble.empty() ? "" : "; ", "to '", link.peer(),
                    "': ", why.substr(0, kMaxErrorBytes));
  };
  for (const auto& link : measured.links()) {
    if (!asked.contains(link.peer())) continue;
    if (!link.error().empty()) {
      tell(link, link.error());
      continue;
    }
    if (!MakesSense(link)) {
      tell(link, absl::StrCat(link.bytes_per_second(), " bytes/s and ",
                              link.latency_seconds(), " s make no sense"));
      continue;
    }
    LinkProfile* const to = FindLink(profile, link.peer());
    to->bytes_per_second = link.bytes_per_second();
    to->latency_seconds = link.latency_seconds();
  }
  bool any = false;
  LinkProfile slowest;
  for (const LinkProfile& link : profile->links) {
    if (!asked.contains(link.peer)) continue;
    slowest.bytes_per_second =
        any ? std::min(slowest.bytes_per_second, link.bytes_per_second)
            : link.bytes_per_second;
    slowest.latency_seconds =
        std::max(slowest.latency_seconds, link.latency_seconds);
    any = true;
  }
  if (any) *FindLink(profile, "") = std::move(slowest);
  return trouble;
}

LinkBlame::Verdict LinkBlame::OnUnreached(const std::string& from,
                                          const std::string& to) {
  std::set<std::string>& mine = unreached_[from];
  mine.insert(to);
  const bool only_me =
      std::all_of(unreached_.begin(), unreached_.end(), [&](const auto& entry) {
        return entry.first == from ||
               std::none_of(mine.begin(), mine.end(),
                            [&](const std::string& name) {
                              return entry.second.contains(name);
                            });
      });
  if (mine.size() < 2 || !only_me) return {to, {}};
  return {from, {mine.begin(), mine.end()}};
}

void LinkBlame::OnReached(const std::string& from, const std::string& to) {
  const auto it = unreached_.find(from);
  if (it == unreached_.end()) return;
  it->second.erase(to);
  if (it->second.empty()) unreached_.erase(it);
}

void LinkBlame::Forget(const std::string& name) {
  unreached_.erase(name);
  for (auto it = unreached_.begin(); it != unreached_.end();) {
    it->second.erase(name);
    it = it->second.empty() ? unreached_.erase(it) : std::next(it);
  }
}

}  // namespace sluice
