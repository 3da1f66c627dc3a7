#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/plan_search.h"
#include "coordinator/cluster/running_plan.h"
#include "coordinator/cluster/worker_registry.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The attached workers and their plan, for the dispatcher: passes workers'
// messages to the parts that they concern, and makes a new plan when it is time
// (see DecidePlan). Confined to the dispatcher's thread.
class Membership {
 public:
  using Phase = RunningPlan::Phase;

  explicit Membership(const ClusterOptions& options);

  void OnOpened(WorkerId id, std::shared_ptr<WorkerStream> stream,
                PeerPlace place = {});
  // Returns the message's StepResult if it comes from the last stage of the
  // running plan.
  std::optional<v1::StepResult> OnMessage(WorkerId id,
                                          v1::WorkerMessage message);
  void OnClosed(WorkerId id, const absl::Status& reason);

  void OnResolved(WorkerId id,
                  const absl::StatusOr<std::vector<std::string>>& addresses);

  // Drops workers that have been silent for too long and makes a new plan if it
  // is time. Must be called after each event and regularly.
  void Advance();

  // Takes the answer to a search; an OK one is of a plan that is to replace the
  // present one.
  void OnPlanned(PlanAnswer answer);
  // Called when jobs came while nothing was computed, or no plan ran: the
  // present plan may not fit them, nor the earlier jobs' copy of the model.
  void OnNewJobs();
  // Cuts off the last stage, which broke the protocol, and ends the plan.
  void BreakLastStage(const absl::Status& reason);
  // Sends a step to the first stage. REQUIRES: plan().running().
  void SendPlan(v1::StepPlan plan);
  // These give access to single parts.
  WorkerRegistry& workers() { return workers_; }
  PlanSearch& search() { return search_; }
  RunningPlan& plan() { return plan_; }

  // The reason why nothing runs: "waiting for workers: 1 of 2 registered",
  // "loading layers: 40 %, 1.2 GB/s, 0:35 left", a failure; while a plan runs,
  // the worker that it excludes, or "".
  std::string detail() const;
  // Fills epoch, min_workers, num_layers, num_blocks, gbs, workers, absent and
  // plan_failures.
  void Describe(v1::ClusterState* state);

 private:
  void OnRegistered(WorkerId id);
  void Remove(WorkerId id, const absl::Status& reason);
  // Handles the registry's changes after an event.
  void Settle();
  // Carries out DecidePlan's decision.
  void Decide();
  void Search(std::vector<WorkerId> workers, std::optional<Plan> present);
  NextPlan AssignFixed(const std::vector<StageAssignment>& stages) const;
  ClusterView View() const;
  // Whether newcomers wait for the plan of the others (see Losses).
  bool NewcomersWait() const;
  // The reason why the worker waits, for people; "" if it does not.
  std::string WaitsFor(WorkerId id, const AttachedWorker& worker) const;
  void DescribeWorker(WorkerId id, const AttachedWorker& worker,
                      v1::ClusterState* state) const;

  const ClusterOptions options_;
  WorkerRegistry workers_;
  PlanSearch search_;
  RunningPlan plan_;
  absl::Duration advanced_at_;
};

}  // namespace sluice
