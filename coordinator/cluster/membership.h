#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/groups/group_search.h"
#include "coordinator/cluster/groups/worker_groups.h"
#include "coordinator/cluster/pipeline.h"
#include "coordinator/cluster/plan_numbers.h"
#include "coordinator/cluster/worker_registry.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The attached workers and their plans, for the dispatcher: groups the workers
// into pipelines, which make plans of their own (see DecideGroups, DecidePlan),
// and passes workers' messages to the parts that they concern. Confined to the
// dispatcher's thread.
//
// Pipelines are numbered from 0, and keep their numbers; there is always one.
// One that has lost all its workers stays, empty, until others are grouped into
// it. A worker that comes or goes concerns its own pipeline only.
class Membership {
 public:
  using Phase = RunningPlan::Phase;

  explicit Membership(const ClusterOptions& options);

  void OnOpened(WorkerId id, std::shared_ptr<WorkerStream> stream,
                PeerPlace place = {});
  // Returns the message's StepResult if it comes from the last stage of a
  // running plan, whose epoch it has.
  std::optional<v1::StepResult> OnMessage(WorkerId id,
                                          v1::WorkerMessage message);
  void OnClosed(WorkerId id, const absl::Status& reason);

  void OnResolved(WorkerId id,
                  const absl::StatusOr<std::vector<std::string>>& addresses);

  // Has plans do without the worker of that name, if there is one, or use it
  // again.
  void Drain(const std::string& name, bool drained);

  // Drops workers that have been silent for too long and makes new plans if it
  // is time. Must be called after each event and regularly.
  void Advance();

  // Takes the answer to a search; an OK one is of a plan that is to replace the
  // present one.
  void OnPlanned(PlanAnswer answer);
  // Called when jobs came while a pipeline computed nothing, or had no running
  // plan: its plan may not fit them, nor the earlier jobs' copy of the model.
  void OnNewJobs(size_t pipeline = 0);
  // Called besides when no pipeline computed anything: other groups of workers
  // may be better for the new jobs.
  void OnNewJobsWhileIdle() { group_search_.OnNewJobs(); }
  // Cuts off the last stage, which broke the protocol, and ends the plan.
  void BreakLastStage(const absl::Status& reason, size_t pipeline = 0);
  // Sends a step to the first stage. REQUIRES: plan(pipeline).running().
  void SendPlan(v1::StepPlan plan, size_t pipeline = 0);
  // These give access to single parts.
  WorkerRegistry& workers() { return workers_; }
  size_t num_pipelines() const { return pipelines_.size(); }
  RunningPlan& plan(size_t pipeline = 0) {
    return pipelines_[pipeline]->plan();
  }
  const RunningPlan& plan(size_t pipeline) const {
    return pipelines_[pipeline]->plan();
  }
  PlanSearch& search(size_t pipeline = 0) {
    return pipelines_[pipeline]->search();
  }
  // Returns each search that is to be made once.
  std::optional<PlanTask> TakeTask();

  // Returns the plans for the jobs' records if one or its prediction changed:
  // JSON, or "" for the workers' own choice.
  std::optional<std::string> TakeNewPlan();

  // Running if any plan runs, else loading if any loads.
  Phase phase() const;
  // The reason why nothing runs: "waiting for workers: 1 of 2 registered",
  // "loading layers: 40 %, 1.2 GB/s, 0:35 left", a failure; while plans run,
  // the pipeline that does not, the worker that they exclude, or "".
  std::string detail() const;
  // The same of one pipeline.
  std::string detail(size_t pipeline) const {
    return pipelines_[pipeline]->detail();
  }
  // Whether requests may wait for the pipeline, which does not run: it has its
  // workers, or will if those come back that it lost at most
  // WorkerTimeouts::kLostKept ago. False when others have got its workers.
  bool Awaited(size_t pipeline) const;
  // Fills epoch, min_workers, num_layers, num_blocks, gbs, plan, workers,
  // absent, plan_failures and, apart from what the dispatcher knows, pipelines.
  void Describe(v1::ClusterState* state);

 private:
  void Handle(WorkerId id, v1::WorkerMessage message);
  void OnRegistered(WorkerId id);
  void Remove(WorkerId id, const absl::Status& reason);
  // Lets workers go that are withdrawn and in no plan any more.
  void LetGo();
  // Whether the worker may be in a pipeline.
  static bool Usable(const AttachedWorker& worker) {
    return worker.known() && !worker.withdrawn();
  }
  // Handles the registry's changes after an event.
  void Settle();
  // Gives workers that have no pipeline one, if it is time.
  void Group();
  GroupView View() const;
  void Move(WorkerId id, size_t pipeline);
  // Makes these groups the pipelines; those that stay as they are go on.
  void Apply(const std::vector<GroupSearch::Group>& groups);
  // The workers that the planner is to group: it knows nothing of those that
  // plans do better without.
  std::vector<WorkerId> UsableForGroups() const;
  // Divides machines that workers of several pipelines take turns on among
  // these.
  void ShareMachines(PlanTask* task) const;
  // Searches for better groups, if that is to be done; `none_works`: see
  // GroupDecision.
  void SearchGroups(bool none_works);
  // Returns the pipelines that have workers.
  std::vector<size_t> InUse() const;
  // Whether plans need not do without the worker.
  bool Able(const AttachedWorker& worker) const;
  // Whether the pipeline computes, or has workers enough for that.
  bool Works(size_t pipeline) const;
  // Removes a worker whose name and link address this one has: no two can have
  // the address, so this one is the same, started or attached again.
  void RemoveFormerSelf(WorkerId id, const v1::Register& info);
  // Returns the worker's pipeline, or null.
  Pipeline* PipelineOf(WorkerId id) const;
  void DescribeWorker(WorkerId id, const AttachedWorker& worker,
                      v1::ClusterState* state) const;

  const ClusterOptions options_;
  PlanNumbers numbers_;
  WorkerRegistry workers_;
  GroupSearch group_search_;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
  std::vector<bool> laid_out_ = {true};  // which are of the present layout
  std::map<WorkerId, size_t> pipeline_of_;
  // The last pipelines of workers that are gone, by name.
  struct Former {
    size_t pipeline = 0;
    absl::Duration lost_at;
  };
  absl::flat_hash_map<std::string, Former> former_pipeline_;
  std::string group_detail_;  // why there are no pipelines yet, or ""
  // The change of workers since which all are where they belong.
  std::optional<int64_t> grouped_at_;
  absl::Duration advanced_at_;
};

}  // namespace sluice
