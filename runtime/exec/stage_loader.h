#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Checks all tensors of the stage, charges the budgets, loads and packs the
// weights. kResourceExhausted names what does not fit; kCancelled when
// `cancelled` became true; tensor errors as in TensorSource. `source` need not
// be files; the executor keeps neither it nor `spec`.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled);
// The same for a model's directory, or with random weights if the options say
// so.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const ModelDir& model, const StageOptions& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled);

}  // namespace sluice
