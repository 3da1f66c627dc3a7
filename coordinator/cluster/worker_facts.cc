#include "coordinator/cluster/worker_facts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/codec/profile_json.h"
#include "common/host/logging.h"
#include "common/text/text.h"

namespace sluice {
namespace {

double BestGemms(const MachineProfile& machine) {
  double best = 0;
  for (const ProductRate& product : machine.compute().products) {
    best = std::max(best, product.flops_by_rows.Best());
  }
  return best;
}

}  // namespace

std::optional<MachineProfile> ProfileOf(const v1::Register& info) {
  if (info.profile_json().empty()) return std::nullopt;
  absl::StatusOr<MachineProfile> profile = ProfileFromJson(info.profile_json());
  if (!profile.ok()) {
    LogWarning(LogWorker(info.name()), " has a profile that ",
               "can't be used: ", profile.status().message());
    return std::nullopt;
  }
  profile->name = info.name();
  // The worker's present budget replaces the profile's.
  profile->host_memory_bytes = info.host_memory_bytes();
  return *std::move(profile);
}

bool HoldsWeights(const v1::Register& info,
                  const std::optional<MachineProfile>& profile, double bytes) {
  double memory = 0;
  if (profile && profile->has_device()) {
    memory = static_cast<double>(profile->device_memory_bytes);
  } else if (absl::StartsWith(info.device(), "cpu")) {
    memory = static_cast<double>(info.host_memory_bytes());
  }
  return bytes <= 0.75 * memory;
}

bool IsTransient(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kAborted ||
         code == absl::StatusCode::kCancelled ||
         code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kDeadlineExceeded;
}

std::string ClipText(const std::string& text, size_t max_bytes) {
  return EscapeInvalidUtf8(ClipUtf8(text, max_bytes));
}

std::string RateDifferences(const MachineProfile& before,
                            const MachineProfile& now) {
  std::vector<std::string> found;
  const auto add = [&](const char* what, double was, double is, double unit,
                       const char* of) {
    const std::string now_text = absl::StrFormat("%.3g", is / unit);
    const std::string before_text = absl::StrFormat("%.3g", was / unit);
    if (now_text == before_text) return;
    found.push_back(
        absl::StrCat(what, " ", now_text, " ", of, ", not ", before_text));
  };
  add("disk reads", before.disk.read_bytes_per_second,
      now.disk.read_bytes_per_second, 1e9, "GB/s");
  add("disk writes", before.disk.write_bytes_per_second,
      now.disk.write_bytes_per_second, 1e9, "GB/s");
  add("products at best", BestGemms(before), BestGemms(now), 1e12, "TFLOP/s");
  return found.empty()
             ? "its links, copies or host's attention have other rates"
             : absl::StrJoin(found, "; ");
}

ResourceTotals TotalsOf(const v1::RuntimeTotals& runtime) {
  ResourceTotals totals;
  const auto set = [&](Resource resource, double seconds, uint64_t bytes) {
    const auto r = static_cast<size_t>(resource);
    totals.busy_seconds[r] = seconds;
    totals.bytes[r] = static_cast<double>(bytes);
  };
  set(Resource::kDiskRead, runtime.disk_read_seconds(),
      runtime.disk_read_bytes());
  set(Resource::kDiskWrite, runtime.disk_write_seconds(),
      runtime.disk_write_bytes());
  set(Resource::kHostToDevice, runtime.h2d_seconds(), runtime.h2d_bytes());
  set(Resource::kDeviceToHost, runtime.d2h_seconds(), runtime.d2h_bytes());
  set(Resource::kDeviceCompute, runtime.compute_seconds(), 0);
  set(Resource::kHostCompute, runtime.host_attention_seconds(), 0);
  return totals;
}

}  // namespace sluice
