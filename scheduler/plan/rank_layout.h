#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "scheduler/plan/layout.h"
#include "scheduler/plan/plan.h"

// Which parts of a machine, its GPUs or NUMA nodes, compute stages together.
// "Efficiently Scaling Transformer Inference" (Pope et al.) divides every layer
// over all chips (section 3.2). Alpa ("Automating Inter- and Intra-Operator
// Parallelism for Distributed Deep Learning", sections 4 and 5) divides layers
// over devices between which communication is fast, and the model over groups
// of these: the outer search asks the inner one for each group's cost. So here:
// parts of a machine are put together to groups of each size that divides their
// number, and the groups to pipelines by MakeLayout. Pure and deterministic.

namespace sluice {

// The machine that some parts are together, the ranks of its stages. Its rates
// are those of its slowest part. REQUIRES: parts of one whole (see
// CanComputeTogether), at most kMaxRanks, in order.
MachineProfile TogetherAs(const std::vector<const MachineProfile*>& parts);

// Whether stages may have these parts as ranks: parts of one whole, of one rank
// each, with an exchange, and nearly alike.
bool CanComputeTogether(const MachineProfile& a, const MachineProfile& b);

// Machines that parts were put together to, or workers with a number of ranks.
struct Grouping {
  std::vector<MachineProfile> machines;  // in the order of their first parts
  std::vector<std::vector<int>> parts;   // of each: indices in the request
};

struct RankLayout {
  Grouping grouping;
  // Whose pipelines and spares are indices in grouping.machines.
  LayoutResult layout;
  // The best layout with each other size of groups, and why it is not chosen.
  std::vector<Alternative> rejected;
};

// The layout with the least predicted time of the job, over all sizes of groups
// that divide a machine's parts, and all numbers of ranks that a worker may
// have (MachineProfile::rank_choices): `replicas` as for MakeLayout. Policies
// say how many ranks there are. Machines whose
// parts are alike have groups of one size at first; where machines are of
// several kinds, each kind's size is then changed as long as that helps, and
// all are tried where they are few. A larger group is better only if it is
// faster by more than 2 %.
//
// Errors as MakeLayout's for parts alone, if no size fits.
absl::StatusOr<RankLayout> MakeRankLayout(const PlanRequest& request,
                                          int32_t replicas);

// Calls `take` with each grouping in which all groups of a machine are of one
// size: for comparisons. Up to 4096.
void ForEachRankGrouping(const std::vector<MachineProfile>& machines,
                         absl::FunctionRef<void(const Grouping&)> take);

}  // namespace sluice
