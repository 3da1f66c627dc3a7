#pragma once

#include <set>
#include <string>
#include <vector>

#include "sluice/v1/pipeline.pb.h"

// Chooses the transport of activations from each stage to the next. Pure.

namespace sluice {

// A worker's registered link settings.
struct LinkAbility {
  std::string worker;  // its name, for messages
  bool grpc = true;    // false: the user insists on what there is else
  bool nccl = false;
  bool tcp = false;
  std::string gpu;  // its GPU, if it has NCCL
  // What failed to connect this worker.
  std::set<v1::LinkTransport> failed;

  static LinkAbility Of(const v1::Register& info);
};

// "grpc", "nccl" or "tcp".
std::string LinkName(v1::LinkTransport transport);

// Notes in `failed` that a link of this worker can't be made: by its best
// transport that had not failed yet. Returns false if it has none but gRPC, so
// that something else is not implemented.
bool NoteFailedLink(const v1::Register& info,
                    std::set<v1::LinkTransport>* failed);

struct LinkPlan {
  std::vector<v1::LinkTransport> links;  // from each worker to the next
  // The place in the pipeline of a worker that insists on an impossible link,
  // and the reason; -1 if all can be linked.
  int misfit = -1;
  std::string why;
};

// Plans the links of a pipeline of these workers, in order: NCCL where both
// ends have it and are not on the same GPU, which NCCL does not support; else
// TCP where both have it; else gRPC, if neither end insists on another. What
// has failed at either end is used only if there is nothing else.
LinkPlan PlanLinks(const std::vector<LinkAbility>& workers);

}  // namespace sluice
