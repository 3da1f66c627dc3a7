#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/planning/plan_json.h"

// The part of Membership that tells people how the cluster is.

namespace sluice {

std::string Membership::detail() const {
  if (phase_ == Phase::kRunning &&
      (!left_out_.empty() || losses_.in_a_row() > 0)) {
    for (const auto& [id, worker] : workers_) {
      if (!worker.registered || worker.stage >= 0) continue;
      const LeftOut::Entry* const out = OutOf(worker);
      const std::string why = out != nullptr ? out->why : WaitsFor(worker);
      if (why.empty()) continue;
      return absl::StrCat("goes on without worker '", worker.info.name(),
                          "': ", why);
    }
  }
  if (phase_ != Phase::kLoading) return detail_;
  uint64_t done = 0;
  uint64_t total = 0;
  double rate = 0;
  absl::Duration left;
  for (WorkerId id : stages_) {
    const Worker& worker = workers_.at(id);
    if (!worker.ready) {
      rate += worker.load_rate.bytes_per_second();
      left = std::max(left, TimeLeft(worker.load_rate));
    }
    // Without a report yet, a stage counts as not begun.
    const double fraction =
        worker.load_total == 0
            ? 0
            : std::min(1.0, static_cast<double>(worker.load_done) /
                                static_cast<double>(worker.load_total));
    done += static_cast<uint64_t>(fraction * 1000);
    total += 1000;
  }
  return absl::StrCat("loading layers: ", total == 0 ? 0 : done * 100 / total,
                      " %", RateText(rate, left),
                      failed_before_.empty()
                          ? ""
                          : absl::StrCat(" (after: ", failed_before_, ")"));
}

void Membership::Describe(v1::ClusterState* state) {
  const absl::Duration now = options_.clock->Monotonic();
  state->set_epoch(epoch_.value());
  state->set_min_workers(options_.min_workers);
  state->set_num_layers(options_.num_layers);
  state->set_num_blocks(phase_ == Phase::kNoPlan ? 0 : num_blocks());
  state->set_gbs(policy().gbs);
  if (plan_) state->set_plan(PlanToJson(*plan_));
  for (const auto& [id, worker] : workers_) {
    if (!worker.registered) continue;
    const LeftOut::Entry* const out =
        worker.stage >= 0 || worker.preparing ? nullptr : OutOf(worker);
    if (out != nullptr) {
      v1::AbsentWorker* absent = state->add_absent();
      absent->set_name(worker.info.name());
      absent->set_kind(v1::AbsentWorker::KIND_LEFT_OUT);
      absent->set_reason(out->why);
      absent->set_seconds_ago(absl::ToDoubleSeconds(now - out->since));
      absent->set_seconds_left(absl::ToDoubleSeconds(out->until - now));
    }
    v1::WorkerInfo* info = state->add_workers();
    info->set_id(id.value());
    info->set_name(worker.info.name());
    if (!worker.same_model) {
      info->set_state(v1::WORKER_STATE_CHECKING);
    } else if (!worker.failure.empty()) {
      info->set_state(v1::WORKER_STATE_FAILED);
    } else if (worker.preparing) {
      info->set_state(v1::WORKER_STATE_PREPARING);
    } else if (worker.stage < 0) {
      info->set_state(out != nullptr ? v1::WORKER_STATE_LEFT_OUT
                                     : v1::WORKER_STATE_SPARE);
    } else {
      info->set_state(worker.ready ? v1::WORKER_STATE_READY
                                   : v1::WORKER_STATE_LOADING);
    }
    info->set_stage(worker.stage);
    if (worker.stage >= 0) {
      info->set_layer_begin(worker.layers.begin);
      info->set_layer_end(worker.layers.end);
    }
    info->set_link_address(worker.info.link_address());
    const auto stage = static_cast<size_t>(worker.stage);
    if (worker.stage >= 0 && stage < links_.size()) {
      info->set_next_link(links_[stage] == v1::LINK_TRANSPORT_NCCL ? "nccl"
                                                                   : "grpc");
    }
    info->set_metrics_address(worker.info.metrics_address());
    info->set_device(worker.info.device());
    info->set_host_memory_bytes(worker.info.host_memory_bytes());
    info->set_compute_threads(worker.info.compute_threads());
    info->set_seconds_since_heartbeat(absl::ToDoubleSeconds(worker.silent));
    info->set_load_fraction(
        !worker.same_model ? HashedShare(worker)
        : worker.load_total == 0
            ? 0
            : std::min(1.0, static_cast<double>(worker.load_done) /
                                static_cast<double>(worker.load_total)));
    info->set_busy_seconds(worker.heartbeat.busy_seconds());
    info->set_waiting_seconds(worker.heartbeat.waiting_seconds());
    info->set_idle_seconds(worker.heartbeat.idle_seconds());
    if (monitor_.active() && worker.stage >= 0) {
      for (int r = 0; r < kNumResources; ++r) {
        const auto resource = static_cast<Resource>(r);
        const double predicted =
            monitor_.PredictedSeconds(worker.stage, resource);
        const double measured =
            monitor_.MeasuredSeconds(worker.stage, resource);
        if (predicted == 0 && measured == 0) continue;
        v1::ResourceUse* use = info->add_resources();
        const absl::string_view name = ResourceName(resource);
        use->set_resource(name.data(), name.size());
        use->set_predicted_seconds(predicted);
        use->set_measured_seconds(measured);
      }
    }
    info->set_detail(!worker.same_model
                         ? absl::StrFormat("checking its weights: %.0f %%",
                                           100 * HashedShare(worker))
                     : !worker.failure.empty() ? worker.failure
                     : out != nullptr          ? out->why
                                               : WaitsFor(worker));
    info->set_version(worker.info.version());
    info->set_profile(worker.info.profile_json());
  }
  absent_.Describe(now, state);
  for (const auto& [reason, count] : plan_failures_) {
    v1::PlanFailures* failures = state->add_plan_failures();
    failures->set_reason(reason);
    failures->set_count(count);
  }
}

}  // namespace sluice
