#pragma once

#include <memory>

#include "runtime/exec/activations/activations.h"
#include "runtime/exec/attention/attention.h"
#include "runtime/exec/device_compute.h"
#include "runtime/exec/stage_head.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/weights.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_engine.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/memory/work_buffer.h"
#include "runtime/placement/weight_units.h"
#include "runtime/trace/trace.h"

namespace sluice {

// The parts of a stage; see LoadStage. None is null unless it says so.
struct StageParts {
  // Returns what the stage's time went into: its own seconds, and what its
  // streams and its device say of themselves.
  SweepStats Totals() const;

  // These are destroyed last.
  std::unique_ptr<IoEngine> io;    // null: nothing is on disk
  std::unique_ptr<Device> device;  // null: device and host memory are the same
  BackendParts backend;
  std::unique_ptr<const WeightUnits> units;  // of its weights
  // The host's backend beside a device: embeds, samples, and attends to KV that
  // is not on the device. All of it is null without a device.
  BackendParts host;
  std::unique_ptr<SweepStats> stats;  // seconds of computing
  TraceRow* trace_row = nullptr;      // of the computing thread; may be null
  std::unique_ptr<DeviceCompute> compute;     // of `backend`
  std::shared_ptr<ActivationPool> buffers;    // for input and output
  std::unique_ptr<EmbeddingStore> embedding;  // null but on the first stage
  MemoryCharge activation_charge, link_charge;
  // A layer's full weights, if they are dequantized at all.
  WorkBuffer dequantized;
  bool dequantizes = false;
  KvGroups kv_groups;
  GroupPages pages = {};
  RealisedPlacement placement;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Activations> activations;
  std::unique_ptr<Attention> attention;  // with the KV cache
  std::unique_ptr<StageHead> head;       // null but on the last stage
};

}  // namespace sluice
