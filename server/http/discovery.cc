#include "server/http/discovery.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/links/link_address.h"

namespace sluice {

std::string DiscoveryJson(const v1::ClusterState& state) {
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  for (const v1::WorkerInfo& worker : state.workers()) {
    const size_t colon = worker.metrics_address().rfind(':');
    const absl::StatusOr<std::string> host = HostOf(worker.link_address());
    if (colon == std::string::npos || !host.ok()) continue;
    const bool is_ipv6 = host->find(':') != std::string::npos;
    targets.push_back(
        {{"targets",
          {absl::StrCat(is_ipv6 ? "[" : "", *host, is_ipv6 ? "]" : "",
                        worker.metrics_address().substr(colon))}},
         {"labels",
          {{"__meta_sluice_worker", worker.name()},
           {"__meta_sluice_device", worker.device()},
           {"__meta_sluice_pipeline", absl::StrCat(worker.pipeline())}}}});
  }
  return targets.dump(-1, ' ', false,
                      nlohmann::ordered_json::error_handler_t::replace);
}

HttpRoute DiscoveryRoute(CoordinatorHandle* coordinator) {
  return {.method = "GET",
          .pattern = "/sd",
          .scope = Scope::kRead,
          .handler = [coordinator](const HttpRequest&) {
            absl::StatusOr<std::string> json =
                coordinator->Use([](Coordinator* c) {
                  return DiscoveryJson(c->cluster_state());
                });
            return json.ok() ? HttpAnswer::Json(*std::move(json))
                             : HttpError(json.status());
          }};
}

}  // namespace sluice
