#include "server/cli/jobs/cluster_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/flags/help_format.h"
#include "common/text/text.h"
#include "runtime/model/hub_cache.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWidth = 80;
constexpr size_t kIndent = 4;

std::string Word(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return absl::AsciiStrToLower(name);
}

// Parses JSON that is sent as a string; null if it is "" or no JSON.
ordered_json Nested(const std::string& text) {
  if (text.empty()) return nullptr;
  ordered_json json = ordered_json::parse(text, nullptr, false);
  return json.is_discarded() ? ordered_json(nullptr) : json;
}

ordered_json WorkerJson(const v1::WorkerInfo& w) {
  ordered_json worker = {{"name", w.name()},
                         {"state", WorkerStateName(w.state())},
                         {"pipeline", w.pipeline()},
                         {"stage", w.stage()},
                         {"layer_begin", w.layer_begin()},
                         {"layer_end", w.layer_end()},
                         {"load_fraction", w.load_fraction()},
                         {"link_address", w.link_address()},
                         {"next_link", w.next_link()},
                         {"metrics_address", w.metrics_address()},
                         {"device", w.device()},
                         {"version", w.version()},
                         {"host_memory_bytes", w.host_memory_bytes()},
                         {"busy_seconds", w.busy_seconds()},
                         {"waiting_seconds", w.waiting_seconds()},
                         {"idle_seconds", w.idle_seconds()},
                         {"plan_seconds", w.plan_seconds()},
                         {"resources", ordered_json::array()},
                         {"profile", Nested(w.profile())},
                         {"detail", w.detail()}};
  for (const v1::ResourceUse& use : w.resources()) {
    worker["resources"].push_back(
        {{"resource", use.resource()},
         {"predicted_seconds", use.predicted_seconds()},
         {"measured_seconds", use.measured_seconds()}});
  }
  return worker;
}

ordered_json PipelineJson(const v1::PipelineInfo& p) {
  return {{"pipeline", p.pipeline()},
          {"epoch", p.epoch()},
          {"state", p.state()},
          {"num_workers", p.num_workers()},
          {"num_stages", p.num_stages()},
          {"num_blocks", p.num_blocks()},
          {"gbs", p.gbs()},
          {"running", p.running()},
          {"waiting", p.waiting()},
          {"blocks_in_flight", p.blocks_in_flight()},
          {"predicted_tokens_per_second", p.predicted_tokens_per_second()},
          {"generated_tokens", p.generated_tokens()}};
}

std::string PipelineText(const v1::PipelineInfo& p) {
  const std::string predicted =
      p.predicted_tokens_per_second() > 0
          ? absl::StrFormat(", %.1f tokens/s predicted",
                            p.predicted_tokens_per_second())
          : "";
  return absl::StrCat(
      Wrap(EscapeForTerminal(absl::StrFormat(
               "pipeline %d: plan %d of %d stages, %d sequences running, %d "
               "requests waiting%s: %s",
               p.pipeline(), p.epoch(), p.num_stages(), p.running(),
               p.waiting(), predicted, p.state())),
           0, kIndent, kWidth),
      "\n");
}

std::string KindName(v1::AbsentWorker::Kind kind) {
  return Word(v1::AbsentWorker::Kind_Name(kind), "KIND_");
}

// Formats a paragraph below a worker's line.
std::string Below(const std::string& text) {
  return absl::StrCat(std::string(kIndent, ' '),
                      Wrap(EscapeForTerminal(text), kIndent, kIndent, kWidth),
                      "\n");
}

// How a worker hands activations on; "" if it does not.
std::string HandsOn(const std::string& link) {
  if (link.empty()) return "";
  return absl::StrCat(", hands on by ",
                      link == "grpc" ? "gRPC" : absl::AsciiStrToUpper(link));
}

std::string WorkerText(const v1::WorkerInfo& w) {
  const double total =
      w.busy_seconds() + w.waiting_seconds() + w.idle_seconds();
  std::string state = WorkerStateName(w.state());
  if (w.load_fraction() > 0 && w.load_fraction() < 1 &&
      w.state() != v1::WORKER_STATE_READY) {
    absl::StrAppendFormat(&state, " %.0f %%", 100 * w.load_fraction());
  }
  std::string text = absl::StrFormat(
      "  %-20s %-13s %-13s %3.0f %% busy %6.1f GiB\n",
      EscapeForTerminal(w.name()), state,
      w.stage() < 0
          ? std::string("-")
          : absl::StrFormat("layers %d-%d", w.layer_begin(), w.layer_end() - 1),
      total > 0 ? 100 * w.busy_seconds() / total : 0.0,
      static_cast<double>(w.host_memory_bytes()) / (uint64_t{1} << 30));
  text += Below(absl::StrCat(w.device(), HandsOn(w.next_link())));
  if (!w.detail().empty()) text += Below(w.detail());
  for (const v1::ResourceUse& use : w.resources()) {
    absl::StrAppendFormat(&text,
                          "    %-18s %10.1f s predicted, %10.1f s measured, "
                          "%3.0f %% of the time\n",
                          EscapeForTerminal(use.resource()),
                          use.predicted_seconds(), use.measured_seconds(),
                          w.plan_seconds() > 0
                              ? 100 * use.measured_seconds() / w.plan_seconds()
                              : 0.0);
  }
  return text;
}

}  // namespace

std::string WorkerStateName(v1::WorkerState state) {
  return Word(v1::WorkerState_Name(state), "WORKER_STATE_");
}

std::string ClusterToJson(const v1::ClusterState& state) {
  ordered_json json = {
      {"model", state.model()},
      {"model_commit", ModelCommit(state.model_dir())},
      {"dtype", state.dtype()},
      {"state", state.state()},
      {"epoch", state.epoch()},
      {"min_workers", state.min_workers()},
      {"num_layers", state.num_layers()},
      {"running", state.running()},
      {"waiting", state.waiting()},
      {"generation_tokens_per_second", state.generation_tokens_per_second()},
      {"prefill_seconds", state.prefill_seconds()},
      {"decode_seconds", state.decode_seconds()},
      {"plan", Nested(state.plan())},
      {"pipelines", ordered_json::array()},
      {"workers", ordered_json::array()},
      {"absent", ordered_json::array()},
      {"plan_failures", ordered_json::object()}};
  for (const v1::PipelineInfo& pipeline : state.pipelines()) {
    json["pipelines"].push_back(PipelineJson(pipeline));
  }
  for (const v1::WorkerInfo& worker : state.workers()) {
    json["workers"].push_back(WorkerJson(worker));
  }
  for (const v1::AbsentWorker& absent : state.absent()) {
    json["absent"].push_back({{"name", absent.name()},
                              {"kind", KindName(absent.kind())},
                              {"reason", absent.reason()},
                              {"seconds_ago", absent.seconds_ago()},
                              {"seconds_left", absent.seconds_left()}});
  }
  for (const v1::PlanFailures& failures : state.plan_failures()) {
    json["plan_failures"][failures.reason()] = failures.count();
  }
  return EscapeJsonForTerminal(
      json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

std::string ClusterToText(const v1::ClusterState& state) {
  const std::string commit = ModelCommit(state.model_dir());
  std::string text = absl::StrCat(
      Wrap(EscapeForTerminal(absl::StrCat(
               "model ", state.model(), " (",
               commit.empty() ? "" : absl::StrCat("commit ", commit, ", "),
               state.num_layers(), " layers, ", state.dtype(), "), plan ",
               state.epoch(), ": ", state.state())),
           0, kIndent, kWidth),
      "\n");
  absl::StrAppendFormat(
      &text, "%d sequences running, %d requests waiting, %.1f tokens/s\n",
      state.running(), state.waiting(), state.generation_tokens_per_second());
  // Workers are listed below their pipeline, where there are several.
  const bool several = state.pipelines_size() > 1;
  const auto add = [&](int32_t pipeline) {
    for (const v1::WorkerInfo& worker : state.workers()) {
      if (!several || worker.pipeline() == pipeline) text += WorkerText(worker);
    }
  };
  for (const v1::PipelineInfo& pipeline : state.pipelines()) {
    if (!several) break;
    text += PipelineText(pipeline);
    add(pipeline.pipeline());
  }
  add(-1);
  if (state.absent_size() > 0) text += "not taking part:\n";
  for (const v1::AbsentWorker& absent : state.absent()) {
    absl::StrAppendFormat(&text, "  %-20s %-13s %.0f s ago\n",
                          EscapeForTerminal(absent.name()),
                          KindName(absent.kind()), absent.seconds_ago());
    text += Below(absent.reason());
  }
  return text;
}

}  // namespace sluice
