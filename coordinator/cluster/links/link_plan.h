#pragma once

#include <string>
#include <vector>

#include "sluice/v1/pipeline.pb.h"

// What carries activations from each stage of a plan to the next one: pure.

namespace sluice {

// What a worker said of its links when it registered.
struct LinkAbility {
  std::string worker;  // its name, for messages
  bool grpc = true;    // false: the user insists on NCCL
  bool nccl = false;
  std::string gpu;  // its GPU, if it has NCCL
  // NCCL could not connect this worker.
  bool nccl_failed = false;

  static LinkAbility Of(const v1::Register& info);
};

struct LinkPlan {
  std::vector<v1::LinkTransport> links;  // from each worker to the next
  // The worker that insists on what can't be, as its place in the pipeline, and
  // why; -1 if all can be linked.
  int misfit = -1;
  std::string why;
};

// For a pipeline of these workers, in order: NCCL where both ends have it, it
// has not failed at either, and they are not on the same GPU, which NCCL does
// not connect; else gRPC, if neither end insists on NCCL.
LinkPlan PlanLinks(const std::vector<LinkAbility>& workers);

}  // namespace sluice
