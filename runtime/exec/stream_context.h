#pragma once

#include <cstdint>
#include <string>

#include "common/types.h"
#include "runtime/exec/device_compute.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Backend;
class Collective;
class EmbeddingStore;
class PackedWeights;
struct WeightUnits;

// The resources that the streams of a stage's data draw on. The pointers must
// outlive the streams.
struct StreamContext {
  MemoryBudget* memory = nullptr;  // the host's
  // These are for data on disk; null and empty without any.
  MemoryBudget* disk = nullptr;
  std::string disk_dir;
  IoEngine* io = nullptr;
  // Copies from and to host memory, which is pinned for it; null where device
  // and host are the same memory.
  Device* device = nullptr;
  bool overlap = true;  // false: nothing moves while computing

  // The backend that computes the layers, and its packed weights.
  Backend* backend = nullptr;
  PackedWeights* packed = nullptr;  // of the layers and the head
  // Their units; must outlive the streams.
  const WeightUnits* units = nullptr;
  // The backend on the host: the same, unless there is a device.
  Backend* host_backend = nullptr;
  PackedWeights* packed_embedding = nullptr;
  // The host's threads, for work between computing calls. Null: that is done by
  // the calling thread.
  ComputePool* pool = nullptr;
  DeviceCompute* compute = nullptr;  // of `backend`
  LayerRange layers;
  int64_t hidden_size = 0;
  int64_t max_rows = 0;  // of a micro-batch
  // The embedding with which residual streams begin on the first stage, else
  // null; and their buffers in host memory.
  EmbeddingStore* embedding = nullptr;
  // The exchange of residual streams in host memory between ranks: the leading
  // one begins them, and the others get them. Null if there is one rank.
  Collective* streams = nullptr;
  ActivationPool* buffers = nullptr;
  // These get the times of computing; the row and the tracer may be null.
  SweepStats* stats = nullptr;
  TraceRow* row = nullptr;
  Tracer* tracer = nullptr;
};

}  // namespace sluice
