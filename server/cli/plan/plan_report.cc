#include "server/cli/plan/plan_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/text/text.h"
#include "coordinator/planning/plan_json.h"
#include "scheduler/plan/layout.h"

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

constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 80, kRight = 24, kTop = 48, kBottom = 56;

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The smallest of 1, 2, 5 times a power of ten that is at least `value`.
double RoundUp(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= value * (1 - 1e-9)) return step * power;
  }
  return 10 * power;
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
  if (!plan.tensor_parallel.empty()) {
    absl::StrAppend(&text, "  ", EscapeForTerminal(plan.tensor_parallel), "\n");
  }
  if (!plan.slicing.empty()) {
    absl::StrAppend(&text, "  ", EscapeForTerminal(plan.slicing), "\n");
  }
  absl::StrAppend(&text, "\nbusy, of the job's time:\n");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    for (int r = 0; r < kNumResources; ++r) {
      const double share = plan.seconds > 0 ? stage.busy[r] / plan.seconds : 0;
      if (share <= 0.0005) continue;
      const int filled = std::clamp(
          static_cast<int>(std::lround(share * kBarWidth)), 0, kBarWidth);
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
  return text + AlternativesTable("rejected", rejected);
}

std::string AlternativesTable(const std::string& title,
                              const std::vector<Alternative>& rejected) {
  if (rejected.empty()) return "";
  std::string text = absl::StrCat("\n", title, ":\n");
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

std::string LayoutTable(const PlanRequest& request, const Layout& layout) {
  std::string text = absl::StrFormat(
      "%d pipelines, each with the whole model: expected %.4g generated "
      "tokens/s, done in %s\n",
      layout.pipelines.size(), layout.tokens_per_second,
      Duration(layout.seconds));
  for (size_t p = 0; p < layout.pipelines.size(); ++p) {
    const PipelinePlan& pipeline = layout.pipelines[p];
    std::string names;
    for (const int m : pipeline.machines) {
      absl::StrAppend(
          &names, names.empty() ? "" : ", ",
          EscapeForTerminal(request.machines[static_cast<size_t>(m)].name));
    }
    absl::StrAppendFormat(
        &text, "  %d: %5.1f %% of the requests, %.4g tokens/s: %s\n", p,
        100 * pipeline.share, pipeline.plan.tokens_per_second, names);
  }
  if (!layout.spares.empty()) {
    std::string names;
    for (const int m : layout.spares) {
      absl::StrAppend(
          &names, names.empty() ? "" : ", ",
          EscapeForTerminal(request.machines[static_cast<size_t>(m)].name));
    }
    absl::StrAppend(&text, "  left over: ", names,
                    " (the job would hardly end sooner with them, or the "
                    "model does not fit them)\n");
  }
  for (size_t p = 0; p < layout.pipelines.size(); ++p) {
    absl::StrAppend(&text, "\n--- pipeline ", p, "\n\n",
                    PlanTable(layout.pipelines[p].plan, {}));
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

std::string FrontierSvg(const std::string& title,
                        const std::vector<FrontierPoint>& points) {
  double min = 1, max = 10, top = 1;
  if (!points.empty()) {
    min = max = points[0].latency_seconds;
    top = 0;
    for (const FrontierPoint& point : points) {
      min = std::min(min, point.latency_seconds);
      max = std::max(max, point.latency_seconds);
      top = std::max(top, point.tokens_per_second);
    }
    top = RoundUp(top);
  }
  const double low = std::floor(std::log10(min) + 1e-9);
  const double high = std::max(low + 1, std::ceil(std::log10(max) - 1e-9));
  const auto x = [&](double latency) {
    return kLeft + (std::log10(latency) - low) / (high - low) *
                       (kWidth - kLeft - kRight);
  };
  const auto y = [&](double rate) {
    return kHeight - kBottom - rate / top * (kHeight - kTop - kBottom);
  };

  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "width=\"%g\" height=\"%g\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"%g\" y=\"24\" font-size=\"16\">%s</text>\n",
      kWidth, kHeight, kWidth, kHeight, kLeft, Escape(title));
  for (int i = 0; i <= 5; ++i) {
    const double rate = top * i / 5;
    absl::StrAppendFormat(
        &svg,
        "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" "
        "stroke=\"#ddd\"/>\n"
        "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
        kLeft, kWidth - kRight, y(rate), y(rate), kLeft - 8, y(rate) + 4, rate);
  }
  for (double power = low; power <= high; ++power) {
    const double latency = std::pow(10, power);
    absl::StrAppendFormat(
        &svg,
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\" "
        "stroke=\"#ddd\"/>\n"
        "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n",
        x(latency), x(latency), kTop, kHeight - kBottom, x(latency),
        kHeight - kBottom + 20, latency);
  }
  absl::StrAppendFormat(
      &svg,
      "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">latency of a block, "
      "seconds</text>\n"
      "<text transform=\"translate(20 %g) rotate(-90)\" "
      "text-anchor=\"middle\">generated tokens per second</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 12,
      (kTop + kHeight - kBottom) / 2);
  std::string line;
  for (const FrontierPoint& point : points) {
    absl::StrAppendFormat(&line, "%.1f,%.1f ", x(point.latency_seconds),
                          y(point.tokens_per_second));
  }
  absl::StrAppend(&svg, "<polyline fill=\"none\" stroke=\"#1f6feb\" ",
                  "stroke-width=\"2\" points=\"", line, "\"/>\n");
  for (const FrontierPoint& point : points) {
    absl::StrAppendFormat(
        &svg,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#1f6feb\">"
        "<title>%s: %.4g s, %.4g tokens/s</title></circle>\n",
        x(point.latency_seconds), y(point.tokens_per_second),
        Escape(point.label), point.latency_seconds, point.tokens_per_second);
  }
  return svg + "</svg>\n";
}

std::string PlanLine(const std::string& json) {
  const absl::StatusOr<std::vector<Plan>> parsed = ParsePlans(json);
  if (!parsed.ok()) return "";
  if (parsed->size() > 1) {
    double rate = 0;
    std::string stages;
    for (const Plan& plan : *parsed) {
      rate += plan.tokens_per_second;
      absl::StrAppend(&stages, stages.empty() ? "" : " + ", plan.stages.size());
    }
    std::string text =
        absl::StrCat(parsed->size(), " pipelines of ", stages, " stages");
    if (rate > 0)
      absl::StrAppendFormat(&text, "; expected %.1f tokens/s", rate);
    return text;
  }
  const Plan& plan = parsed->front();
  const size_t stages = plan.stages.size();
  const StagePlan& binding =
      plan.stages[static_cast<size_t>(plan.binding_stage)];
  std::string text = absl::StrFormat(
      "%d stage%s, %d block%s of %d x %d", stages, stages == 1 ? "" : "s",
      plan.block.num_blocks, plan.block.num_blocks == 1 ? "" : "s",
      plan.block.gbs, plan.block.num_microbatches);
  if (plan.tokens_per_second > 0) {
    absl::StrAppendFormat(&text, "; expected %.1f tokens/s, bound by %s of %s",
                          plan.tokens_per_second,
                          ResourceName(plan.binding_resource),
                          EscapeForTerminal(binding.worker));
  }
  return text;
}

}  // namespace sluice
