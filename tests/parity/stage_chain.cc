#include "tests/parity/stage_chain.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/status_macros.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/exec/step_inputs.h"

namespace sluice {
namespace {

// Says of every other input that it has yet to arrive, which must make no
// difference.
class LateInputs : public HeldInputs {
 public:
  using HeldInputs::HeldInputs;
  bool ready(int32_t micro_batch) override { return micro_batch % 2 == 0; }
};

}  // namespace

DeviceChoice TestDevice() {
  const char* const name = std::getenv("SLUICE_TEST_DEVICE");
  if (name == nullptr) return {BackendKind::kCpuDiscrete};
  if (absl::string_view(name) == "cpu-on-gpu") {
    return {BackendKind::kCpuDiscrete, 0, /*in_gpu_memory=*/true};
  }
  const absl::StatusOr<DeviceChoice> device = ParseDevice(name);
  if (device.ok() && device->has_memory()) return *device;
  std::fprintf(stderr, "SLUICE_TEST_DEVICE=%s is no such device\n", name);
  std::abort();
}

absl::StatusOr<std::unique_ptr<StageChain>> StageChain::Create(
    const DecoderSpec& spec, const TensorSource& source,
    const Options& options) {
  auto chain = std::make_unique<StageChain>();
  std::vector<int> borders = {0};
  borders.insert(borders.end(), options.cuts.begin(), options.cuts.end());
  borders.push_back(spec.num_layers);
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    chain->budgets_.push_back(
        std::make_unique<MemoryBudget>(Tier::kHost, options.budget_bytes));
    StageOptions stage;
    stage.layers = {borders[i], borders[i + 1]};
    stage.policy = options.policy;
    stage.max_model_len = options.max_model_len;
    stage.kv_positions = options.kv_positions;
    stage.max_sequences = options.max_sequences;
    stage.compute_threads = options.compute_threads;
    stage.host_budget = chain->budgets_.back().get();
    if (!options.disk_dir.empty()) {
      chain->budgets_.push_back(
          std::make_unique<MemoryBudget>(Tier::kDisk, options.disk_bytes));
      stage.disk_budget = chain->budgets_.back().get();
      stage.disk_dir = options.disk_dir;
    }
    stage.ranks.resize(options.ranks);
    for (RankResources& rank : stage.ranks) {
      rank.compute_threads = options.compute_threads;
      if (options.device_bytes == 0) continue;
      chain->budgets_.push_back(
          std::make_unique<MemoryBudget>(Tier::kDevice, options.device_bytes));
      rank.device_budget = chain->budgets_.back().get();
      rank.device = options.device;
    }
    stage.device = stage.ranks[0].device;
    stage.device_budget = stage.ranks[0].device_budget;
    stage.exchange = options.exchange;
    if (options.ranks == 1) stage.ranks.clear();
    stage.wrap_backend = options.wrap_backend;
    if (borders[i + 1] == spec.num_layers && options.observe_logits) {
      stage.logits_observer = [chain = chain.get()](
                                  SequenceId id, int32_t position,
                                  std::span<const float> logits) {
        chain->logits_[{id.value(), position}] = {logits.begin(), logits.end()};
      };
    }
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<StageExecutor> executor,
                            LoadStage(spec, source, stage, nullptr, nullptr));
    chain->stages_.push_back(std::move(executor));
  }
  return chain;
}

absl::Status StageChain::RunStep(const StepPlan& plan, StepResult* result) {
  std::vector<std::shared_ptr<ActivationBuffer>> hidden;
  for (auto& stage : stages_) {
    std::vector<std::shared_ptr<ActivationBuffer>> next;
    const auto emit = [&](int32_t k, std::shared_ptr<ActivationBuffer> x) {
      if (k != static_cast<int32_t>(next.size())) {
        return absl::InternalError("micro-batches out of order");
      }
      next.push_back(std::move(x));
      return absl::OkStatus();
    };
    LateInputs inputs(std::move(hidden));
    SLUICE_RETURN_IF_ERROR(
        stage->RunStep(plan, stage->is_first() ? nullptr : &inputs, emit,
                       stage->is_last() ? result : nullptr));
    hidden = std::move(next);
  }
  return absl::OkStatus();
}

void StageChain::Reset() {
  for (auto& stage : stages_) stage->Reset();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> RunRequests(
    StageChain& chain, const std::vector<ChainRequest>& requests,
    int micro_batches, int64_t first_sequence) {
  struct State {
    std::vector<int32_t> tokens;
    int32_t done = 0;
    bool admitted = false;
    bool finished = false;
  };
  std::vector<State> states(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    states[i].tokens = requests[i].prompt;
  }
  StepPlan plan;
  for (;; ++plan.step) {
    plan.micro_batches.assign(micro_batches, {});
    plan.admit.clear();
    std::vector<size_t> who;
    bool waiting = false;
    for (int k = 0; k < micro_batches; ++k) {
      MicroBatch& batch = plan.micro_batches[k];
      for (size_t i = k; i < requests.size(); i += micro_batches) {
        const ChainRequest& request = requests[i];
        State& state = states[i];
        if (state.finished) continue;
        if (plan.step < request.enters_at_step) {
          waiting = true;
          continue;
        }
        const SequenceId id(first_sequence + static_cast<int64_t>(i));
        const int32_t prompt = static_cast<int32_t>(request.prompt.size());
        if (!state.admitted) {
          plan.admit.push_back(
              {id, prompt, prompt + request.new_tokens, request.sampling});
          state.admitted = true;
        }
        const int32_t known = static_cast<int32_t>(state.tokens.size());
        const int32_t count = std::min(request.chunk, known - state.done);
        const bool last = state.done + count == known;
        batch.segments.push_back(
            {id, state.done, count, last || request.every_position});
        batch.tokens.insert(batch.tokens.end(),
                            state.tokens.begin() + state.done,
                            state.tokens.begin() + state.done + count);
        state.done += count;
        if (batch.segments.back().sample) who.push_back(i);
      }
    }
    std::erase_if(plan.micro_batches,
                  [](const MicroBatch& b) { return b.segments.empty(); });
    if (plan.micro_batches.empty() && !waiting) break;
    StepResult result;
    SLUICE_RETURN_IF_ERROR(chain.RunStep(plan, &result));
    plan.release.clear();
    if (result.tokens.size() != who.size()) {
      return absl::InternalError("not one token per sampled segment");
    }
    for (size_t t = 0; t < who.size(); ++t) {
      State& state = states[who[t]];
      const ChainRequest& request = requests[who[t]];
      if (state.done < static_cast<int32_t>(state.tokens.size())) continue;
      const SequenceId id(first_sequence + static_cast<int64_t>(who[t]));
      if (result.tokens[t].sequence != id) {
        return absl::InternalError("tokens out of order");
      }
      if (state.tokens.size() < request.prompt.size() + request.new_tokens) {
        state.tokens.push_back(result.tokens[t].token);
      }
      if (state.tokens.size() == request.prompt.size() + request.new_tokens) {
        state.finished = true;
        plan.release.push_back(id);
      }
    }
  }
  // The last releases: a plan without micro-batches.
  StepResult result;
  SLUICE_RETURN_IF_ERROR(chain.RunStep(plan, &result));
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < requests.size(); ++i) {
    out.emplace_back(states[i].tokens.begin() + requests[i].prompt.size(),
                     states[i].tokens.end());
  }
  return out;
}

}  // namespace sluice
