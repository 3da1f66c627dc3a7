#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "scheduler/cost/model_sizes.h"
#include "scheduler/plan/plan.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"

// Tests whether plans can be carried out, with random models, budgets and
// workloads. What the planner calls feasible runs inside its budgets; what
// lacks more than a twentieth of them, by its count, is refused by the runtime,
// too.

namespace sluice {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

MachineProfile Machine(uint64_t memory, uint64_t disk) {
  MachineProfile machine;
  machine.name = "m";
  machine.threads = 1;
  machine.host_memory_bytes = memory;
  machine.disk_bytes = disk;
  ComputeProfile& host = machine.host;
  host.memory_bytes_per_second = 2e10;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (WeightFormat format :
         {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
      host.products.push_back(
          {dtype, format, RateCurve({{1, 5e9}, {64, 2e11}, {512, 3e11}})});
    }
  }
  for (KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16,
                          KvFormat::kInt8, KvFormat::kInt4}) {
    host.attention.push_back(
        {format, RateCurve::Constant(1e10), RateCurve::Constant(1e11)});
  }
  host.quantize_bytes_per_second = 1e9;
  host.dequantize_bytes_per_second = 5e9;
  host.layer_seconds = 5e-5;
  host.row_element_seconds = 1e-9;
  host.logit_seconds = 2e-10;
  host.share_by_threads = RateCurve({{1, 1}});
  machine.disk.read_bytes_per_second = 2e9;
  machine.disk.write_bytes_per_second = 1e9;
  machine.step_seconds = 5e-4;
  return machine;
}

// Gives the machine a device of so much memory.
void AddDevice(uint64_t memory, MachineProfile* machine) {
  machine->device_memory_bytes = memory;
  machine->device_compute = machine->host;
  machine->host_to_device_bytes_per_second = 1e10;
  machine->device_to_host_bytes_per_second = 1e10;
}

// Of these many seeds, cases have one tier of memory and are loaded for the
// longest request; beyond, --max-model-len is more, and some have a device.
constexpr uint32_t kPlainSeeds = 200;
// And beyond these, stages have several ranks.
constexpr uint32_t kOneRankSeeds = 300;
constexpr uint32_t kSeeds = 380;

struct Case {
  DecoderSpec spec;
  PlanRequest request;
  std::string text;
};

Case RandomCase(uint32_t seed) {
  std::mt19937 random(seed);
  const auto any = [&](int from, int to) {
    return from + static_cast<int>(random() % (to - from + 1));
  };
  Case c;
  const int kv_heads = any(1, 3);
  const int heads = kv_heads * any(1, 2);
  c.spec = LlamaSpec(any(2, 6), 64 * any(2, 6), heads, kv_heads,
                     32 * any(4, 30), any(1000, 8000));
  c.spec.head_dim = 32 * any(1, 2);
  RotarySpec& rotary = c.spec.rotaries.front();
  rotary.dim = c.spec.head_dim;
  rotary.inv_freq.assign(c.spec.head_dim / 2, 0.5F);
  PlanRequest& request = c.request;
  request.model = c.spec;
  request.dtype = any(0, 1) != 0 ? DType::kFloat32 : DType::kBFloat16;
  const int classes = any(1, 3);
  for (int i = 0; i < classes; ++i) {
    request.workload.classes.push_back(
        {any(4, 200), any(1, 60), int64_t{any(1, 200)}});
  }
  if (any(0, 3) == 0) request.choices.weight_formats = {WeightFormat::kInt4};
  if (any(0, 3) == 0) request.choices.kv_formats = {WeightFormat::kInt8};
  // The memory ranges from far too little to plenty.
  const double weights =
      WeightBytes(AllLayerElements(c.spec) + 2 * HeadElements(c.spec),
                  request.dtype, request.choices.weight_formats.front());
  const double share = std::pow(2, any(-40, 15) / 10.0);
  const auto memory = static_cast<uint64_t>(share * (weights + 4 * kMiB));
  const uint64_t disk =
      any(0, 1) != 0 ? static_cast<uint64_t>(weights * any(5, 80) / 10) : 0;
  request.machines = {Machine(memory, disk)};
  if (seed > kPlainSeeds) {
    request.max_model_len = request.longest() * any(1, 5);
    if (any(0, 2) > 0) {
      AddDevice(memory / any(1, 6), request.machines.data());
    }
  }
  if (seed > kOneRankSeeds) {
    MachineProfile& machine = request.machines[0];
    machine.ranks = machine.threads = any(2, 4);
    machine.exchange = {1e9, 1e-5};
  }
  c.text = absl::StrCat("case ", seed, ": ", c.spec.num_layers, " layers of ",
                        c.spec.hidden_size, ", ", DTypeName(request.dtype),
                        ", memory ", memory, ", disk ", disk, ", device ",
                        request.machines[0].device_memory_bytes, ", longest ",
                        request.longest(), " of ", request.max_model_len, ", ",
                        request.machines[0].ranks, " ranks");
  return c;
}

// Loads a stage with the policy as a coordinator would send it, with KV for
// sequences of `kv_positions` where it lies as the policy says.
absl::StatusOr<std::unique_ptr<StageChain>> Load(const Case& c, Policy policy,
                                                 int32_t max_sequences,
                                                 int32_t kv_positions,
                                                 const TempDir& dir) {
  policy.dtype = c.request.dtype;
  StageChain::Options options;
  options.max_model_len =
      std::max(c.request.max_model_len, c.request.longest());
  if (!policy.automatic_kv_cache) {
    options.kv_positions = std::min(options.max_model_len, kv_positions);
  }
  options.policy = policy;
  options.max_sequences = max_sequences;
  options.budget_bytes = c.request.machines[0].host_memory_bytes;
  options.disk_bytes = c.request.machines[0].disk_bytes;
  options.device_bytes = c.request.machines[0].device_memory_bytes;
  options.ranks = c.request.machines[0].ranks;
  if (options.disk_bytes > 0) options.disk_dir = dir.path();
  return StageChain::Create(c.spec, DummySource(), options);
}

double HostBytes(const StagePlan& stage) {
  for (const CapacityUse& use : stage.capacities) {
    if (use.what == "host memory") return use.bytes;
  }
  return 0;
}

TEST(FeasiblePlansTest, WhatIsFeasibleRunsAndWhatIsNotDoesNot) {
  int feasible = 0;
  int refused = 0;
  int of_ranks = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const Case c = RandomCase(seed);
    SCOPED_TRACE(c.text);
    const absl::StatusOr<PlanResult> result = MakePlan(c.request);
    TempDir dir = TempDir::OnDisk();
    if (result.ok()) {
      ++feasible;
      const Plan& plan = result->best;
      SCOPED_TRACE(PolicyText(plan.stages[0].policy));
      auto chain = Load(
          c, plan.stages[0].policy,
          plan.block.num_blocks * plan.block.gbs * plan.block.num_microbatches,
          SequencePositions(plan), dir);
      ASSERT_TRUE(chain.ok()) << chain.status();
      // The longest request runs alone: it takes the most pages, and a step of
      // every size up to the largest chunk.
      ChainRequest longest;
      longest.prompt.assign(c.request.longest() - 1, 7);
      longest.new_tokens = 1;
      longest.chunk = plan.block.max_step_tokens;
      const auto answers = RunRequests(**chain, {longest}, 1);
      ASSERT_TRUE(answers.ok()) << answers.status();
      EXPECT_LE((*chain)->budget(0).peak_bytes(),
                c.request.machines[0].host_memory_bytes);
      if (seed > kOneRankSeeds) {
        ++of_ranks;
        // What the plan counts on is there, on all ranks.
        EXPECT_GE((*chain)->stage(0).kv_pages(),
                  plan.kv_positions / kPageTokens);
        if (!plan.stages[0].policy.automatic_kv_cache) {
          // Ranks do not pack at the same moment.
          const double planned = HostBytes(plan.stages[0]);
          const auto taken =
              static_cast<double>((*chain)->budget(0).peak_bytes());
          EXPECT_LE(taken, planned);
          EXPECT_GE(taken, 0.5 * planned);
        }
      }
    } else {
      ASSERT_TRUE(absl::IsResourceExhausted(result.status()))
          << result.status();
      const auto shortage = FindShortage(c.request);
      ASSERT_TRUE(shortage.ok()) << shortage.status();
      EXPECT_FALSE(shortage->what.empty());
      // No one change helps where device and memory are both too small.
      if (seed <= kPlainSeeds) {
        EXPECT_FALSE(shortage->remedies.empty());
      }
      if (shortage->bytes <= 0.05 * shortage->limit) continue;
      // Beside a device, or with ranks, each of which has shares of its own, a
      // worker that chooses has more ways than a plan's.
      if (c.request.machines[0].has_device() || seed > kOneRankSeeds) continue;
      ++refused;
      // This policy asks for as little as can be asked for.
      Policy least;
      least.gbs = 1;
      least.max_step_tokens = 16;
      least.compress_weights = c.request.choices.weight_formats.front();
      least.compress_kv = c.request.choices.kv_formats.front();
      const auto chain = Load(c, least, 1, 0, dir);
      EXPECT_EQ(chain.status().code(), absl::StatusCode::kResourceExhausted)
          << chain.status() << " though " << shortage->what << " lacks "
          << shortage->bytes << " of " << shortage->limit;
    }
  }
  EXPECT_GE(feasible, 60);
  EXPECT_GE(refused, 20);
  EXPECT_GE(of_ranks, 20);
}

}  // namespace
}  // namespace sluice
