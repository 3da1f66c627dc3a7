#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/model_dir.h"

namespace sluice {

class Collective;

// One of the ranks that compute a stage together, and what it exchanges columns
// by: those that its backend computes, and residual streams in host memory.
struct StageRank {
  TensorRank tensor;
  Collective* columns = nullptr;
  Collective* streams = nullptr;
};

// Checks all tensors of the stage, charges the budgets, loads and packs the
// weights. kResourceExhausted names what does not fit; kCancelled when
// `cancelled` became true; tensor errors as in TensorSource. `source` need not
// be files; the executor keeps neither it nor `spec`. With several ranks
// (StageResources), each is loaded by a thread of its own.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled);
// The same for one rank: of `options`, whose ranks are not looked at, the
// budgets, the device and the threads are its own. The exchanges must outlive
// it.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadRank(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const StageRank& rank,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled);
// LoadStage for a model's directory, or with random weights if the options say
// so. kDataLoss if a file is not what its `known` pieces say.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const ModelDir& model, const StageOptions& options,
    const StageExecutor::Progress& progress, const std::atomic<bool>* cancelled,
    const KnownPieces& known = {});

}  // namespace sluice
