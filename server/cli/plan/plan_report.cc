#include "server/cli/plan/plan_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/text.h"
#include "coordinator/planning/plan_json.h"

namespace sluice {
namespace {

constexpr int kBarWidth = 40;
constexpr size_t kMaxRejected = 12;

std::string Shares(const TierFractions& f) {
  return absl::StrFormat("%.3g/%.3g/%.3g", 100 * f.device, 100 * f.host,
                         100 * f.disk);
}

std::string Bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.4g %s", bytes, kUnits[unit]);
}

std::string Duration(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.3g s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.1f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string Describe(const Policy& policy) {
  std::string text =
      absl::StrCat("gbs ", policy.gbs, " x ", policy.num_microbatches);
  if (policy.compress_weights != WeightFormat::kFull) {
    absl::StrAppend(&text, ", ", WeightFormatName(policy.compress_weights),
                    " weights");
  }
  if (policy.compress_kv != WeightFormat::kFull) {
    absl::StrAppend(&text, ", ", WeightFormatName(policy.compress_kv), " KV");
  }
  return text;
}

}  // namespace

std::string PlanTable(const Plan& plan,
                      const std::vector<Alternative>& rejected) {
  std::string text = absl::StrFormat(
      "%d block%s of %d x %d sequences, up to %d new tokens in a micro-batch "
      "of "
      "a step\n\n%-16s %9s %-16s %-16s %-16s %s\n",
      plan.block.num_blocks, plan.block.num_blocks == 1 ? "" : "s",
      plan.block.gbs, plan.block.num_microbatches, plan.block.max_step_tokens,
      "worker", "layers", "weights d/h/d %", "KV d/h/d %", "activ. d/h/d %",
      "formats, attention");
  for (const StagePlan& stage : plan.stages) {
    const Policy& p = stage.policy;
    absl::StrAppendFormat(
        &text, "%-16s %4d-%-4d %-16s %-16s %-16s %s weights, %s KV, %s\n",
        EscapeForTerminal(stage.worker), stage.layers.begin,
        stage.layers.end - 1, Shares(p.weights), Shares(p.kv_cache),
        Shares(p.activations),
        p.compress_weights == WeightFormat::kFull
            ? DTypeName(p.dtype)
            : WeightFormatName(p.compress_weights),
        p.compress_kv == WeightFormat::kFull ? DTypeName(p.dtype)
                                             : WeightFormatName(p.compress_kv),
        p.attention_site == AttentionSite::kHost ? "host" : "device");
  }
  absl::StrAppendFormat(&text,
                        "\nexpected: %.4g generated tokens/s, done in %s "
                        "(%.0f steps); a request takes %s\n",
                        plan.tokens_per_second, Duration(plan.seconds),
                        plan.steps, Duration(plan.latency_seconds));
  for (int r = 0; r < kNumResources; ++r) {
    if (plan.bytes_per_token[r] <= 0) continue;
    absl::StrAppendFormat(&text, "  %s: %s for each generated token\n",
                          ResourceName(static_cast<Resource>(r)),
                          Bytes(plan.bytes_per_token[r]));
  }
  absl::StrAppend(&text, "\nbusy, of the job's time:\n");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    for (int r = 0; r < kNumResources; ++r) {
      const double share = plan.seconds > 0 ? stage.busy[r] / plan.seconds : 0;
      if (share <= 0.0005) continue;
      const int filled =
          std::clamp(static_cast<int>(share * kBarWidth + 0.5), 0, kBarWidth);
      const bool binding = static_cast<int>(s) == plan.binding_stage &&
                           r == static_cast<int>(plan.binding_resource);
      absl::StrAppendFormat(&text, "  %-16s %-15s %s%s %5.1f %%%s\n",
                            EscapeForTerminal(stage.worker),
                            ResourceName(static_cast<Resource>(r)),
                            std::string(filled, '#'),
                            std::string(kBarWidth - filled, '.'), 100 * share,
                            binding ? "  <- binding" : "");
    }
  }
  absl::StrAppend(&text, "\nmemory:\n");
  for (const StagePlan& stage : plan.stages) {
    for (const CapacityUse& use : stage.capacities) {
      if (use.bytes <= 0) continue;
      absl::StrAppendFormat(&text, "  %-16s %-15s %s of %s%s\n",
                            EscapeForTerminal(stage.worker), use.what,
                            Bytes(use.bytes), Bytes(use.limit),
                            use.bytes > use.limit ? ": DOES NOT FIT" : "");
    }
  }
  if (!rejected.empty()) absl::StrAppend(&text, "\nrejected:\n");
  for (size_t i = 0; i < std::min(rejected.size(), kMaxRejected); ++i) {
    const Alternative& other = rejected[i];
    absl::StrAppendFormat(
        &text, "  %-32s %s\n", other.description,
        EscapeForTerminal(other.tokens_per_second > 0
                              ? absl::StrFormat("%.4g tokens/s: %s",
                                                other.tokens_per_second,
                                                other.why)
                              : other.why));
  }
  if (rejected.size() > kMaxRejected) {
    absl::StrAppend(&text, "  and ", rejected.size() - kMaxRejected,
                    " more (--json)\n");
  }
  return text;
}

std::string FrontierTable(const std::vector<Plan>& plans) {
  std::string text = absl::StrFormat("%14s %14s  %s\n", "latency", "tokens/s",
                                     "policy of the first stage");
  for (const Plan& plan : plans) {
    absl::StrAppendFormat(&text, "%14s %14.4g  %s, weights %s, KV %s\n",
                          Duration(plan.latency_seconds),
                          plan.tokens_per_second,
                          Describe(plan.stages.front().policy),
                          Shares(plan.stages.front().policy.weights),
                          Shares(plan.stages.front().policy.kv_cache));
  }
  return text;
}

nlohmann::ordered_json FrontierJson(const std::vector<Plan>& plans) {
  auto json = nlohmann::ordered_json::array();
  for (const Plan& plan : plans) {
    json.push_back({{"latency_seconds", plan.latency_seconds},
                    {"tokens_per_second", plan.tokens_per_second},
                    {"plan", nlohmann::ordered_json::parse(PlanToJson(plan))}});
  }
  return json;
}

}  // namespace sluice
