#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "scheduler/plan/layout.h"
#include "scheduler/simulate/simulator.h"
#include "tests/bench/paper/paper_case.h"
#include "tests/bench/scale_machines.h"

// What Sluice would do on clusters that nobody has at hand: the best layout by
// MakeLayout for each, and what its pipelines do in the simulator.
//
//   scale_table [--json=FILE] [--only=TEXT] [--prompt=512] [--output=32]
//
// Prints tables in Markdown. With --only, but rows whose name has TEXT:
// "opt-175b T4 8x 10 Gbit 1 ms".

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Of the job, for each worker: several generations of what is in flight.
constexpr int64_t kRequestsPerWorker = 2000;
// A pipeline is simulated with so many tokens at most; longer jobs are cut.
constexpr double kSimulatedTokens = 2e6;
constexpr int kWorkers[] = {8, 64, 512};
constexpr double kGbits[] = {1, 10, 100};
constexpr double kLatencies[] = {1e-3, 50e-3};

struct Flags {
  std::string json, only;
  int32_t prompt = 512, output = 32;
};

struct Row {
  std::string model;
  const SheetMachine* machine = nullptr;
  int workers = 0;
  double gbit = 0, latency = 0;
  // What came out; `why` if nothing did.
  std::string why;
  size_t replicas = 0, stages = 0, spares = 0;
  Plan plan;  // of the first pipeline
  double tokens_per_second = 0;
  double predicted = 0;  // by the closed form, rehearsed
  double busy = 0;       // of the stages' time, some resource
  double compute = 0;    // of the stages' time, what runs the layers
  double dollars = 0;    // for a million generated tokens
  double seconds = 0;    // of processor time, for plan and simulation

  std::string Name() const {
    return absl::StrFormat("%s %s %dx %g Gbit %g ms", model, machine->name,
                           workers, gbit, 1e3 * latency);
  }
};

// Meta's config.json of Llama-3.1-405B.
DecoderSpec Llama405B() {
  DecoderSpec model;
  model.num_layers = 126;
  model.hidden_size = model.embed_dim = 16384;
  model.num_heads = 128;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.rotaries = {{.dim = model.head_dim}};
  model.intermediate_size = 53248;
  model.vocab_size = 128256;
  model.max_positions = 131072;
  return model;
}

absl::StatusOr<DecoderSpec> ModelOf(const std::string& name) {
  if (name == "llama-3.1-405b") return Llama405B();
  return PaperModel(name);
}

double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Simulated {
  double seconds = 0;  // of all its share
  double busy = 0, compute = 0;
};

// Simulates a pipeline with its share of the job.
absl::StatusOr<Simulated> SimulatePipeline(const PlanRequest& request,
                                           const PipelinePlan& pipeline) {
  PlanRequest own = request;
  const double tokens =
      pipeline.share * (request.workload.output_tokens() +
                        static_cast<double>(request.workload.requests()));
  const double part = std::min(1.0, kSimulatedTokens / tokens);
  own.workload = ShareOf(request.workload, pipeline.share * part);
  SLUICE_ASSIGN_OR_RETURN(const SimulationResult result,
                          Simulate(own, pipeline.plan, {}));
  Simulated simulated;
  simulated.seconds = result.seconds * pipeline.share *
                      request.workload.output_tokens() /
                      static_cast<double>(result.tokens);
  const auto stages = static_cast<double>(result.stages.size());
  for (const SimulatedStage& stage : result.stages) {
    simulated.busy += stage.utilization / stages;
    simulated.compute +=
        stage.busy[static_cast<int>(Resource::kDeviceCompute)] /
        result.seconds / stages;
  }
  return simulated;
}

absl::Status Fill(const PlanRequest& request, Row* row) {
  SLUICE_ASSIGN_OR_RETURN(const LayoutResult made, MakeLayout(request, 0));
  const Layout& layout = made.best;
  row->replicas = layout.pipelines.size();
  row->spares = layout.spares.size();
  row->plan = layout.pipelines.front().plan;
  row->stages = row->plan.stages.size();
  row->predicted = layout.tokens_per_second;
  // Pipelines of alike machines with the same split are the same.
  std::map<std::pair<size_t, double>, Simulated> known;
  double seconds = 0;
  for (const PipelinePlan& pipeline : layout.pipelines) {
    const auto [it, is_new] = known.try_emplace(
        {pipeline.plan.stages.size(), pipeline.share}, Simulated{});
    if (is_new) {
      SLUICE_ASSIGN_OR_RETURN(it->second, SimulatePipeline(request, pipeline));
    }
    const Simulated& simulated = it->second;
    seconds = std::max(seconds, simulated.seconds);
    // Workers that no stage is on are idle, too.
    const double weight = static_cast<double>(pipeline.plan.stages.size()) /
                          static_cast<double>(row->workers);
    row->busy += weight * simulated.busy;
    row->compute += weight * simulated.compute;
  }
  row->tokens_per_second = request.workload.output_tokens() / seconds;
  row->dollars = 1e6 / row->tokens_per_second / 3600 *
                 row->machine->dollars_per_hour * row->workers;
  return absl::OkStatus();
}

absl::Status Compute(const Flags& flags, Row* row) {
  PlanRequest request;
  SLUICE_ASSIGN_OR_RETURN(request.model, ModelOf(row->model));
  for (int w = 0; w < row->workers; ++w) {
    MachineProfile& machine =
        request.machines.emplace_back(row->machine->profile);
    machine.name = machine.machine = absl::StrCat("w", w);
    machine.links = {SheetLink(row->gbit, row->latency)};
  }
  request.workload.classes = {
      {flags.prompt, flags.output, kRequestsPerWorker * row->workers}};
  const double begin = Seconds();
  const absl::Status status = Fill(request, row);
  row->seconds = Seconds() - begin;
  if (!status.ok()) row->why = std::string(status.message());
  return status;
}

std::string Percent(double share) {
  return absl::StrFormat("%.0f %%", 100 * share);
}

std::string Binding(const Row& row) {
  return std::string(ResourceName(row.plan.binding_resource));
}

void Print(const Row& row) {
  std::string line = absl::StrFormat("| %d | %g | %g | ", row.workers, row.gbit,
                                     1e3 * row.latency);
  if (!row.why.empty()) {
    absl::StrAppend(&line, row.why, " | | | | | | |");
  } else {
    const Policy& policy = row.plan.stages[row.plan.stages.size() / 2].policy;
    absl::StrAppendFormat(
        &line,
        "%d x %d%s | %d x %d x %d, %d | %.0f/%.0f/%.0f, %.0f/%.0f/%.0f | "
        "%.4g | %s | %s | %s | %.3g |",
        row.replicas, row.stages,
        row.spares > 0 ? absl::StrCat(", ", row.spares, " spare") : "",
        row.plan.block.num_blocks, row.plan.block.num_microbatches,
        row.plan.block.gbs, row.plan.block.max_step_tokens,
        100 * policy.weights.device, 100 * policy.weights.host,
        100 * policy.weights.disk, 100 * policy.kv_cache.device,
        100 * policy.kv_cache.host, 100 * policy.kv_cache.disk,
        row.tokens_per_second, Percent(row.busy), Percent(row.compute),
        Binding(row), row.dollars);
  }
  std::puts(line.c_str());
  std::fflush(stdout);
  std::fprintf(stderr, "%-36s %6.2f s\n", row.Name().c_str(), row.seconds);
}

Json JsonOf(const Row& row) {
  Json json = {{"model", row.model},
               {"machine", row.machine->name},
               {"workers", row.workers},
               {"gbit", row.gbit},
               {"latency_seconds", row.latency}};
  if (!row.why.empty()) {
    json["why_not"] = row.why;
    return json;
  }
  const Policy& policy = row.plan.stages[row.plan.stages.size() / 2].policy;
  const auto tiers = [](const TierFractions& f) {
    return Json::array({f.device, f.host, f.disk});
  };
  json.update({{"replicas", row.replicas},
               {"stages", row.stages},
               {"spares", row.spares},
               {"blocks", row.plan.block.num_blocks},
               {"num_microbatches", row.plan.block.num_microbatches},
               {"gbs", row.plan.block.gbs},
               {"max_step_tokens", row.plan.block.max_step_tokens},
               {"steps_in_flight", row.plan.block.steps_in_flight},
               {"weights", tiers(policy.weights)},
               {"kv_cache", tiers(policy.kv_cache)},
               {"tokens_per_second", row.tokens_per_second},
               {"predicted_tokens_per_second", row.predicted},
               {"busy", row.busy},
               {"compute_busy", row.compute},
               {"binding", Binding(row)},
               {"dollars_per_million_tokens", row.dollars}});
  return json;
}

void PrintMachines(const std::vector<SheetMachine>& machines) {
  std::puts(
      "| machine | $ an hour | price | products Tflop/s | memory GB/s | device "
      "GB | host GB | bus GB/s | disk GB/s |\n|---|---|---|---|---|---|---|---|"
      "---|");
  for (const SheetMachine& m : machines) {
    const MachineProfile& p = m.profile;
    std::puts(
        absl::StrFormat(
            "| %s | %.2f | %s | %.1f | %.0f | %.1f | %.0f | %.1f | %.1f |",
            m.name, m.dollars_per_hour, m.price_source,
            p.compute().products[0].flops_by_rows.Best() / 1e12,
            p.compute().memory_bytes_per_second / 1e9,
            static_cast<double>(p.device_memory_bytes) / 1e9,
            static_cast<double>(p.host_memory_bytes) / 1e9,
            p.host_to_device_bytes_per_second / 1e9,
            p.disk.read_bytes_per_second / 1e9)
            .c_str());
  }
}

int Run(const Flags& flags) {
  const std::vector<SheetMachine> machines = SheetMachines();
  PrintMachines(machines);
  Json rows = Json::array();
  int failed = 0;
  for (const char* model : {"opt-175b", "llama-3.1-405b"}) {
    for (const SheetMachine& machine : machines) {
      std::printf(
          "\n### %s on %s, %d:%d\n\n| workers | Gbit/s | ms | replicas x "
          "stages | blocks x micro-batches x gbs, step tokens | weights, KV: "
          "%% on device/host/disk | tokens/s | busy | computing | binding | $ "
          "per million tokens |\n|---|---|---|---|---|---|---|---|---|---|---|"
          "\n",
          model, machine.name.c_str(), flags.prompt, flags.output);
      for (const int workers : kWorkers) {
        for (const double gbit : kGbits) {
          for (const double latency : kLatencies) {
            Row row = {.model = model,
                       .machine = &machine,
                       .workers = workers,
                       .gbit = gbit,
                       .latency = latency};
            if (row.Name().find(flags.only) == std::string::npos) continue;
            if (!Compute(flags, &row).ok()) ++failed;
            Print(row);
            rows.push_back(JsonOf(row));
          }
        }
      }
    }
  }
  std::fprintf(stderr, "%zu rows, %d refused, %.0f s of processor time\n",
               rows.size(), failed, Seconds());
  if (flags.json.empty()) return 0;
  const Json all = {{"prompt", flags.prompt},
                    {"output", flags.output},
                    {"requests_per_worker", kRequestsPerWorker},
                    {"rows", rows}};
  std::ofstream file(flags.json);
  file << all.dump(1) << "\n";
  file.close();
  if (!file) {
    std::fprintf(stderr, "can't write %s\n", flags.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t equals = std::min(arg.find('='), arg.size());
    const std::string name = arg.substr(0, equals);
    const std::string value = arg.substr(std::min(equals + 1, arg.size()));
    bool ok = true;
    if (name == "--json") {
      flags.json = value;
    } else if (name == "--only") {
      flags.only = value;
    } else if (name == "--prompt" || name == "--output") {
      int32_t& length = name == "--prompt" ? flags.prompt : flags.output;
      ok = absl::SimpleAtoi(value, &length) && length > 0;
    } else {
      ok = false;
    }
    if (!ok) {
      std::fprintf(stderr,
                   "usage: scale_table [--json=FILE] [--only=TEXT] "
                   "[--prompt=TOKENS] [--output=TOKENS]\n");
      return 2;
    }
  }
  return sluice::Run(flags);
}
