#include "server/cli/run/run_report.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/policy.h"
#include "common/text/bytes_text.h"
#include "common/types.h"
#include "scheduler/plan/plan.h"

namespace sluice {
namespace {

// The shares of `bytes` on each tier; 1 on the host if `bytes` is 0.
nlohmann::ordered_json Shares(uint64_t bytes, uint64_t host, uint64_t device) {
  if (bytes == 0) return {{"device", 0.0}, {"host", 1.0}, {"disk", 0.0}};
  const auto share = [&](uint64_t part) {
    return static_cast<double>(part) / static_cast<double>(bytes);
  };
  return {{"device", share(device)},
          {"host", share(host)},
          {"disk", share(bytes - host - device)}};
}

// The measured seconds of each resource, as workers count them.
ResourceSeconds Measured(const SweepStats& stats) {
  ResourceSeconds seconds = {};
  const auto set = [&](Resource resource, double value) {
    seconds[static_cast<size_t>(resource)] = value;
  };
  set(Resource::kDiskRead, stats.disk_read_seconds);
  set(Resource::kDiskWrite, stats.disk_write_seconds);
  set(Resource::kHostToDevice, stats.h2d_seconds);
  set(Resource::kDeviceToHost, stats.d2h_seconds);
  set(Resource::kDeviceCompute, stats.compute_seconds());
  set(Resource::kHostCompute, stats.host_attention_seconds);
  return seconds;
}

ResourceSeconds Predicted(const Plan& plan) {
  ResourceSeconds seconds = {};
  for (const StagePlan& stage : plan.stages) {
    for (int r = 0; r < kNumResources; ++r) seconds[r] += stage.busy[r];
  }
  return seconds;
}

}  // namespace

nlohmann::ordered_json RuntimeFigures(const Policy& asked,
                                      const RuntimeReport& report,
                                      const SweepStats& stats) {
  const RealisedPlacement& p = report.placement;
  return {
      {"policy",
       {{"asked", PolicyText(asked)},
        {"realised",
         {{"weights",
           // The policy does not include the embedding.
           Shares(p.weight_bytes - p.embedding_bytes,
                  p.weight_host_bytes - p.embedding_host_bytes,
                  p.weight_device_bytes)},
          {"kv_cache", Shares(p.kv_bytes, p.kv_host_bytes, p.kv_device_bytes)},
          {"activations", Shares(p.activation_bytes, p.activation_host_bytes,
                                 p.activation_device_bytes)}}}}},
      {"bytes_moved",
       {{"disk_read", stats.disk_read_bytes},
        {"disk_write", stats.disk_write_bytes},
        {"h2d", stats.h2d_bytes},
        {"d2h", stats.d2h_bytes}}},
      {"disk_bytes",
       {{"weights", {{"read", stats.weight_read_bytes}}},
        {"kv_cache",
         {{"read", stats.kv_read_bytes}, {"write", stats.kv_write_bytes}}},
        {"activations",
         {{"read", stats.activation_read_bytes},
          {"write", stats.activation_write_bytes}}}}},
      {"stall_seconds",
       {{"weights", stats.weight_stall_seconds},
        {"kv_cache", stats.kv_stall_seconds},
        {"activations", stats.activation_stall_seconds},
        {"host_attention", stats.attention_stall_seconds}}},
      {"compute_seconds",
       {{"projections", stats.projection_seconds},
        {"attention", stats.attention_seconds},
        {"dequantize", stats.dequantize_seconds},
        {"head", stats.head_seconds}}},
      {"host_attention_seconds", stats.host_attention_seconds},
      {"wire_seconds",
       {{"disk_read", stats.disk_read_seconds},
        {"disk_write", stats.disk_write_seconds},
        {"h2d", stats.h2d_seconds},
        {"d2h", stats.d2h_seconds}}},
      {"peak_memory_bytes",
       {{"device", report.device_peak_bytes},
        {"host", report.host_peak_bytes},
        {"disk", report.disk_peak_bytes},
        {"resident", report.resident_peak_bytes}}},
      {"kv_cache_bytes",
       {{"room", p.kv_host_bytes}, {"needed", report.kv_host_peak_bytes}}},
      {"weight_image_bytes", report.disk_image_bytes}};
}

std::string RuntimeTable(const RuntimeReport& report, const SweepStats& stats,
                         double wall_seconds, int workers) {
  const double all = wall_seconds * workers;
  const auto percent = [&](double seconds) {
    return all > 0 ? 100 * seconds / all : 0.0;
  };
  std::string text =
      absl::StrFormat("%-24s %10s %8s\n", "activity", "seconds", "share");
  const auto line = [&](const char* name, double seconds) {
    if (seconds < 0.0005) return;  // it would show as 0.000
    absl::StrAppendFormat(&text, "%-24s %10.3f %6.1f %%\n", name, seconds,
                          percent(seconds));
  };
  line("projections", stats.projection_seconds);
  line("attention", stats.attention_seconds);
  line("dequantizing", stats.dequantize_seconds);
  line("head and sampling", stats.head_seconds);
  line("waiting for weights", stats.weight_stall_seconds);
  line("waiting for KV cache", stats.kv_stall_seconds);
  line("waiting for activations", stats.activation_stall_seconds);
  line("waiting for attention", stats.attention_stall_seconds);
  line("between steps",
       std::max(0.0, all - stats.compute_seconds() - stats.stall_seconds()));
  const auto transfer = [&](const char* name, double seconds, uint64_t bytes) {
    if (bytes == 0) return;
    const double gigabytes = static_cast<double>(bytes) / 1e9;
    absl::StrAppendFormat(
        &text, "%-24s %10.3f %6.1f %%  %.3f GB, %.2f GB/s while busy\n", name,
        seconds, percent(seconds), gigabytes,
        seconds > 0 ? gigabytes / seconds : 0.0);
  };
  line("host: attention", stats.host_attention_seconds);
  transfer("wire: host to device", stats.h2d_seconds, stats.h2d_bytes);
  transfer("wire: device to host", stats.d2h_seconds, stats.d2h_bytes);
  transfer("wire: disk read", stats.disk_read_seconds, stats.disk_read_bytes);
  transfer("wire: disk write", stats.disk_write_seconds,
           stats.disk_write_bytes);
  const auto carried = [&](const char* name, uint64_t read, uint64_t write) {
    if (read == 0 && write == 0) return;
    absl::StrAppendFormat(
        &text, "disk: %-18s %10.3f GB read, %.3f GB written\n", name,
        static_cast<double>(read) / 1e9, static_cast<double>(write) / 1e9);
  };
  carried("weights", stats.weight_read_bytes, 0);
  carried("KV cache", stats.kv_read_bytes, stats.kv_write_bytes);
  carried("activations", stats.activation_read_bytes,
          stats.activation_write_bytes);
  const auto memory = [&](const char* name, uint64_t bytes) {
    absl::StrAppendFormat(&text, "%-24s %10s", name, BytesText(bytes));
  };
  if (report.resident_peak_bytes > 0) {
    memory("peak memory", report.resident_peak_bytes);
    text += "\n";
  }
  memory("of --host-memory", report.host_peak_bytes);
  absl::StrAppendFormat(&text, " set aside, at most");
  if (const uint64_t room = report.placement.kv_host_bytes; room > 0) {
    absl::StrAppendFormat(&text, "; %s of it for KV cache, %s needed",
                          BytesText(room),
                          BytesText(report.kv_host_peak_bytes));
  }
  text += "\n";
  if (report.device_peak_bytes > 0) {
    memory("of --device-memory", report.device_peak_bytes);
    text += "\n";
  }
  if (report.disk_peak_bytes > 0) {
    memory("of --disk-space", report.disk_peak_bytes);
    if (report.disk_image_bytes > 0) {
      absl::StrAppendFormat(&text,
                            "; %s of it weights, which stay for the next run",
                            BytesText(report.disk_image_bytes));
    }
    text += "\n";
  }
  return text;
}

std::string PredictionTable(const Plan& plan, const SweepStats& stats,
                            double wall_seconds, double tokens_per_second) {
  std::string text = absl::StrFormat(
      "%-24s %10s %10s\n%-24s %10.1f %10.1f\n%-24s %10.2f %10.2f\n", "plan",
      "predicted", "measured", "generated tokens/s", plan.tokens_per_second,
      tokens_per_second, "seconds", plan.seconds, wall_seconds);
  const ResourceSeconds predicted = Predicted(plan);
  const ResourceSeconds measured = Measured(stats);
  for (int r = 0; r < kNumResources; ++r) {
    if (predicted[r] == 0 && measured[r] == 0) continue;
    absl::StrAppendFormat(&text, "%-24s %10.2f %10.2f\n",
                          ResourceName(static_cast<Resource>(r)), predicted[r],
                          measured[r]);
  }
  return text;
}

nlohmann::ordered_json PredictionFigures(const Plan& plan,
                                         const SweepStats& stats) {
  nlohmann::ordered_json resources = nlohmann::ordered_json::object();
  const ResourceSeconds predicted = Predicted(plan);
  const ResourceSeconds measured = Measured(stats);
  for (int r = 0; r < kNumResources; ++r) {
    if (predicted[r] == 0 && measured[r] == 0) continue;
    const absl::string_view name = ResourceName(static_cast<Resource>(r));
    resources[std::string(name.data(), name.size())] = {
        {"predicted_seconds", predicted[r]}, {"measured_seconds", measured[r]}};
  }
  const absl::string_view binding = ResourceName(plan.binding_resource);
  return {{"tokens_per_second", plan.tokens_per_second},
          {"seconds", plan.seconds},
          {"binding", std::string(binding.data(), binding.size())},
          {"resources", std::move(resources)}};
}

}  // namespace sluice
