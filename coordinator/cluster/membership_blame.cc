#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/worker_facts.h"

// The part of Membership that keeps workers out of plans for a while: those to
// blame for a plan that failed, and those that were lost again and again.

namespace sluice {
namespace {

// One that comes back with another address was started anew, and gets a chance.
std::string KeyOf(const v1::Register& info) {
  return absl::StrCat(info.name(), " ", info.link_address());
}

}  // namespace

void Membership::BlameLink(const Worker& from, const Worker& to,
                           const std::string& why) {
  const LinkBlame::Verdict verdict =
      link_blame_.OnUnreached(from.info.name(), to.info.name());
  const bool near = verdict.culprit == from.info.name();
  for (const auto& [id, worker] : workers_) {
    const std::string& name = worker.info.name();
    if (!worker.registered) continue;
    if (std::find(verdict.innocent.begin(), verdict.innocent.end(), name) !=
        verdict.innocent.end()) {
      left_out_.Pardon(KeyOf(worker.info));
    }
  }
  LeaveOut(near ? from : to,
           near ? absl::StrCat("it can't reach several others; last: ", why)
                : absl::StrCat("it can't be reached at ",
                               to.info.link_address(), ": ", why));
}

void Membership::LeaveOut(const Worker& worker, const std::string& why) {
  const absl::Duration now = options_.clock->Monotonic();
  left_out_.Add(KeyOf(worker.info), ClipText(why), now);
  LogWarning(absl::StrCat("worker '", worker.info.name(), "' is left out for ",
                          absl::FormatDuration(OutOf(worker)->until - now),
                          ", if there are others enough: ", why));
}

const LeftOut::Entry* Membership::OutOf(const Worker& worker) const {
  return left_out_.Find(KeyOf(worker.info), options_.clock->Monotonic());
}

void Membership::OnLost(const Worker& worker) {
  // The others may have said that their links broke before its stream did; and
  // when many go at once that is one loss.
  const bool of_plan = worker.stage >= 0 ||
                       (phase_ == Phase::kNoPlan && worker.planned == epoch_);
  if (!of_plan || epoch_ == lost_epoch_) return;
  lost_epoch_ = epoch_;
  losses_.Add(plan_workers_);
  for (auto& [id, other] : workers_) other.newcomer = false;
}

bool Membership::NewcomersWait() const {
  const absl::Duration now = options_.clock->Monotonic();
  // A plan of the others that failed may need them.
  if (failures_ > 0 || !losses_.hold(phase_ == Phase::kRunning, now)) {
    return false;
  }
  int32_t others = 0;
  for (const auto& [id, worker] : workers_) {
    if (worker.same_model && !worker.newcomer && worker.failure.empty() &&
        OutOf(worker) == nullptr) {
      ++others;
    }
  }
  return others >= options_.min_workers;
}

std::string Membership::WaitsFor(const Worker& worker) const {
  if (!worker.same_model || !worker.newcomer || worker.stage >= 0 ||
      !NewcomersWait()) {
    return "";
  }
  return absl::StrCat("the last ", losses_.in_a_row(),
                      " plans ended as a worker was lost, so who has come "
                      "since waits for a while");
}

void Membership::OnProgress() {
  failures_ = 0;
  losses_.Progress(plan_workers_, options_.clock->Monotonic());
  if (left_out_.empty()) return;
  for (WorkerId id : stages_) left_out_.Pardon(KeyOf(workers_.at(id).info));
}

void Membership::PlanFailed(const char* kind, const std::string& why) {
  ++plan_failures_[kind];
  failed_before_ = why;
  failures_ = std::min(failures_ + 1, 30);
  const absl::Duration wait =
      std::min(options_.most_back_off,
               options_.first_back_off * (int64_t{1} << (failures_ - 1)));
  retry_at_ = options_.clock->Monotonic() + wait;
  last_failure_ = why;
  detail_ = why;
  EndPlan(why, options_.failure_level);
}

}  // namespace sluice
