#pragma once

#include <string>
#include <vector>

#include "sluice/v1/pipeline.pb.h"

// Chooses the transport of activations from each stage to the next. Pure.

namespace sluice {

// A worker's registered link settings.
struct LinkAbility {
  std::string worker;  // its name, for messages
  bool grpc = true;    // false: the user insists on NCCL
  bool nccl = false;
  std::string gpu;  // its GPU, if it has NCCL
  // Whether NCCL failed to connect this worker.
  bool nccl_failed = false;

  static LinkAbility Of(const v1::Register& info);
};

struct LinkPlan {
  std::vector<v1::LinkTransport> links;  // from each worker to the next
  // The place in the pipeline of a worker that insists on an impossible link,
  // and the reason; -1 if all can be linked.
  int misfit = -1;
  std::string why;
};

// Plans the links of a pipeline of these workers, in order: NCCL where both
// ends have it, it has not failed at either, and they are not on the same GPU,
// which NCCL does not support; else gRPC, if neither end insists on NCCL.
LinkPlan PlanLinks(const std::vector<LinkAbility>& workers);

}  // namespace sluice
