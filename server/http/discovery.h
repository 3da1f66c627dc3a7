#pragma once

#include <string>

#include "common/http/http_message.h"
#include "server/http/coordinator_handle.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The registered workers as targets of Prometheus' HTTP service discovery
// (http_sd_config): [{"targets": ["host:port"], "labels": {...}}, ...]. A
// target is the host at which other workers reach the worker, with the port of
// its metrics; workers that serve none are left out. The labels
// __meta_sluice_worker, __meta_sluice_device and __meta_sluice_pipeline are for
// relabeling.
std::string DiscoveryJson(const v1::ClusterState& state);

// GET /sd, for callers that may read. `coordinator` must outlive the server.
HttpRoute DiscoveryRoute(CoordinatorHandle* coordinator);

}  // namespace sluice
