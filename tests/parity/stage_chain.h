#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "runtime/collective/collective.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// The device with memory of its own that tests of such devices use: the
// discrete CPU, or what the environment's SLUICE_TEST_DEVICE says, as --device.
DeviceChoice TestDevice();

// Stages of one model in this process, one after the other, as a pipeline would
// run them.
class StageChain {
 public:
  // StageOptions's.
  using WrapBackend = std::function<void(BackendParts&, Device*)>;
  struct Options {
    std::vector<int> cuts;  // layers at which stages begin, without the first 0
    Policy policy;
    int32_t max_model_len = 256;
    int32_t kv_positions = 0;  // StageShare's
    int32_t max_sequences = 64;
    int32_t compute_threads = 1;  // of each rank
    int ranks = 1;                // of each stage, tensor parallel
    // Makes what ranks exchange by; null: the process's memory.
    std::function<absl::StatusOr<std::unique_ptr<CollectiveGroup>>()> exchange;
    uint64_t budget_bytes = uint64_t{4} << 30;  // of each stage
    std::string disk_dir;                       // "": no disk
    uint64_t disk_bytes = uint64_t{4} << 30;    // of each stage
    // The device memory of each rank, where `device` computes. 0: the CPU
    // does.
    uint64_t device_bytes = 0;
    DeviceChoice device = TestDevice();
    WrapBackend wrap_backend;  // or null
    // All logits go to the host, for logits().
    bool observe_logits = true;
  };
  using Position = std::pair<int64_t, int32_t>;  // sequence, position

  static absl::StatusOr<std::unique_ptr<StageChain>> Create(
      const DecoderSpec& spec, const TensorSource& source,
      const Options& options);

  absl::Status RunStep(const StepPlan& plan, StepResult* result);
  void Reset();

  StageExecutor& stage(int i) { return *stages_[i]; }
  // Budgets come stage by stage: memory's, then the disk's and the devices', if
  // there are such.
  const MemoryBudget& budget(int i) const { return *budgets_[i]; }
  int num_stages() const { return static_cast<int>(stages_.size()); }
  // Logits of each position that was sampled, if they are observed.
  std::map<Position, std::vector<float>>& logits() { return logits_; }

 private:
  // The budgets of memory, disk and device, stage by stage.
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;
  std::vector<std::unique_ptr<StageExecutor>> stages_;
  std::map<Position, std::vector<float>> logits_;
};

// A prompt and how to run it.
struct ChainRequest {
  std::vector<int32_t> prompt;
  int32_t new_tokens = 0;
  int32_t chunk = 1 << 30;      // new tokens of a prefill step at most
  int32_t enters_at_step = 0;   // not before
  bool every_position = false;  // logits of each chunk's end, not only the last
  SamplingParams sampling;
};

// Runs all requests to their end, in steps that mix prefill chunks and decode
// tokens, spread over `micro_batches`. Request i is sequence
// first_sequence + i. Returns the new tokens of each.
absl::StatusOr<std::vector<std::vector<int32_t>>> RunRequests(
    StageChain& chain, const std::vector<ChainRequest>& requests,
    int micro_batches, int64_t first_sequence = 0);

}  // namespace sluice
