#include "coordinator/cluster/links/link_plan.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// The reason why NCCL can't connect the two; "" if it can.
std::string Obstacle(const LinkAbility& a, const LinkAbility& b) {
  for (const LinkAbility* worker : {&a, &b}) {
    if (!worker->nccl) {
      return absl::StrCat("worker '", worker->worker, "' has no NCCL links");
    }
  }
  if (a.gpu == b.gpu) return absl::StrCat("both are on ", a.gpu);
  return "";
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
  }
  return ability;
}

LinkPlan PlanLinks(const std::vector<LinkAbility>& workers) {
  LinkPlan plan;
  for (size_t i = 0; i + 1 < workers.size(); ++i) {
    const LinkAbility& a = workers[i];
    const LinkAbility& b = workers[i + 1];
    const bool choice = a.grpc && b.grpc;
    const std::string obstacle = Obstacle(a, b);
    if (!obstacle.empty() && !choice) {
      const bool first = !a.grpc;
      plan.misfit = static_cast<int>(first ? i : i + 1);
      plan.why = absl::StrCat(
          "worker '", (first ? a : b).worker,
          "' was started with --link nccl, but can't be linked to worker '",
          (first ? b : a).worker, "': ", obstacle,
          "; start it with --link auto, or change the other one");
      return plan;
    }
    const bool failed = a.nccl_failed || b.nccl_failed;
    plan.links.push_back(obstacle.empty() && !(choice && failed)
                             ? v1::LINK_TRANSPORT_NCCL
                             : v1::LINK_TRANSPORT_GRPC);
  }
  return plan;
}

}  // namespace sluice
