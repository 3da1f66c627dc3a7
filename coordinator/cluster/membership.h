#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/machine_profile.h"
#include "common/policy.h"
#include "common/threads/clock.h"
#include "coordinator/cluster/absent_workers.h"
#include "coordinator/cluster/left_out.h"
#include "coordinator/cluster/links/link_blame.h"
#include "coordinator/cluster/load_rate.h"
#include "coordinator/cluster/model_identity.h"
#include "coordinator/cluster/pace.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/cluster/worker_stream.h"
#include "coordinator/dispatch/losses.h"
#include "coordinator/planning/job_planner.h"
#include "coordinator/planning/plan_monitor.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The attached workers and the plan that they carry out: checks who registers,
// notices who is gone or stands still, makes plans (see DecidePlan) and follows
// their loading.
//
// A running plan goes on until the one that takes its place can begin: workers
// that join load their stages ahead, and links to and from them are tried,
// before it is ended (membership_preparing.cc). Whoever makes a plan fail is
// named and left out of plans for a while, if there are others enough.
//
// Confined to the dispatcher's thread.
class Membership {
 public:
  struct Options {
    int32_t min_workers = 1;
    int32_t num_layers = 0;
    int32_t num_blocks = 0;     // at least; never fewer than stages
    int32_t max_model_len = 0;  // positions per sequence
    // Of each worker. With a plan of the planner's or the user's: what that
    // leaves open.
    Policy policy;
    // Plans are made for the jobs that wait, from the workers' profiles, if all
    // have one (see PlanTask).
    bool plan_jobs = false;
    // The user's own: stages go to the workers that it names, or by order.
    std::optional<Plan> fixed_plan;
    std::string model_fingerprint;  // "": that of the first worker counts
    ModelIdentity::Options model;   // which content of its files counts
    absl::Duration heartbeat_interval = absl::Seconds(1);
    absl::Duration heartbeat_timeout = absl::Seconds(10);
    absl::Duration settle_time = absl::Milliseconds(200);
    // How long the first search for a plan waits for workers that measure their
    // links to each other; 0: they are not asked to.
    absl::Duration most_link_time;
    // Wait before the plan that follows a failed one; doubles up to the most.
    absl::Duration first_back_off = absl::Milliseconds(500);
    absl::Duration most_back_off = absl::Seconds(60);
    // A stage that gets nothing done for so long, while it has work, is broken,
    // unless it took nearly as long before (see Pace).
    absl::Duration stall_timeout = absl::Seconds(60);
    // For how long a worker is left out that a plan failed for; doubles up to
    // the most.
    absl::Duration first_left_out = absl::Seconds(10);
    absl::Duration most_left_out = absl::Minutes(10);
    // How long workers may take to say whether links can be opened.
    absl::Duration most_reach_time = absl::Seconds(60);
    // Link addresses with names are looked up when a worker registers.
    bool look_up_names = false;
    LogLevel failure_level = LogLevel::kWarning;  // as in Coordinator::Options
    const Clock* clock = nullptr;
  };

  enum class Phase { kNoPlan, kLoading, kRunning };

  explicit Membership(const Options& options);

  void OnOpened(WorkerId id, std::shared_ptr<WorkerStream> stream,
                PeerPlace place = {});
  // Returns the message's StepResult if it comes from the last stage of the
  // running plan.
  std::optional<v1::StepResult> OnMessage(WorkerId id,
                                          v1::WorkerMessage message);
  void OnClosed(WorkerId id, const absl::Status& reason);

  // Names to be looked up (ResolveHost), each answered by OnResolved, until
  // which the worker is not registered.
  struct Lookup {
    WorkerId worker;
    std::string host;
  };
  std::vector<Lookup> TakeLookups();
  void OnResolved(WorkerId id,
                  const absl::StatusOr<std::vector<std::string>>& addresses);

  // The step in flight that was sent first, if there is one: as long as that
  // is the same, and no stage gets anything done, the plan stands still. To be
  // called before each Advance.
  void OnSteps(std::optional<int64_t> oldest) {
    if (oldest != oldest_step_) plan_pace_.Moved();
    oldest_step_ = oldest;
  }

  // Drops workers that have been silent for too long and makes a new plan if
  // it is time. To be called after each event and regularly.
  void Advance();

  // A search to be made, and its answer, which is OK for another plan to take
  // the present one's place.
  std::optional<PlanTask> TakePlanTask();
  void OnPlanned(PlanAnswer answer);
  // The present plan as JSON, "" for the workers' own choice, if it changed or
  // another prediction is made of it; for the jobs' records.
  std::optional<std::string> TakeNewPlan();
  // The copy of the model by which steps are computed from now on, if it is
  // another one than before; to be kept with the jobs.
  std::optional<ModelContent> TakeBegunModel();
  // Jobs came while nothing was computed, or no plan ran: the present plan may
  // not be theirs, nor the copy of the model that jobs before them began with.
  void OnNewJobs();
  // Tokens computed since the coordinator began, wall seconds with steps in
  // flight, and how much of what they may generate requests do. The plan is
  // made anew if its prediction does not hold.
  void OnProgressOf(double rows, double seconds, double output_share);

  // The last stage broke the protocol: its stream is cut, the plan ends.
  void BreakLastStage(const absl::Status& reason);
  // Sends a step to the first stage. REQUIRES: phase() == kRunning.
  void SendPlan(v1::StepPlan plan);
  // The running plan proved itself: a later failure starts with a short wait.
  void OnProgress();

  Phase phase() const { return phase_; }
  // Of the newest plan; 0 before the first.
  PlanEpoch epoch() const { return epoch_; }
  // Of the present plan. REQUIRES: phase() != kNoPlan.
  int32_t num_blocks() const;
  // What its stages have in common: gbs, num_microbatches, max_step_tokens.
  const Policy& policy() const {
    return plan_ ? plan_policy_ : options_.policy;
  }
  // Capacity of the running plan: that of the tightest stage.
  int64_t kv_pages() const { return kv_pages_; }
  // Whether all its stages take pages by need.
  bool kv_by_need() const { return kv_by_need_; }
  int32_t page_tokens() const { return page_tokens_; }

  // Why nothing moves: "waiting for workers: 1 of 2 registered",
  // "loading layers: 40 %, 1.2 GB/s, 0:35 left", a failure; while a plan runs,
  // which worker it does without, or "".
  std::string detail() const;
  // Fills epoch, min_workers, num_layers, num_blocks, gbs, workers, absent and
  // plan_failures.
  void Describe(v1::ClusterState* state);

 private:
  struct Worker {
    std::shared_ptr<WorkerStream> stream;
    PeerPlace place;
    bool registered = false;
    bool resolving = false;  // its Register waits for a name
    v1::Register info;
    ModelContent content;     // of its copy of the model, as far as it is known
    bool same_model = false;  // it is the one that counts; else it has to wait
    std::vector<std::string>
        addresses;  // of its link's host, if that is a name
    std::optional<MachineProfile> profile;
    // No plan has lost a worker since it came.
    bool newcomer = true;
    PlanEpoch planned;      // the last plan that it was in
    absl::Duration silent;  // see Advance
    v1::Heartbeat heartbeat;
    int32_t stage = -1;  // in the present plan
    LayerRange layers;   // assigned last
    bool ready = false;  // its stage of the present plan is loaded
    v1::StageReady stage_ready;
    uint64_t load_done = 0;
    uint64_t load_total = 0;
    LoadRate load_rate;
    Pace pace;               // of loading
    bool preparing = false;  // a stage of `preparation_`
    bool prepared = false;   // and has loaded it
    bool reaching = false;   // is to say which links it can open
    std::string failure;
    bool nccl_failed = false;  // since a worker last came
    // Links to these were asked for, and are waited for until then.
    absl::flat_hash_set<std::string> links_asked;
    absl::Duration links_due;
    int links_owed = 0;  // answers; each is to all that was asked at once
  };

  absl::Status CheckRegister(const v1::Register& info) const;
  // Whether others can reach it.
  absl::Status CheckPlace(const Worker& worker, const v1::Register& info) const;
  void OnRegister(WorkerId id, Worker& worker, const v1::Register& info);
  // There is a worker more that plans may have: everything is different.
  void OnJoined();
  // OK if what it said of its model makes sense, and does not differ from the
  // copy that counts as far as both are known.
  absl::Status CheckContent(const v1::Register& info,
                            const v1::ModelContent& said,
                            ModelContent* content) const;
  // As ModelIdentity::Check.
  absl::Status CompareModel(const v1::Register& info,
                            const ModelContent& content) const;
  void OnModelContent(WorkerId id, Worker& worker,
                      const v1::ModelContent& said);
  // Lets workers join whose copy turned out to be the one that counts.
  void CompareModels();
  // Sends workers away whose copy counted while jobs were unfinished that began
  // with it, and counts no more.
  void DropFormerModel();
  double HashedShare(const Worker& worker) const;
  // "; worker 'w2' is checking its weights: 43 %", or "" if none is.
  std::string CheckingDetail() const;
  void OnStageReady(WorkerId id, Worker& worker, const v1::StageReady& ready);
  void OnStageFailed(WorkerId id, Worker& worker,
                     const v1::StageFailed& failed);
  void OnActivity(Worker& worker, const v1::Activity& activity);
  void OnLoadProgress(Worker& worker, const v1::LoadProgress& progress);
  void OnLinkId(WorkerId id, const Worker& worker, v1::LinkId link);
  void Remove(WorkerId id, const absl::Status& reason);
  void Refuse(WorkerId id, Worker& worker, const absl::Status& reason);
  // The plan did not work out: waits before the next one. `kind` is for
  // metrics.
  void PlanFailed(const char* kind, const std::string& why);
  // Plans do without the worker for a while.
  void LeaveOut(const Worker& worker, const std::string& why);
  const LeftOut::Entry* OutOf(const Worker& worker) const;
  // Counts it if the newest plan ended as this one, who is gone, was in it.
  void OnLost(const Worker& worker);
  // Newcomers wait for the plan of the others, who are enough (see Losses).
  bool NewcomersWait() const;
  // Why the worker waits, for people; "" if it does not.
  std::string WaitsFor(const Worker& worker) const;
  // Of a link between stages of the present plan.
  void BlameLink(const Worker& from, const Worker& to, const std::string& why);

  // Who stands still: `passed` is time in which this process ran.
  void Watch(absl::Duration passed);
  bool LoadStalled(const Worker& worker) const;
  // What the worker did last, for messages.
  std::string StandsStill(const Worker& worker, absl::Duration still) const;
  void EndPlan(const std::string& why, LogLevel level = LogLevel::kWarning);
  // `plan`: whose stages these are, or null. Fails the plan if they can't be
  // linked. `epoch`: that they were prepared for, or none.
  void StartPlan(std::vector<StageAssignment> stages, const Plan* plan,
                 std::optional<PlanEpoch> epoch = std::nullopt);
  PlanEpoch NextEpoch() { return PlanEpoch(++last_epoch_); }
  // What stage `s` of these is told.
  v1::AssignStage Assignment(const std::vector<StageAssignment>& stages,
                             const std::vector<v1::LinkTransport>& links,
                             const Plan* plan, PlanEpoch epoch, size_t s) const;
  int32_t BlocksOf(const Plan* plan, size_t stages) const;
  // A plan that is to follow the present one: at once, or when those of its
  // workers that are not in the present one are ready for it. `workers`: that
  // it could have had. `rows`: see PlanAnswer.
  void FollowWith(std::vector<StageAssignment> stages, const Plan* plan,
                  int32_t workers, double rows);
  void BeginNext(std::vector<StageAssignment> stages, const Plan* plan,
                 int32_t workers, double rows, std::optional<PlanEpoch> epoch);
  void OnLinksReached(WorkerId id, const v1::LinksReached& reached);
  void OnPrepareFailed(WorkerId id, Worker& worker,
                       const v1::StageFailed& failed);
  void FollowPreparation(absl::Duration passed);
  // The present plan goes on, without who was to join it.
  void EndPreparation(const std::string& why);
  // nullopt, with the misfit marked, if these can't be linked.
  std::optional<std::vector<v1::LinkTransport>> LinksFor(
      const std::vector<StageAssignment>& stages);
  // The policy of a stage of `plan`, which may be null.
  Policy StagePolicy(const Plan* plan, size_t stage) const;
  // Whether a plan for these workers is to be searched for.
  bool Plans(const std::vector<StageAssignment>& stages) const;
  // Whether the links between these are known, as far as they will be: asks
  // for those that are not.
  bool KnowsLinks(const std::vector<StageAssignment>& stages);
  void OnLinksMeasured(Worker& worker, const v1::LinksMeasured& measured);
  void BeginSearch(std::vector<WorkerId> workers, std::optional<Plan> present);
  std::vector<StageAssignment> AssignFixed(
      const std::vector<StageAssignment>& stages) const;
  std::vector<MachineProfile> Machines(
      const std::vector<WorkerId>& workers) const;
  void FollowMeasured();
  void SendOrBreak(WorkerId id, v1::CoordinatorMessage message);
  ClusterView View() const;

  const Options options_;
  ModelIdentity identity_;
  std::optional<ModelContent> begun_model_;
  std::map<WorkerId, Worker> workers_;
  // What departed workers held, by name: they may come back with it.
  absl::flat_hash_map<std::string, LayerRange> former_layers_;
  Phase phase_ = Phase::kNoPlan;
  PlanEpoch epoch_;
  int64_t last_epoch_ = 0;                // given to a plan or a preparation
  std::vector<WorkerId> stages_;          // of the present plan
  std::vector<v1::LinkTransport> links_;  // from each of its stages to the next
  std::optional<Plan> plan_;  // unless the workers choose themselves
  // That the present plan could have had; it may have stages for fewer.
  int32_t plan_workers_ = 0;
  Policy plan_policy_;
  bool new_plan_ = false;
  bool planned_before_ = false;  // the plan before the present one was made
  struct Search {
    int64_t ticket = 0;
    std::vector<WorkerId> workers;
    std::optional<Plan> present;
    bool taken = false;
    bool new_jobs = false;  // came since it began
    bool no_work = false;   // to be repeated when there is
  };
  std::optional<Search> search_;
  // What is to follow the running plan.
  struct Preparation {
    PlanEpoch epoch;
    std::vector<StageAssignment> stages;
    std::optional<Plan> plan;
    int32_t workers = 0;
    double rows = 0;
    absl::Duration reach_time;  // since the links were asked for
  };
  std::optional<Preparation> preparation_;
  LeftOut left_out_;
  Losses losses_;
  PlanEpoch lost_epoch_;  // the last plan that was counted as lost
  LinkBlame link_blame_;
  AbsentWorkers absent_;
  std::map<std::string, int64_t> plan_failures_;  // by kind
  std::vector<Lookup> lookups_;
  std::optional<int64_t> oldest_step_;
  Pace plan_pace_;  // of the running plan
  int64_t last_ticket_ = 0;
  // A plan of the planner's did not fit: the workers choose from now on.
  bool planning_failed_ = false;
  PlanMonitor monitor_;
  double rows_ = 0, seconds_ = 0;            // since the coordinator began
  double plan_rows_ = 0, plan_seconds_ = 0;  // of these, before the plan ran
  // From a plan's beginning until it runs: the shortest that there was.
  absl::Duration load_began_;
  absl::Duration load_time_ = absl::InfiniteDuration();
  double output_share_ = 1;
  int64_t kv_pages_ = 0;
  bool kv_by_need_ = false;
  int32_t page_tokens_ = 0;
  absl::Duration changed_at_;
  absl::Duration advanced_at_;
  int failures_ = 0;
  absl::Duration retry_at_;
  std::string last_failure_;
  std::string failed_before_;  // why the plan before this one failed
  std::string detail_;
};

}  // namespace sluice
