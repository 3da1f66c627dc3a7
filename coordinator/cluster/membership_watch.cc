#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/stall.h"

// The part of Membership that finds workers which live, as their heartbeats
// show, and yet stand still: a thread that hangs in a disk or a device, a
// loader that waits for a file that never comes. A stage that works marks what
// it gets done, however long the whole takes; so it is marks that are waited
// for, and no length of a step is too long.

namespace sluice {
namespace {

// While memory for weights and KV cache is taken, nothing is marked.
constexpr double kTakenPerSecond = 1 << 30;
constexpr absl::Duration kMostTaking = absl::Minutes(15);
// A worker opens its link for 20 s at most, and says so itself.
constexpr absl::Duration kMostConnecting = absl::Seconds(30);

}  // namespace

void Membership::OnActivity(Worker& worker, const v1::Activity& activity) {
  const v1::Activity& before = worker.heartbeat.activity();
  if (activity.marks() == before.marks() && activity.kind() == before.kind() &&
      activity.epoch() == before.epoch() &&
      activity.last_step_out() == before.last_step_out()) {
    worker.pace.Stood(options_.heartbeat_interval);
    if (worker.stage >= 0) plan_pace_.Stood(options_.heartbeat_interval);
    return;
  }
  worker.pace.Moved();
  if (worker.stage >= 0) plan_pace_.Moved();
}

void Membership::OnLoadProgress(Worker& worker,
                                const v1::LoadProgress& progress) {
  const bool preparing = preparation_ && worker.preparing &&
                         progress.epoch() == preparation_->epoch.value();
  if (!preparing && progress.epoch() != epoch_.value()) return;
  if (progress.bytes_done() != worker.load_done) worker.pace.Moved();
  worker.load_done = progress.bytes_done();
  worker.load_total = progress.bytes_total();
  worker.load_rate.Observe(options_.clock->Monotonic(), worker.load_done,
                           worker.load_total);
}

bool Membership::LoadStalled(const Worker& worker) const {
  const absl::Duration taking = absl::Seconds(
      static_cast<double>(worker.info.host_memory_bytes()) / kTakenPerSecond);
  absl::Duration least =
      std::max(options_.stall_timeout, std::min(kMostTaking, taking));
  if (worker.heartbeat.activity().kind() == v1::Activity::KIND_CONNECTING) {
    least = std::max(least, kMostConnecting);
  }
  return worker.pace.stalled(least);
}

std::string Membership::StandsStill(const Worker& worker,
                                    absl::Duration still) const {
  return absl::StrCat(
      "worker '", worker.info.name(), "' stands still with layers ",
      worker.layers.begin, " to ", worker.layers.end - 1, ": ",
      ActivityName(worker.heartbeat.activity().kind()),
      ", and nothing got done for ",
      absl::FormatDuration(absl::Floor(still, absl::Seconds(1))));
}

void Membership::Watch(absl::Duration passed) {
  // See Advance: this process may have been stopped.
  passed = std::min(passed, options_.stall_timeout / 4);
  std::optional<WorkerId> stalled;
  std::string why;
  if (phase_ == Phase::kRunning && oldest_step_) {
    plan_pace_.Passed(passed);
    if (plan_pace_.stalled(options_.stall_timeout)) {
      std::vector<v1::Activity> activities;
      for (WorkerId id : stages_) {
        activities.push_back(workers_.at(id).heartbeat.activity());
      }
      stalled = stages_[StageHeldAt(activities, epoch_, *oldest_step_)];
      why = absl::StrCat(StandsStill(workers_.at(*stalled), plan_pace_.still()),
                         " while step ", *oldest_step_, " waits");
    }
  }
  for (auto& [id, worker] : workers_) {
    const bool loads =
        worker.preparing
            ? !worker.prepared
            : phase_ == Phase::kLoading && worker.stage >= 0 && !worker.ready;
    if (!loads) continue;
    worker.pace.Passed(passed);
    if (stalled || !LoadStalled(worker)) continue;
    stalled = id;
    why = StandsStill(worker, worker.pace.still());
  }
  if (!stalled) return;
  const Worker& worker = workers_.at(*stalled);
  const bool preparing = worker.preparing;
  LeaveOut(worker, why);
  if (preparing) {
    ++plan_failures_["stall"];
    EndPreparation(why);
  } else {
    failed_before_ = why;
    Remove(*stalled, absl::DeadlineExceededError(why));
  }
}

}  // namespace sluice
