#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/cluster/absent_workers.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/load_rate.h"
#include "coordinator/cluster/plan_numbers.h"
#include "coordinator/cluster/plan_search.h"
#include "coordinator/cluster/stage_assignment.h"
#include "coordinator/cluster/stall.h"
#include "coordinator/cluster/worker_registry.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The plan that the workers carry out: follows its loading, notices stalls, and
// ends it when a worker fails. Confined to the dispatcher's thread.
//
// A running plan goes on until the one that takes its place can begin: joining
// workers must first show that they can do their part. They load their stages
// ahead, and every link that the present plan does not have is opened once. If
// one fails, the worker to blame is left out, and the present plan is
// undisturbed.
//
// Workers whose heartbeats arrive may still be stalled: a thread that hangs in
// a disk or a device, a loader that waits for a file that never comes. A
// working stage counts finished pieces of work (marks), however long the whole
// takes; so the plan watches these marks, and no step is too long.
class RunningPlan {
 public:
  enum class Phase { kNoPlan, kLoading, kRunning };

  // All must outlive the plan.
  RunningPlan(const ClusterOptions& options, WorkerRegistry* workers,
              PlanSearch* search, PlanNumbers* numbers);

  // -- The workers that may be in the plan.

  bool Has(WorkerId id) const { return members_.contains(id); }
  int32_t num_workers() const { return static_cast<int32_t>(members_.size()); }
  std::vector<WorkerId> workers() const;
  // Adds a registered worker, which holds these layers; if they are empty, but
  // it was here by that name, it may still hold those of then.
  void Join(WorkerId id, LayerRange held = {});
  // Lets the worker go to another plan, and ends this one if it is in it.
  // Returns the layers that it holds.
  LayerRange Leave(WorkerId id, const std::string& why);
  // Gives up the plan that is to follow, if the worker, which is to go, is in
  // it.
  void Withdraw(WorkerId id) {
    if (InPreparation(id)) EndPreparation("a worker is to go");
  }
  // Whether a worker of the plan is to go: any plan without it is better.
  bool HoldsWithdrawn() const {
    return std::any_of(stages_.begin(), stages_.end(), [&](WorkerId id) {
      return workers_->at(id).withdrawn();
    });
  }
  // As Leave, for a worker that goes to no other plan: it drops its layers.
  void Dismiss(WorkerId id, const std::string& why);

  // -- Messages of workers. REQUIRES: Has(id).

  void OnHeartbeat(WorkerId id, v1::Heartbeat heartbeat);
  void OnLoadProgress(WorkerId id, const v1::LoadProgress& progress);
  void OnStageReady(WorkerId id, const v1::StageReady& ready);
  void OnStageFailed(WorkerId id, const v1::StageFailed& failed);
  void OnLinkId(WorkerId id, v1::LinkId link);
  void OnLinksReached(WorkerId id, const v1::LinksReached& reached);
  // Returns whether the result is of the running plan; counts as progress.
  bool TakesResult(WorkerId id, const v1::StepResult& result);
  // Called when the worker has left the registry, which knew this of it.
  void OnGone(WorkerId id, const AttachedWorker& worker,
              const absl::Status& reason);

  // -- Decisions of the owner.

  // Begins the next plan: at once if there is none and its links are known to
  // work; else when the present one runs or has a worker that is to go, the
  // workers that are not in it are ready, and the links can be opened. Fails if
  // they can't be linked.
  void Follow(NextPlan next);
  // Whether a plan for this many workers is being prepared.
  bool Prepares(size_t workers) const {
    return preparation_ &&
           preparation_->next.workers >= static_cast<int32_t>(workers);
  }
  // Returns whether these workers can be linked; if not, one gets the reason.
  bool CanLink(const std::vector<StageAssignment>& stages) {
    return LinksFor(stages).has_value();
  }
  void End(const std::string& why, LogLevel level = LogLevel::kWarning);
  // Replaces the running plan's prediction.
  void Refresh(Plan plan, const PhaseRows& rows);
  // Finds stalled workers, and begins the prepared plan when it is ready;
  // `passed` is time in which this process ran.
  void Watch(absl::Duration passed);
  void FollowPreparation(absl::Duration passed);
  // Sets the oldest step in flight, if there is one: while it stays the same,
  // and no stage makes progress, the plan is stalled. Must be called before
  // each Watch.
  void OnSteps(std::optional<int64_t> oldest);
  // Called on progress of the plan: a later failure waits only briefly.
  void OnProgress();
  // Called when workers came or went: a failed plan may work now.
  void ForgetFailures();

  // -- State.

  Phase phase() const { return phase_; }
  bool running() const { return phase_ == Phase::kRunning; }
  // The newest plan's epoch; 0 before the first.
  PlanEpoch epoch() const { return epoch_; }
  const std::vector<WorkerId>& stages() const { return stages_; }
  // The plan; nullopt if the workers choose themselves.
  const std::optional<Plan>& plan() const { return plan_; }
  // REQUIRES: phase() != kNoPlan.
  int32_t num_blocks() const { return num_blocks_; }
  // See StepScheduler::Options. REQUIRES: phase() != kNoPlan.
  int32_t steps_in_flight() const {
    return StepsInFlight(policy().slicing, static_cast<int>(stages_.size()));
  }
  // The common settings of its stages: gbs, num_microbatches, max_step_tokens,
  // slicing, slice_context.
  const Policy& policy() const { return plan_ ? policy_ : options_.policy; }
  // Capacity of the running plan: that of the tightest stage; and whether all
  // stages take pages by need.
  int64_t kv_pages() const { return kv_.pages; }
  bool kv_by_need() const { return kv_.by_need; }
  // Whether sequences can share pages on all stages.
  bool kv_shared() const { return kv_.shared; }
  const WindowRoom& kv_window() const { return kv_.window; }
  int32_t page_tokens() const { return kv_.page_tokens; }
  // The worker's stage, or -1; and whether it loads a stage of the next plan.
  int32_t StageOf(WorkerId id) const;
  bool Preparing(WorkerId id) const;

  // Returns the plan for the jobs' records if it or its prediction changed:
  // JSON, or "" for the workers' own choice.
  std::optional<std::string> TakeNewPlan();
  // Whether newcomers wait for the plan of the others, if these suffice.
  bool HoldsNewcomers() const;
  int losses_in_a_row() const { return losses_.in_a_row(); }
  // Fills DecidePlan's input.
  void View(ClusterView* view) const;

  // The reason why nothing runs.
  std::string detail() const;
  void SetDetail(std::string detail) { detail_ = std::move(detail); }
  // Fills all of a pipeline but its number and what the dispatcher knows.
  void Describe(v1::PipelineInfo* info) const;
  // Fills what a worker of the plan does. REQUIRES: Has(id).
  void Describe(WorkerId id, v1::WorkerInfo* info) const;

 private:
  // What a stage says of its KV cache (v1::StageReady), or all of them.
  struct KvRoom {
    int64_t pages = 0;
    bool by_need = false;
    bool shared = false;  // see StageReady
    WindowRoom window;
    int32_t page_tokens = 0;

    // What a plan with a stage of that room, too, must keep to.
    void Narrow(const KvRoom& of_stage) {
      pages = std::min(pages, of_stage.pages);
      by_need = by_need && of_stage.by_need;
      shared = shared && of_stage.shared;
      window.Narrow(of_stage.window);
    }
  };
  // A worker's state in plans.
  struct Stage {
    int32_t stage = -1;  // in the present plan
    LayerRange layers;   // assigned last
    PlanEpoch planned;   // the epoch of the worker's last plan
    bool ready = false;  // the stage of the present plan is loaded
    KvRoom kv;
    LoadRate load;
    Pace pace;               // of loading the stage
    bool fetching = false;   // its load is that of the model's files
    bool preparing = false;  // loads a stage of `preparation_`
    bool prepared = false;   // has loaded it
    bool reaching = false;   // tests which links it can open
  };
  struct Preparation {
    PlanEpoch epoch;
    NextPlan next;
    absl::Duration reach_time;  // since the links were asked for
  };

  // Whether the worker is in the plan that is prepared.
  bool InPreparation(WorkerId id) const;
  // Whether the link is to be opened once before a plan has it.
  bool ToBeTested(WorkerId from, WorkerId to) const;
  // Has links of the prepared plan tested: from these stages to the next.
  void AskForLinks(const std::vector<size_t>& stages);
  // Whether the worker loads a stage for this epoch ahead.
  bool Prepares(const Stage& stage, int64_t epoch) const;
  void Begin(NextPlan next, std::optional<PlanEpoch> epoch);
  void BeginToRun(WorkerId last);
  // Called when the plan failed: waits before the next one, unless the one to
  // blame sits out and the others are enough. `kind` is for metrics.
  void Fail(const char* kind, const std::string& why,
            bool culprit_known = false);
  void EndPreparation(const std::string& why);
  void FailPreparation(const char* kind, const std::string& why);
  void OnPrepareFailed(WorkerId id, const v1::StageFailed& failed);
  int32_t BlocksOf(const NextPlan& next) const;
  Policy StagePolicy(const std::optional<Plan>& plan, size_t stage) const;
  // Makes the assignment of stage `s` of the plan.
  v1::CoordinatorMessage Assignment(const NextPlan& next,
                                    const std::vector<v1::LinkTransport>& links,
                                    PlanEpoch epoch, size_t s) const;
  void Retire(WorkerId id, PlanEpoch epoch);
  // Returns nullopt, with the misfit marked, if they can't be linked.
  std::optional<std::vector<v1::LinkTransport>> LinksFor(
      const std::vector<StageAssignment>& stages);
  bool LoadStalled(WorkerId id) const;
  // Describes the worker's last activity, for messages.
  std::string StandsStill(WorkerId id, absl::Duration still) const;

  const ClusterOptions& options_;
  WorkerRegistry* const workers_;
  PlanSearch* const search_;
  PlanNumbers* const numbers_;
  std::map<WorkerId, Stage> members_;
  // Layers held by departed workers, by name: they may come back with them.
  absl::flat_hash_map<std::string, LayerRange> former_layers_;
  Phase phase_ = Phase::kNoPlan;
  PlanEpoch epoch_;
  std::vector<WorkerId> stages_;          // of the present plan
  std::vector<v1::LinkTransport> links_;  // from each of its stages to the next
  std::optional<Plan> plan_;
  Policy policy_;
  // The workers that the present plan could have used; it may use fewer.
  int32_t could_have_ = 0;
  bool new_plan_ = false;
  bool planned_before_ = false;  // the plan before was the planner's
  std::optional<Preparation> preparation_;
  Losses losses_;
  PlanEpoch lost_epoch_;  // the last plan that was counted as lost
  std::optional<int64_t> oldest_step_;
  Pace pace_;  // of the running plan
  absl::Duration load_began_;
  PhaseRows plan_rows_;  // of the jobs that plan_ was made for
  int32_t num_blocks_ = 0;
  KvRoom kv_;
  int failures_ = 0;  // in a row
  absl::Duration retry_at_;
  bool culprit_known_ = false;
  std::string last_failure_;
  std::string failed_before_;  // the error of the plan before
  std::string detail_;
};

}  // namespace sluice
