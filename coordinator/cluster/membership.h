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

// The attached workers and the plan that they carry out, as the dispatcher
// deals with them: what they say goes to the part that it concerns, and a new
// plan is made when it is time (see DecidePlan). Confined to the dispatcher's
// thread.
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

  // Drops workers that have been silent for too long and makes a new plan if
  // it is time. To be called after each event and regularly.
  void Advance();

  // The answer to a search, which is OK for another plan to take the present
  // one's place.
  void OnPlanned(PlanAnswer answer);
  // Jobs came while nothing was computed, or no plan ran: the present plan may
  // not be theirs, nor the copy of the model that jobs before them began with.
  void OnNewJobs();
  // The last stage broke the protocol: its stream is cut, the plan ends.
  void BreakLastStage(const absl::Status& reason);
  // Sends a step to the first stage. REQUIRES: plan().running().
  void SendPlan(v1::StepPlan plan);
  // What needs no other part may be done with each.
  WorkerRegistry& workers() { return workers_; }
  PlanSearch& search() { return search_; }
  RunningPlan& plan() { return plan_; }

  // Why nothing moves: "waiting for workers: 1 of 2 registered",
  // "loading layers: 40 %, 1.2 GB/s, 0:35 left", a failure; while a plan runs,
  // which worker it does without, or "".
  std::string detail() const;
  // Fills epoch, min_workers, num_layers, num_blocks, gbs, workers, absent and
  // plan_failures.
  void Describe(v1::ClusterState* state);

 private:
  void OnRegistered(WorkerId id);
  void Remove(WorkerId id, const absl::Status& reason);
  // Deals with what an event has led to in the registry.
  void Settle();
  // DecidePlan's decision, and what comes of it.
  void Decide();
  void Search(std::vector<WorkerId> workers, std::optional<Plan> present);
  NextPlan AssignFixed(const std::vector<StageAssignment>& stages) const;
  ClusterView View() const;
  // Newcomers wait for the plan of the others, who are enough (see Losses).
  bool NewcomersWait() const;
  // Why the worker waits, for people; "" if it does not.
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
