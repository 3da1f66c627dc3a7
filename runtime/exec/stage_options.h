#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/policy.h"
#include "common/threads/work_marks.h"
#include "common/types.h"
#include "runtime/exec/stage_resources.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/stage_sizes.h"

namespace sluice {

class Device;
struct BackendParts;

// The part of a model that a stage plays, and how.
struct StageShare {
  // [0, n) contains the embedding, [n, num_layers) the head.
  LayerRange layers;
  Policy policy;
  int32_t max_model_len = 0;  // positions per sequence
  // Positions of a sequence for which the KV cache has room, if all that may be
  // in flight are as long; 0: max_model_len.
  int32_t kv_positions = 0;
  // The sequences of all blocks in flight; bounds the useful KV cache.
  int32_t max_sequences = 0;
  friend bool operator==(const StageShare&, const StageShare&) = default;
};

// The options that a stage is loaded with.
struct StageOptions : StageShare, StageResources {
  // Gets what loading and steps have done, piece by piece: in a long step it
  // goes up all the time. May be null; must outlive the executor.
  WorkMarks* marks = nullptr;
  // Tests only: sees each row of logits before sampling. [vocab]; the
  // position is that of the last input token.
  std::function<void(SequenceId, int32_t position, std::span<const float>)>
      logits_observer;
  // Tests only: stands between the stage and what computes for it. The device
  // is null where the backend has no memory of its own.
  std::function<void(BackendParts&, Device*)> wrap_backend;
  absl::Status Validate(const DecoderSpec& spec) const;
  // Returns what the sizes of one of the stage's ranks depend on.
  StageShape ShapeOf(const DecoderSpec& spec, TensorRank tensor) const;
};

}  // namespace sluice
