#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// StageExecutor::Load for weights from anywhere: `source` need not be files.
// The executor keeps neither `source` nor `spec`.
absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageExecutor::Options& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled);

}  // namespace sluice
