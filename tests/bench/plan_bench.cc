// Measures how long the planner takes for a model of 96 layers on 8 workers,
// and the simulator for a cluster of hundreds, on one core.

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/simulate/simulator.h"
#include "tests/unit/scheduler/plan_testing.h"

namespace sluice {
namespace {

// Returns the seconds of processor time, as machines do other things too.
double Now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// 96 layers of OPT-175B's size.
PlanRequest BigRequest(std::vector<MachineProfile> machines) {
  PlanRequest request = TestRequest(std::move(machines), 96);
  request.model.hidden_size = request.model.embed_dim = 12288;
  request.model.num_heads = request.model.num_kv_heads = 96;
  request.model.intermediate_size = 49152;
  request.model.gated_mlp = false;
  request.model.vocab_size = 50272;
  request.workload.classes = {
      {256, 32, 20000}, {512, 64, 20000}, {1024, 128, 5000}};
  return request;
}

void Plan(const char* what, const PlanRequest& request) {
  const double begin = Now();
  const auto result = MakePlan(request);
  const double seconds = Now() - begin;
  if (!result.ok()) {
    std::printf("%-44s %6.2f s  %s\n", what, seconds,
                result.status().ToString().c_str());
    return;
  }
  const auto& best = result->best;
  std::printf(
      "%-44s %6.2f s, %lld candidates, %lld programs: %.4g tokens/s, gbs %d x "
      "%d, %d blocks, %d tokens, w %.0f/%.0f/%.0f\n",
      what, seconds, static_cast<long long>(result->candidates),
      static_cast<long long>(result->programs_solved), best.tokens_per_second,
      best.block.gbs, best.block.num_microbatches, best.block.num_blocks,
      best.block.max_step_tokens, 100 * best.stages[0].policy.weights.device,
      100 * best.stages[0].policy.weights.host,
      100 * best.stages[0].policy.weights.disk);
  std::fflush(stdout);
}

void SimulateHundreds() {
  std::vector<MachineProfile> machines;
  for (int i = 0; i < 200; ++i) {
    machines.push_back(
        TestMachine("w" + std::to_string(i), 64e9, 0, i % 4 == 0 ? 2 : 1));
  }
  PlanRequest request = BigRequest(machines);
  request.model.num_layers = 400;
  request.choices.gbs = {2};
  request.choices.num_microbatches = {1};
  request.choices.num_blocks = {200};
  request.choices.max_step_tokens = {512};
  double begin = Now();
  const auto result = MakePlan(request);
  std::printf("plan for 200 workers %.2f s\n", Now() - begin);
  if (!result.ok()) {
    std::printf("%s\n", result.status().ToString().c_str());
    return;
  }
  begin = Now();
  const auto simulated = Simulate(request, result->best, {});
  const double seconds = Now() - begin;
  if (!simulated.ok()) {
    std::printf("%s\n", simulated.status().ToString().c_str());
    return;
  }
  std::printf(
      "simulation of 200 workers: %.2f s for %lld steps (%.0f a second); "
      "predicted %.4g tokens/s, simulated %.4g\n",
      seconds, static_cast<long long>(simulated->steps),
      static_cast<double>(simulated->steps) / seconds,
      result->best.tokens_per_second, simulated->tokens_per_second);
}

void Run() {
  std::vector<MachineProfile> cpu, unlike, devices;
  for (int i = 0; i < 8; ++i) {
    const std::string name = "w" + std::to_string(i);
    cpu.push_back(TestMachine(name, 64e9, 1e12));
    unlike.push_back(
        TestMachine(name, (20 + 8.0 * i) * 1e9, 1e12, 1 + 0.4 * i));
    devices.push_back(TestDeviceMachine(name, 16e9, 64e9, 1e12));
  }
  PlanRequest request = BigRequest(cpu);
  Plan("8 workers, memory and disk", request);
  request.choices.weight_formats = {WeightFormat::kFull, WeightFormat::kInt8,
                                    WeightFormat::kInt4};
  request.choices.kv_formats = request.choices.weight_formats;
  Plan("the same, nine pairs of formats", request);
  request = BigRequest(devices);
  Plan("8 workers with devices", request);
  request = BigRequest(unlike);
  Plan("8 unlike workers, even", request);
  request.split = Split::kBalanced;
  Plan("8 unlike workers, balanced", request);
  for (MachineProfile& machine : cpu) machine.machine = "one";
  request = BigRequest(cpu);
  request.split = Split::kBalanced;
  Plan("8 workers of one machine, balanced", request);
  SimulateHundreds();
}

}  // namespace
}  // namespace sluice

int main() { sluice::Run(); }
