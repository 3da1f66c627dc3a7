#include "coordinator/planning/plan_monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/plan/plan.h"

namespace sluice {
namespace {

// A profile that is off by more than this factor is wrong.
constexpr double kTolerance = 1.3;
// A resource is judged only after this busy time,
constexpr double kMinBusySeconds = 3;
// and if it takes this share of the job's time, predicted or measured.
constexpr double kMinShare = 0.3;
// The prediction for the cores is an average over prompts and answers, and
// prompts come first. They are judged only after this share of the plan's rows,
constexpr double kMinRowsShare = 0.2;
// if that many times as many rows came back as are in flight, of which nobody
// knows how far they are,
constexpr double kMinRounds = 8;
// and if prompts and answers have about their planned shares of the rows: the
// smaller one within so much of itself.
constexpr double kSameMix = 0.2;
// What waits for part of the time is faster in the rest of it (cores under a
// quota or of a shared cache, disks that save up what they may do): it counts
// as faster than its profile only if it is busy for this share of the time.
constexpr double kFullShare = 0.8;

// The profile's rate of a resource that moves bytes; 0 if it computes. Each of
// `ranks` has a device with wires of its own.
double ProfileRate(const MachineProfile& machine, int32_t ranks,
                   Resource resource) {
  switch (resource) {
    case Resource::kDiskRead:
      return machine.disk.read_bytes_per_second;
    case Resource::kDiskWrite:
      return machine.disk.write_bytes_per_second;
    case Resource::kHostToDevice:
      return ranks * machine.host_to_device_bytes_per_second;
    case Resource::kDeviceToHost:
      return ranks * machine.device_to_host_bytes_per_second;
    case Resource::kDeviceCompute:
    case Resource::kHostCompute:
    case Resource::kLink:
      return 0;
  }
  return 0;
}

}  // namespace

void ScaleResource(Resource resource, double speed, MachineProfile* machine) {
  switch (resource) {
    case Resource::kDiskRead:
      machine->disk.read_bytes_per_second *= speed;
      for (DiskRate& rate : machine->disk.rates) {
        rate.read_bytes_per_second *= speed;
      }
      break;
    case Resource::kDiskWrite:
      machine->disk.write_bytes_per_second *= speed;
      for (DiskRate& rate : machine->disk.rates) {
        rate.write_bytes_per_second *= speed;
      }
      break;
    case Resource::kHostToDevice:
      machine->host_to_device_bytes_per_second *= speed;
      break;
    case Resource::kDeviceToHost:
      machine->device_to_host_bytes_per_second *= speed;
      break;
    case Resource::kDeviceCompute:
      (machine->has_device() ? machine->device_compute : machine->host)
          .Scale(speed);
      break;
    case Resource::kHostCompute:
      machine->host.Scale(speed);
      break;
    case Resource::kLink:
      for (LinkProfile& link : machine->links) link.bytes_per_second *= speed;
      break;
  }
}

void PlanMonitor::Start(const Plan& plan, std::vector<MachineProfile> machines,
                        const PhaseRows& rows) {
  stages_.clear();
  rows_ = {};
  seconds_ = most_in_flight_ = 0;
  planned_rows_ = rows;
  for (size_t s = 0; s < plan.stages.size() && s < machines.size(); ++s) {
    Stage& stage = stages_.emplace_back();
    stage.machine = std::move(machines[s]);
    const int32_t named = plan.stages[s].policy.ranks;
    stage.ranks = named > 0 ? named : stage.machine.ranks;
    for (int r = 0; r < kNumResources; ++r) {
      stage.predicted[r] =
          rows.all() > 0 ? plan.stages[s].busy[r] / rows.all() : 0;
    }
  }
}

void PlanMonitor::Stop() { stages_.clear(); }

void PlanMonitor::Observe(int stage, const ResourceTotals& totals) {
  if (stage < 0 || stage >= static_cast<int>(stages_.size())) return;
  Stage& s = stages_[static_cast<size_t>(stage)];
  if (!s.first) s.first = totals;
  s.last = totals;
}

void PlanMonitor::Progress(const PhaseRows& rows, double seconds,
                           double in_flight) {
  rows_ = rows;
  seconds_ = seconds;
  most_in_flight_ = std::max(most_in_flight_, in_flight);
}

bool PlanMonitor::IsTypical() const {
  const double planned = planned_rows_.prompt_share();
  return rows_.all() >= kMinRowsShare * planned_rows_.all() &&
         rows_.all() >= kMinRounds * most_in_flight_ &&
         std::abs(rows_.prompt_share() - planned) <=
             kSameMix * std::min(planned, 1 - planned);
}

double PlanMonitor::PredictedSeconds(int stage, Resource resource) const {
  if (stage < 0 || stage >= static_cast<int>(stages_.size())) return 0;
  return stages_[static_cast<size_t>(stage)]
             .predicted[static_cast<size_t>(resource)] *
         rows_.all();
}

double PlanMonitor::MeasuredSeconds(int stage, Resource resource) const {
  if (stage < 0 || stage >= static_cast<int>(stages_.size())) return 0;
  const Stage& s = stages_[static_cast<size_t>(stage)];
  const auto r = static_cast<size_t>(resource);
  return s.first ? s.last.busy_seconds[r] - s.first->busy_seconds[r] : 0;
}

double PlanMonitor::Speed(const Stage& stage, Resource resource) const {
  if (!stage.first) return 1;
  const auto r = static_cast<size_t>(resource);
  const double busy = stage.last.busy_seconds[r] - stage.first->busy_seconds[r];
  const double predicted = stage.predicted[r] * rows_.all();
  if (busy < kMinBusySeconds ||
      std::max(busy, predicted) < kMinShare * seconds_) {
    return 1;
  }
  const double rate = ProfileRate(stage.machine, stage.ranks, resource);
  double speed = 1;
  if (rate > 0) {
    speed = (stage.last.bytes[r] - stage.first->bytes[r]) / busy / rate;
  } else if ((resource == Resource::kDeviceCompute ||
              resource == Resource::kHostCompute) &&
             IsTypical()) {
    speed = predicted / busy;
  }
  if (speed > 1 && busy < kFullShare * seconds_) return 1;
  if (!(speed > 0)) return 1;
  return speed > kTolerance || speed < 1 / kTolerance ? speed : 1;
}

std::optional<std::vector<MachineProfile>> PlanMonitor::Refit() const {
  std::vector<MachineProfile> machines;
  bool off = false;
  for (const Stage& stage : stages_) {
    MachineProfile& machine = machines.emplace_back(stage.machine);
    for (int r = 0; r < kNumResources; ++r) {
      const auto resource = static_cast<Resource>(r);
      const double speed = Speed(stage, resource);
      if (speed == 1) continue;
      ScaleResource(resource, speed, &machine);
      off = true;
    }
  }
  if (!off) return std::nullopt;
  return machines;
}

}  // namespace sluice
