// Membership under virtual time, with workers that come, measure, go, fail, are
// drained and can't be reached: a job runs soon whenever enough workers are
// there.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/host/logging.h"
#include "coordinator/cluster/membership.h"
#include "tests/support/manual_clock.h"
#include "tests/support/sample_profile.h"

namespace sluice {
namespace {

constexpr int kLayers = 12;
constexpr absl::Duration kTick = absl::Milliseconds(250);
// Steps that a job has to get done, one a tick, for its plan to be of use.
constexpr int kSteps = 12;
// The limit in which a job runs, once enough workers are there to stay. A
// loader that says nothing is given stall_timeout, a minute, and a machine that
// is gone heartbeat_timeout, which may follow each other.
constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr absl::Duration kLimitWithStalls = absl::Seconds(200);

enum class Kind {
  kGood,     // dies and comes back, but stays in the end
  kClosed,   // nobody reaches it, and knows so at once
  kHole,     // nobody reaches it, and learns so after 5 s
  kCutOff,   // reaches nobody
  kMute,     // registers, and does nothing but send heartbeats
  kCrashes,  // dies when it is to load
  kFlaps,    // comes and goes all the time
};

class Simulation {
 public:
  // `operated`: workers also measure, are drained, and leave in order.
  explicit Simulation(uint64_t seed, bool operated = false)
      : operated_(operated), random_(seed) {
    const int count = Pick(1, 12);
    constexpr int32_t kReplicas[] = {1, 2, 0};
    options_.replicas = kReplicas[Pick(0, 2)];
    options_.min_workers = Pick(1, count);
    options_.plan_jobs = Chance(0.7);
    options_.num_layers = kLayers;
    options_.max_model_len = 100;
    options_.test_links = true;
    options_.timeouts.max_link_time = absl::Seconds(20);
    options_.clock = &clock_;
    // So many stay in the end.
    const int need = std::max(options_.min_workers, options_.replicas);
    const int good = Pick(need, std::max(need, count));
    const double profiled = options_.plan_jobs && Chance(0.9) ? 1 : 0.5;
    for (int i = 0; i < std::max(good, count); ++i) {
      auto& worker = *workers_.emplace_back(std::make_unique<Worker>());
      worker.name = absl::StrCat("w", i);
      worker.kind = i < good ? Kind::kGood : static_cast<Kind>(Pick(1, 6));
      stalls_ = stalls_ || worker.kind >= Kind::kMute;
      worker.load = absl::Milliseconds(Pick(200, 4000));
      worker.profiled = Chance(profiled);
      worker.measures = operated_ && Chance(0.5);
    }
    std::shuffle(workers_.begin(), workers_.end(), random_);
    // Links that work in one direction only.
    if (Chance(0.3)) {
      for (const auto& a : workers_) {
        for (const auto& b : workers_) {
          if (a->name < b->name && Chance(0.2)) {
            one_way_.insert(Chance(0.5) ? std::pair(a->name, b->name)
                                        : std::pair(b->name, a->name));
          }
        }
      }
    }
  }

  // Returns what went wrong, or "".
  std::string Run() {
    members_.emplace(options_);
    const absl::Duration settled = absl::Milliseconds(Pick(0, 60'000));
    const absl::Duration job = absl::Milliseconds(
        Chance(0.5)
            ? 0
            : Pick(0, static_cast<int>(absl::ToInt64Milliseconds(settled))));
    for (const auto& worker : workers_) {
      Worker* const w = worker.get();
      At(absl::Milliseconds(Pick(0, 10'000)), [this, w] { Start(w); });
      const int deaths = w->kind == Kind::kFlaps  ? 60
                         : w->kind == Kind::kGood ? Pick(0, 3)
                                                  : Pick(0, 1);
      absl::Duration at = absl::ZeroDuration();
      for (int d = 0; d < deaths; ++d) {
        at += absl::Milliseconds(Pick(300, 15'000));
        if (w->kind == Kind::kGood && at >= settled) break;
        const bool silent = Chance(0.3);
        if (operated_ && Chance(0.5)) {
          At(at, [this, w] { Leave(w); });
        } else {
          At(at, [this, w, silent] { Die(w, silent); });
        }
        at += absl::Milliseconds(Pick(50, 10'000));
        At(w->kind == Kind::kGood ? std::min(at, settled) : at,
           [this, w] { Return(w); });
      }
      if (operated_ && Chance(0.3)) DrainForAWhile(w, settled);
      if (w->kind == Kind::kGood) At(settled, [this, w] { Return(w); });
    }
    At(job, [this] { SubmitJob(); });
    if (Chance(0.3)) {
      At(absl::Milliseconds(
             Pick(0, static_cast<int>(absl::ToInt64Milliseconds(settled)))),
         [this] { RestartCoordinator(); });
    }
    // Those who start in the beginning may do so later than that.
    const absl::Duration from =
        std::max(settled, absl::Duration(absl::Seconds(10)));
    const absl::Duration limit = stalls_ ? kLimitWithStalls : kLimit;
    Ticks();
    while (now() < from + limit) {
      if (now() >= from && most_steps_ >= kSteps) {
        took_ = now() - from;
        return "";
      }
      if (now() < from) most_steps_ = 0;
      Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      clock_.Advance(std::max(absl::ZeroDuration(), event.at - now()));
      event.what();
    }
    return absl::StrCat(members_->detail(), "\n", Describe());
  }

  absl::Duration took() const { return took_; }
  bool stalls() const { return stalls_; }

 private:
  struct Worker;
  // What the coordinator sends to one attachment of a worker.
  class Stream : public WorkerStream {
   public:
    Stream(Simulation* simulation, Worker* worker, WorkerId id)
        : simulation_(simulation), worker_(worker), id_(id) {}
    void Accept() override {}
    bool Send(v1::CoordinatorMessage message) override {
      if (ended_) return false;
      simulation_->At(absl::Milliseconds(1),
                      [this, self = simulation_->streams_.at(id_), message] {
                        if (worker_->id == id_)
                          simulation_->OnMessage(worker_, message);
                      });
      return true;
    }
    void Break(const absl::Status&) override {
      if (std::exchange(ended_, true)) return;
      Worker* const worker = worker_;
      Simulation* const simulation = simulation_;
      simulation->At(absl::Milliseconds(1), [simulation, worker, id = id_] {
        simulation->OnBroken(worker, id);
      });
    }

   private:
    Simulation* const simulation_;
    Worker* const worker_;
    const WorkerId id_;
    bool ended_ = false;
  };

  struct Worker {
    std::string name;
    Kind kind = Kind::kGood;
    absl::Duration load;
    bool profiled = false;
    bool measures = false;  // at each start
    bool alive = false;
    int64_t life = 0;           // goes up with each start
    int64_t measured_life = 0;  // in which it has measured last
    bool leaving = false;
    bool drained = false;
    WorkerId id;  // of its attachment; 0: none
    absl::Duration retry = absl::Milliseconds(500);
    v1::AssignStage stage;
    bool has_stage = false;
    uint64_t marks = 0;
  };

  struct Event {
    absl::Duration at;
    int64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(at, order) > std::pair(other.at, other.order);
    }
  };

  int Pick(int from, int to) {
    return from +
           static_cast<int>(random_() % static_cast<uint64_t>(to - from + 1));
  }
  bool Chance(double share) {
    return static_cast<double>(random_() % 1'000'000) < share * 1e6;
  }
  absl::Duration now() const { return clock_.Monotonic() - began_; }
  void At(absl::Duration in, std::function<void()> what) {
    events_.push({now() + in, ++order_, std::move(what)});
  }

  // -- Workers.

  void Start(Worker* worker) {
    if (worker->alive) return;
    worker->alive = true;
    ++worker->life;
    worker->id = WorkerId(0);
    worker->retry = absl::Milliseconds(500);
    worker->has_stage = false;
    worker->leaving = worker->drained = false;
    if (worker->measures) {
      At(absl::Milliseconds(Pick(0, 3000)),
         [this, worker, life = worker->life] {
           if (worker->life == life) Measured(worker);
         });
    }
    Attach(worker);
  }

  void Measured(Worker* worker) {
    if (!worker->alive) return;
    worker->measured_life = worker->life;
    v1::WorkerMessage message;
    message.mutable_measured()->set_profile_json(ProfileText(*worker));
    Say(worker, std::move(message));
  }

  static std::string ProfileText(const Worker& worker) {
    if (!worker.profiled) return "";
    MachineProfile profile = SampleProfile();
    profile.device_memory_bytes = 0;
    profile.device_compute = {};
    return ProfileToJson(profile);
  }

  // Starts it anew if it is being stopped, too.
  void Return(Worker* worker) {
    if (worker->leaving) Die(worker, false);
    Start(worker);
  }

  // It is told to stop.
  void Leave(Worker* worker) {
    if (!worker->alive || worker->leaving) return;
    worker->leaving = true;
    if (worker->id.value() == 0) {
      Die(worker, false);
      return;
    }
    At(absl::Seconds(25), [this, worker, life = worker->life] {
      if (worker->life == life) Die(worker, false);
    });
    v1::WorkerMessage message;
    message.mutable_leave();
    Say(worker, std::move(message));
  }

  // A good worker is taken back when all is settled.
  void DrainForAWhile(Worker* worker, absl::Duration settled) {
    At(absl::Milliseconds(Pick(0, 20'000)), [this, worker, settled] {
      if (worker->kind == Kind::kGood && now() >= settled) return;
      SetDrained(worker, true);
      if (worker->kind != Kind::kGood) return;
      At(settled - now(), [this, worker] { SetDrained(worker, false); });
    });
  }

  void SetDrained(Worker* worker, bool drained) {
    // What the coordinator says arrives at once.
    if (worker->id.value() != 0 || !drained) worker->drained = drained;
    members_->Drain(worker->name, drained);
    Pump();
  }

  void Attach(Worker* worker) {
    worker->id = WorkerId(++last_id_);
    auto stream = std::make_shared<Stream>(this, worker, worker->id);
    streams_[worker->id] = stream;
    members_->OnOpened(worker->id, stream);
    v1::WorkerMessage message;
    v1::Register* info = message.mutable_register_();
    info->set_name(worker->name);
    info->set_link_address(absl::StrCat("link:", worker->name));
    info->set_model_fingerprint("f00d");
    info->set_version("1");
    info->set_host_memory_bytes(uint64_t{1} << 30);
    v1::ModelContent::File* file = info->mutable_model_content()->add_files();
    file->set_name("config.json");
    file->set_bytes(1);
    file->set_hash("c");
    info->set_drained(worker->drained);
    info->set_measuring(worker->measures &&
                        worker->measured_life != worker->life);
    if (!info->measuring()) info->set_profile_json(ProfileText(*worker));
    Say(worker, std::move(message));
    Beat(worker, worker->id);
  }

  void Say(Worker* worker, v1::WorkerMessage message) {
    if (worker->id.value() == 0) return;
    members_->OnMessage(worker->id, std::move(message));
    Pump();
  }

  void Beat(Worker* worker, WorkerId id) {
    if (!worker->alive || worker->id != id) return;
    v1::WorkerMessage message;
    v1::Activity* activity = message.mutable_heartbeat()->mutable_activity();
    if (worker->kind != Kind::kMute) ++worker->marks;
    activity->set_marks(worker->marks);
    activity->set_kind(worker->has_stage ? v1::Activity::KIND_LOADING
                                         : v1::Activity::KIND_NONE);
    if (worker->has_stage) activity->set_epoch(worker->stage.epoch());
    Say(worker, std::move(message));
    At(absl::Seconds(1), [this, worker, id] { Beat(worker, id); });
  }

  // The process is killed; or its machine is gone, which shows by silence.
  void Die(Worker* worker, bool silent) {
    if (!worker->alive) return;
    worker->alive = false;
    const WorkerId id = std::exchange(worker->id, WorkerId(0));
    worker->has_stage = false;
    if (id.value() == 0 || silent) return;
    At(absl::Milliseconds(Pick(1, 20)), [this, id] {
      members_->OnClosed(id, absl::UnavailableError("killed"));
      Pump();
    });
    // Who sends to it sees that at once.
    for (const auto& other : workers_) {
      if (!other->alive || !other->has_stage ||
          other->stage.next_link_address() !=
              absl::StrCat("link:", worker->name)) {
        continue;
      }
      Fail(other.get(), absl::StatusCode::kUnavailable, false);
    }
  }

  void OnBroken(Worker* worker, WorkerId id) {
    members_->OnClosed(id, absl::UnavailableError("ended"));
    Pump();
    if (!worker->alive || worker->id != id) return;
    worker->id = WorkerId(0);
    worker->has_stage = false;
    if (worker->leaving) {
      worker->alive = false;
      return;
    }
    At(worker->retry, [this, worker, life = worker->life] {
      if (worker->alive && worker->life == life && worker->id.value() == 0)
        Attach(worker);
    });
    worker->retry =
        std::min(worker->retry * 2, absl::Duration(absl::Seconds(8)));
  }

  void OnMessage(Worker* worker, const v1::CoordinatorMessage& message) {
    if (!worker->alive) return;
    if (message.has_registered()) worker->retry = absl::Milliseconds(500);
    if (worker->kind == Kind::kMute) return;
    if (message.has_assign_stage()) OnAssign(worker, message.assign_stage());
    if (message.has_retire()) worker->has_stage = false;
    if (message.has_reach_links()) OnReach(worker, message.reach_links());
    if (message.has_measure_links()) OnMeasure(worker, message.measure_links());
  }

  Worker* Serving(const std::string& address) {
    for (const auto& worker : workers_) {
      if (absl::StrCat("link:", worker->name) == address) return worker.get();
    }
    return nullptr;
  }

  // Why `from` can't open a link to `to`, or "", and how long it takes.
  std::pair<std::string, absl::Duration> Connect(Worker* from,
                                                 const std::string& address) {
    Worker* const to = Serving(address);
    const absl::Duration silence = absl::Seconds(5);
    if (from->kind == Kind::kCutOff) return {"no route", absl::ZeroDuration()};
    if (one_way_.contains({from->name, to->name})) return {"filtered", silence};
    if (to->kind == Kind::kHole) return {"no answer", silence};
    if (to->kind == Kind::kClosed || !to->alive)
      return {"refused", absl::ZeroDuration()};
    return {"", absl::Milliseconds(2)};
  }

  void OnReach(Worker* worker, const v1::ReachLinks& reach) {
    v1::WorkerMessage answer;
    answer.mutable_links_reached()->set_epoch(reach.epoch());
    absl::Duration takes = absl::Milliseconds(1);
    for (const auto& peer : reach.peers()) {
      const auto [error, time] = Connect(worker, peer.link_address());
      takes = std::max(takes, time);
      auto* link = answer.mutable_links_reached()->add_links();
      link->set_peer(peer.name());
      link->set_error(error);
    }
    Later(worker, takes, std::move(answer));
  }

  void OnMeasure(Worker* worker, const v1::MeasureLinks& measure) {
    v1::WorkerMessage answer;
    absl::Duration takes;
    for (const auto& peer : measure.peers()) {
      const auto [error, time] = Connect(worker, peer.link_address());
      takes += error.empty() ? absl::Duration(absl::Milliseconds(200)) : time;
      auto* link = answer.mutable_links_measured()->add_links();
      link->set_peer(peer.name());
      link->set_error(error);
      link->set_bytes_per_second(1e9);
    }
    Later(worker, takes, std::move(answer));
  }

  void Later(Worker* worker, absl::Duration in, v1::WorkerMessage message) {
    At(in, [this, worker, id = worker->id, message = std::move(message)] {
      if (worker->alive && worker->id == id) Say(worker, message);
    });
  }

  void OnAssign(Worker* worker, const v1::AssignStage& assign) {
    if (worker->kind == Kind::kCrashes) {
      At(absl::Milliseconds(Pick(1, 2000)),
         [this, worker, life = worker->life] {
           if (worker->life != life) return;
           Die(worker, false);
           At(absl::Milliseconds(Pick(500, 5000)),
              [this, worker] { Start(worker); });
         });
      return;
    }
    if (!assign.prepare()) {
      worker->stage = assign;
      worker->has_stage = true;
    }
    At(worker->load, [this, worker, id = worker->id, assign] {
      if (!worker->alive || worker->id != id) return;
      if (!assign.prepare() &&
          (!worker->has_stage || worker->stage.epoch() != assign.epoch()))
        return;
      Loaded(worker, id, assign, now() + absl::Seconds(20));
    });
  }

  // Opens the link to the next stage, for 20 s at most.
  void Loaded(Worker* worker, WorkerId id, const v1::AssignStage& assign,
              absl::Duration until) {
    if (!worker->alive || worker->id != id) return;
    if (!assign.prepare() &&
        (!worker->has_stage || worker->stage.epoch() != assign.epoch()))
      return;
    if (!assign.prepare() && !assign.next_link_address().empty()) {
      const auto [error, time] = Connect(worker, assign.next_link_address());
      if (!error.empty()) {
        if (now() >= until) {
          Fail(worker, absl::StatusCode::kUnavailable, true);
          return;
        }
        At(std::max(time, absl::Duration(absl::Milliseconds(500))),
           [this, worker, id, assign, until] {
             Loaded(worker, id, assign, until);
           });
        return;
      }
    }
    v1::WorkerMessage message;
    v1::StageReady* ready = message.mutable_stage_ready();
    ready->set_epoch(assign.epoch());
    ready->set_kv_pages(50);
    ready->set_page_tokens(16);
    Say(worker, std::move(message));
  }

  void Fail(Worker* worker, absl::StatusCode code, bool next_unreached) {
    v1::WorkerMessage message;
    v1::StageFailed* failed = message.mutable_stage_failed();
    failed->set_epoch(worker->stage.epoch());
    failed->set_code(static_cast<int>(code));
    failed->set_message("the link broke");
    failed->set_next_unreached(next_unreached);
    worker->has_stage = false;
    Say(worker, std::move(message));
  }

  // -- The coordinator.

  void SubmitJob() {
    has_job_ = true;
    members_->OnNewJobsWhileIdle();
    for (size_t p = 0; p < members_->num_pipelines(); ++p)
      members_->OnNewJobs(p);
    Pump();
  }

  void RestartCoordinator() {
    members_.emplace(options_);
    steps_.clear();
    if (has_job_) SubmitJob();
    for (const auto& worker : workers_) {
      if (worker->id.value() == 0) continue;
      OnBroken(worker.get(), worker->id);
    }
  }

  void Pump() {
    members_->Advance();
    while (std::optional<PlanTask> task = members_->TakeTask()) {
      At(absl::Milliseconds(Pick(1, 300)), [this, task = *task] {
        members_->OnPlanned(Answer(task));
        Pump();
      });
    }
  }

  // Any answer that the planner may give.
  PlanAnswer Answer(const PlanTask& task) {
    PlanAnswer answer{task.ticket, absl::UnknownError("not asked for")};
    if (!has_job_) {
      answer.plan = absl::NotFoundError("no requests wait");
      answer.layout = answer.plan.status();
      return answer;
    }
    const int count = static_cast<int>(task.machines.size());
    std::vector<int> machines(task.machines.size());
    for (int m = 0; m < count; ++m) machines[static_cast<size_t>(m)] = m;
    if (Chance(0.5)) std::shuffle(machines.begin(), machines.end(), random_);
    if (Chance(0.1)) {
      answer.plan = absl::ResourceExhaustedError("no room");
      answer.layout = answer.plan.status();
    } else if (task.layout) {
      answer.layout = AnswerLayout(*task.layout, machines);
    } else if (task.present) {
      answer.plan = absl::AlreadyExistsError("as good");
    } else {
      answer.plan = MakePlanOf(machines);
      answer.rows = {500, 500};
    }
    return answer;
  }

  absl::StatusOr<Layout> AnswerLayout(const LayoutTask& task,
                                      const std::vector<int>& machines) {
    if (!task.present.empty() && Chance(0.7))
      return absl::AlreadyExistsError("as good");
    const int count = static_cast<int>(machines.size());
    if (task.replicas > count) return absl::InvalidArgumentError("too few");
    const int groups = task.replicas > 0 ? task.replicas : Pick(1, count);
    const int used = Pick(groups, count);  // the others are spares
    Layout layout;
    layout.pipelines.resize(static_cast<size_t>(groups));
    for (int m = 0; m < used; ++m) {
      PipelinePlan& pipeline = layout.pipelines[static_cast<size_t>(
          m < groups ? m : Pick(0, groups - 1))];
      pipeline.machines.push_back(machines[static_cast<size_t>(m)]);
      pipeline.share = 1.0 / groups;
    }
    return layout;
  }

  Plan MakePlanOf(std::vector<int> machines) {
    // Some may be left out.
    if (machines.size() > 1 && Chance(0.2)) machines.pop_back();
    const int stages =
        std::min<int>(static_cast<int>(machines.size()), kLayers);
    Plan plan;
    plan.block = {.gbs = 4, .num_blocks = stages, .max_step_tokens = 64};
    for (int s = 0; s < stages; ++s) {
      StagePlan& stage = plan.stages.emplace_back();
      stage.machine = machines[static_cast<size_t>(s)];
      stage.layers = {kLayers * s / stages, kLayers * (s + 1) / stages};
      stage.policy.gbs = 4;
    }
    plan.tokens_per_second = 10;
    return plan;
  }

  // One step a tick for each plan that runs and whose workers are there.
  void Ticks() {
    most_steps_ = 0;
    for (size_t p = 0; p < members_->num_pipelines(); ++p) {
      RunningPlan& plan = members_->plan(p);
      auto& [epoch, steps] = steps_[p];
      if (!plan.running() || !has_job_) {
        steps = 0;
        plan.OnSteps(std::nullopt);
        continue;
      }
      const bool computes = std::all_of(
          plan.stages().begin(), plan.stages().end(), [&](WorkerId id) {
            return std::any_of(
                workers_.begin(), workers_.end(), [&](const auto& w) {
                  return w->alive && w->id == id && w->kind != Kind::kMute;
                });
          });
      if (epoch != plan.epoch().value()) steps = 0;
      epoch = plan.epoch().value();
      if (computes) ++steps;
      plan.OnSteps(steps);
      if (computes && steps % 4 == 0) plan.OnProgress();
      most_steps_ = std::max(most_steps_, steps);
    }
    Pump();
    At(kTick, [this] { Ticks(); });
  }

  std::string Describe() {
    v1::ClusterState state;
    members_->Describe(&state);
    std::string text = absl::StrCat("min ", options_.min_workers, ", replicas ",
                                    options_.replicas,
                                    options_.plan_jobs ? ", planned\n" : "\n");
    for (const v1::WorkerInfo& info : state.workers()) {
      absl::StrAppend(&text, info.name(), " ",
                      v1::WorkerState_Name(info.state()), " pipeline ",
                      info.pipeline(), " ", info.detail(), "\n");
    }
    for (const v1::PipelineInfo& info : state.pipelines()) {
      absl::StrAppend(&text, "pipeline ", info.pipeline(), ": ", info.state(),
                      "\n");
    }
    for (const auto& worker : workers_) {
      absl::StrAppend(
          &text, worker->name, " kind ", static_cast<int>(worker->kind),
          worker->alive ? "" : " dead", worker->leaving ? " leaving" : "",
          worker->drained ? " drained" : "",
          worker->profiled ? "" : " without a profile", "\n");
    }
    for (const auto& [from, to] : one_way_)
      absl::StrAppend(&text, from, " can't reach ", to, "\n");
    return text;
  }

  const bool operated_;
  std::mt19937_64 random_;
  ManualClock clock_;
  const absl::Duration began_ = clock_.Monotonic();
  ClusterOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::set<std::pair<std::string, std::string>> one_way_;  // can't be opened
  bool stalls_ = false;
  std::priority_queue<Event> events_;
  int64_t order_ = 0;
  int64_t last_id_ = 0;
  std::map<WorkerId, std::shared_ptr<Stream>> streams_;
  std::optional<Membership> members_;
  bool has_job_ = false;
  std::map<size_t, std::pair<int64_t, int64_t>>
      steps_;  // by pipeline: epoch and steps
  int64_t most_steps_ = 0;
  absl::Duration took_;
};

void ExpectRuns(uint64_t seed, bool operated = false) {
  Simulation simulation(seed, operated);
  EXPECT_EQ(simulation.Run(), "") << "seed " << seed;
}

// These failed once: a worker that does nothing was taken for well whenever
// another one came, so that each next plan waited for it in vain.
TEST(MembershipSimulationTest, AMuteWorkerBesideOnesThatCrash) {
  for (const uint64_t seed : {40, 63, 256, 329, 634}) ExpectRuns(seed);
}

// This failed once: a pipeline of workers that plans do without counted as one
// that works, so that six good ones stayed spares.
TEST(MembershipSimulationTest, APipelineOfBadWorkersKeepsNoOthersOut) {
  ExpectRuns(768);
}

// This failed once: the planner's group had one that nobody reaches, and it was
// not asked again.
TEST(MembershipSimulationTest, APlannedGroupWithAnUnreachableWorker) {
  ExpectRuns(5173);
}

// This failed once: the planner had found nothing better than a pipeline that
// was gone meanwhile, and was not asked again.
TEST(MembershipSimulationTest, GroupsAreSearchedForAgainOnceThePresentAreGone) {
  ExpectRuns(2910);
}

// These failed once: the only pipeline had lost one of those that it needs, and
// the planner was not asked again for workers that it had grouped before.
TEST(MembershipSimulationTest, APipelineBelowItsLeastIsMadeAnew) {
  for (const uint64_t seed : {1330, 4992}) ExpectRuns(seed, /*operated=*/true);
}

// This failed once: a plan with a worker that was being stopped was loaded to
// its end before the next one began.
TEST(MembershipSimulationTest, APlanThatLoadsIsEndedForOneThatIsToGo) {
  ExpectRuns(3452, /*operated=*/true);
}

// These failed once, too, of 10,000, on the way to the code that passes all.
TEST(MembershipSimulationTest, OtherSchedulesThatFailedOnce) {
  for (const uint64_t seed :
       {1626, 1959, 2256, 2746, 3201, 3549, 6193, 9567, 9866})
    ExpectRuns(seed);
}

// SLUICE_SIMULATIONS=FROM:COUNT runs others, SLUICE_SIMULATIONS=SEED one with
// its log.
void ExpectAllRun(uint64_t count, bool operated) {
  uint64_t from = 1;
  if (const char* said = std::getenv("SLUICE_SIMULATIONS")) {
    from = std::strtoull(said, nullptr, 10);
    const char* colon = std::strchr(said, ':');
    count = colon == nullptr ? 1 : std::strtoull(colon + 1, nullptr, 10);
  }
  if (count > 1) SetLogLevel("error");
  absl::Duration longest[2];
  for (uint64_t seed = from; seed < from + count; ++seed) {
    Simulation simulation(seed, operated);
    const std::string wrong = simulation.Run();
    EXPECT_EQ(wrong, "") << "seed " << seed;
    longest[simulation.stalls()] =
        std::max(longest[simulation.stalls()], simulation.took());
  }
  testing::Test::RecordProperty("longest", absl::FormatDuration(longest[0]));
  testing::Test::RecordProperty("longest_with_stalls",
                                absl::FormatDuration(longest[1]));
  std::cout << count << " schedules; the longest wait " << longest[0] << ", "
            << longest[1] << " where workers stall" << std::endl;
}

TEST(MembershipSimulationTest, AJobRunsSoonWhenEnoughWorkersAreThere) {
  ExpectAllRun(1500, /*operated=*/false);
}

TEST(MembershipSimulationTest, TheSameWhereWorkersMeasureAreDrainedAndLeave) {
  ExpectAllRun(500, /*operated=*/true);
}

}  // namespace
}  // namespace sluice
