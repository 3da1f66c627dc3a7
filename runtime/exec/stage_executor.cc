#include "runtime/exec/stage_executor.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/model/checkpoint/dummy_source.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<StageExecutor>> StageExecutor::Load(
    const ModelDir& model, const Options& options, const Progress& progress,
    const std::atomic<bool>* cancelled) {
  if (options.dummy_weights) {
    return LoadStage(model.spec(), DummySource(), options, progress, cancelled);
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> source,
                          model.OpenTensors());
  return LoadStage(model.spec(), *source, options, progress, cancelled);
}

absl::Status StageExecutor::Options::Validate(const DecoderSpec& spec) const {
  if (layers.begin < 0 || layers.size() < 1 || layers.end > spec.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", layers.begin, ", ", layers.end,
                     ") are not a part of the model's ", spec.num_layers));
  }
  if (policy.gbs < 1 || policy.num_microbatches < 1 ||
      policy.max_step_tokens < 1) {
    return absl::InvalidArgumentError(
        "the policy's gbs, num_microbatches and max_step_tokens must be at "
        "least 1");
  }
  const bool disk = policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
                    policy.activations.disk > 0;
  if (disk && (disk_dir.empty() || disk_budget == nullptr)) {
    return absl::InvalidArgumentError(
        "the policy puts data on disk, but this worker has no --disk-dir");
  }
  if (max_model_len < 1) {
    return absl::InvalidArgumentError("max_model_len must be at least 1");
  }
  if (spec.positions == PositionKind::kLearned &&
      max_model_len > spec.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len of ", max_model_len, " exceeds the ",
                     spec.max_positions, " positions that the model has"));
  }
  if (max_sequences < 1) {
    return absl::InvalidArgumentError("max_sequences must be at least 1");
  }
  if (compute_threads < 1 || policy.compute_threads < 0) {
    return absl::InvalidArgumentError("compute_threads must be at least 1");
  }
  if (host_budget == nullptr) {
    return absl::InvalidArgumentError("host_budget is missing");
  }
  if (device.has_memory() != (device_budget != nullptr)) {
    return absl::InvalidArgumentError(
        "a device_budget goes with a device that has memory of its own");
  }
  return absl::OkStatus();
}

}  // namespace sluice
