#include "runtime/exec/stage_options.h"

#include "common/status_macros.h"

namespace sluice {

StageShape StageOptions::ShapeOf(const DecoderSpec& spec,
                                 TensorRank tensor) const {
  const bool has_disk = disk_budget != nullptr && !disk_dir.empty();
  return {.model = &spec,
          .layers = layers,
          .tensor = tensor,
          .policy = policy,
          .device = device.backend,
          .max_model_len = max_model_len,
          .kv_positions = kv_positions,
          .max_sequences = max_sequences,
          .threads = compute_threads,
          .may_use_disk = has_disk && MayUseDisk(policy)};
}

absl::Status StageOptions::Validate(const DecoderSpec& spec) const {
  if (layers.begin < 0 || layers.size() < 1 || layers.end > spec.num_layers) {
    return InvalidArgument("layers [", layers.begin, ", ", layers.end,
                           ") are not a part of the model's ", spec.num_layers);
  }
  if (policy.gbs < 1 || policy.num_microbatches < 1 ||
      policy.max_step_tokens < 1) {
    return InvalidArgument(
        "the policy's gbs, num_microbatches and max_step_tokens must be at "
        "least 1");
  }
  const bool disk = policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
                    policy.activations.disk > 0;
  if (disk && (disk_dir.empty() || disk_budget == nullptr)) {
    return InvalidArgument(
        "the policy puts data on disk, but this worker has no --disk-dir");
  }
  if (max_model_len < 1) {
    return InvalidArgument("max_model_len must be at least 1");
  }
  if (kv_positions < 0 || kv_positions > max_model_len) {
    return InvalidArgument("kv_positions is ", kv_positions,
                           ", but must be from 0 to max_model_len, ",
                           max_model_len);
  }
  if (spec.positions == PositionKind::kLearned &&
      max_model_len > spec.max_positions) {
    return InvalidArgument("max_model_len of ", max_model_len, " exceeds the ",
                           spec.max_positions, " positions that the model has");
  }
  if (max_sequences < 1) {
    return InvalidArgument("max_sequences must be at least 1");
  }
  if (compute_threads < 1 || policy.compute_threads < 0) {
    return InvalidArgument("compute_threads must be at least 1");
  }
  if (host_budget == nullptr) {
    return InvalidArgument("host_budget is missing");
  }
  if (ranks.size() > kMaxTensorRanks) {
    return InvalidArgument(ranks.size(), " ranks; a stage has at most ",
                           kMaxTensorRanks);
  }
  if (ranks.size() <= 1 && device.has_memory() != (device_budget != nullptr)) {
    return InvalidArgument(
        "a device_budget goes with a device that has memory of its own");
  }
  return absl::OkStatus();
}

}  // namespace sluice
