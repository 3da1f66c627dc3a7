#include "coordinator/cluster/links/link_plan.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// The transports beside gRPC, the best first.
constexpr v1::LinkTransport kDetached[] = {v1::LINK_TRANSPORT_NCCL,
                                           v1::LINK_TRANSPORT_TCP};

bool Has(const LinkAbility& worker, v1::LinkTransport transport) {
  return transport == v1::LINK_TRANSPORT_NCCL ? worker.nccl : worker.tcp;
}

// The reason why `transport` can't connect the two; "" if it can.
std::string Obstacle(v1::LinkTransport transport, const LinkAbility& a,
                     const LinkAbility& b) {
  for (const LinkAbility* worker : {&a, &b}) {
    if (!Has(*worker, transport)) {
      return absl::StrCat("worker '", worker->worker, "' has no ",
                          absl::AsciiStrToUpper(LinkName(transport)), " links");
    }
  }
  if (transport == v1::LINK_TRANSPORT_NCCL && a.gpu == b.gpu) {
    return absl::StrCat("both are on ", a.gpu);
  }
  return "";
}

// The transports that can connect the two, the best first.
std::vector<v1::LinkTransport> Possible(const LinkAbility& a,
                                        const LinkAbility& b) {
  std::vector<v1::LinkTransport> possible;
  for (const v1::LinkTransport transport : kDetached) {
    if (Obstacle(transport, a, b).empty()) possible.push_back(transport);
  }
  if (a.grpc && b.grpc) possible.push_back(v1::LINK_TRANSPORT_GRPC);
  return possible;
}

}  // namespace

LinkAbility LinkAbility::Of(const v1::Register& info) {
  LinkAbility ability;
  ability.worker = info.name();
  ability.gpu = info.gpu_uuid();
  ability.grpc = info.link_transports().empty();
  for (const int transport : info.link_transports()) {
    if (transport == v1::LINK_TRANSPORT_GRPC) ability.grpc = true;
    if (transport == v1::LINK_TRANSPORT_NCCL) ability.nccl = true;
    if (transport == v1::LINK_TRANSPORT_TCP) ability.tcp = true;
  }
  return ability;
}

std::string LinkName(v1::LinkTransport transport) {
  if (transport == v1::LINK_TRANSPORT_NCCL) return "nccl";
  return transport == v1::LINK_TRANSPORT_TCP ? "tcp" : "grpc";
}

bool NoteFailedLink(const v1::Register& info,
                    std::set<v1::LinkTransport>* failed) {
  const LinkAbility ability = LinkAbility::Of(info);
  for (const v1::LinkTransport transport : kDetached) {
    if (Has(ability, transport) && failed->insert(transport).second) {
      return true;
    }
  }
  return false;
}

LinkPlan PlanLinks(const std::vector<LinkAbility>& workers) {
  LinkPlan plan;
  for (size_t i = 0; i + 1 < workers.size(); ++i) {
    const LinkAbility& a = workers[i];
    const LinkAbility& b = workers[i + 1];
    const std::vector<v1::LinkTransport> possible = Possible(a, b);
    if (possible.empty()) {
      const bool first = !a.grpc;
      const LinkAbility& insists = first ? a : b;
      const v1::LinkTransport asked =
          insists.nccl ? v1::LINK_TRANSPORT_NCCL : v1::LINK_TRANSPORT_TCP;
      plan.misfit = static_cast<int>(first ? i : i + 1);
      plan.why =
          absl::StrCat("worker '", insists.worker, "' was started with --link ",
                       LinkName(asked), ", but can't be linked to worker '",
                       (first ? b : a).worker, "': ", Obstacle(asked, a, b),
                       "; start it with --link auto, or change the other one");
      return plan;
    }
    const auto best = std::find_if(
        possible.begin(), possible.end(), [&](v1::LinkTransport transport) {
          return !a.failed.contains(transport) && !b.failed.contains(transport);
        });
    plan.links.push_back(best == possible.end() ? possible.front() : *best);
  }
  return plan;
}

}  // namespace sluice
