#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/exec/kv/device_kv_stager.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Consecutive segments of a micro-batch whose pages lie in one tier; of those
// that are staged, one group.
struct SegmentRun {
  int32_t first = 0;
  int32_t count = 0;
  Tier tier = Tier::kHost;
};

// A micro-batch of the step at hand.
struct StageWork {
  std::vector<SegmentView> segments;
  std::vector<SegmentRun> runs;
  // With a device: the segments with the pages that they have in their tier,
  // whatever `segments` shows at the moment. [segments.size()]
  std::vector<DeviceKvStager::Member> members;
  std::vector<int32_t> padded_tokens;  // without packing
  BatchView view;
  // Where device and host are the same memory, and all of it is for
  // activations: the residual stream.
  std::shared_ptr<ActivationBuffer> x;
  // [view.rows, hidden], while it is its turn: where it is computed.
  float* rows = nullptr;
  bool on_host = false;  // some of its attention is
};

}  // namespace sluice
