#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/threads/work_marks.h"
#include "runtime/kernels/backend.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_kind.h"
#include "runtime/placement/backend_space.h"
#include "runtime/weights/packed_weights.h"

namespace sluice {

class Collective;
class Device;

struct BackendOptions : BackendShape {
  std::vector<int> cores;          // one for each thread, or empty
  MemoryBudget* budget = nullptr;  // for the work space; outlives the backend
  // The device of a kind with memory of its own: the work space lies there, and
  // all that the computing calls take. `budget` then pays for packing and for
  // what is on its way between both. Outlives the backend.
  Device* device = nullptr;
  // The device that a backend on the host works beside: attention_rows() are
  // copied between both. Outlives the backend.
  Device* beside = nullptr;
  // What the backend exchanges columns by, if it is one of several ranks
  // (BackendShape::tensor): of the memory that it computes in. Outlives the
  // backend. A computing call that exchanges fails with the group's error.
  Collective* collective = nullptr;
  // The marks get what the host threads have done, task by task; or null. They
  // outlive the backend.
  WorkMarks* marks = nullptr;

  KvLayout kv_layout(const DecoderSpec& spec) const {
    return {.num_layers = layers.size(),
            .num_kv_heads = shard(spec).kv_heads.size(),
            .head_dim = spec.head_dim,
            .format = kv_format,
            .page_alignment = kv_page_alignment};
  }
};

// A backend and what it shares with those who use it.
struct BackendParts {
  // The backend's host threads. A computing call may use them; where device and
  // host are one, others may do so between such calls.
  std::unique_ptr<ComputePool> pool;
  std::unique_ptr<PackedWeights> weights;
  KvLayout kv_layout;
  std::unique_ptr<Backend> backend;  // uses the pool and the weights' layouts
};

// Makes a backend with its work space charged. kUnimplemented: not built in,
// or the machine lacks what it needs; kResourceExhausted.
absl::StatusOr<BackendParts> CreateBackend(BackendKind kind,
                                           const DecoderSpec& spec,
                                           const BackendOptions& options);

}  // namespace sluice
