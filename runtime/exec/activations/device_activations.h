#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/activations/activation_stager.h"
#include "runtime/exec/device_compute.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/memory/device.h"
#include "runtime/memory/disk/io_completion.h"

namespace sluice {

// The residual streams of a step's micro-batches, on a device with memory of
// its own. The policy's shares hold for whole micro-batches: of each
// `num_batches`, `resident` stay on the device from layer to layer, spread
// evenly over the block; the others live in host memory, come into one of a few
// slots for their part of a layer, and go back after it. With a share of those
// on disk they come from an ActivationStager instead, one after the other: then
// only the disk works ahead.
//
// Used by one thread.
class DeviceActivations {
 public:
  struct Options {
    // Both outlive this.
    Device* device = nullptr;
    DeviceCompute* compute = nullptr;  // what is computed with them
    int64_t hidden_size = 0;
    int64_t max_rows = 0;  // of a micro-batch
    int num_batches = 0;
    int resident = 0;  // up to num_batches
    // For the others: 2 at least, if there are any.
    int slots = 0;
    // Where the others live if some of that is on disk; they are counted
    // without the resident ones there. Else null. Outlives this.
    ActivationStager* disk = nullptr;
    // Adds the seconds that Acquire and Leave waited.
    double* stall_seconds = nullptr;
  };
  // The errors of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceActivations>> Create(
      const Options& options);
  ~DeviceActivations();

  // Begins a step of rows.size() micro-batches, which are computed in the order
  // of these items (layer, micro-batch), and at its end once more, in order, if
  // `head`; `rows` has the rows of each. All of them Enter() first, in order.
  // Of the last step nothing is left. The errors of
  // ActivationStager::BeginStep.
  absl::Status BeginStep(std::span<const int32_t> rows,
                         std::span<const std::pair<int32_t, int32_t>> order,
                         bool head);
  // Takes what is micro-batch k's in host memory.
  absl::Status Enter(size_t k, std::shared_ptr<ActivationBuffer> x);
  // Begins to bring it to the device, if there is room.
  void Prefetch(size_t k);
  // Whether it stays on the device from layer to layer.
  bool resident(size_t k) const { return batches_[k].resident; }
  // Whether a second micro-batch may be acquired before the first is released.
  bool may_hold_two() const { return options_.disk == nullptr; }
  // Its [rows, hidden] on the device, when it is there. Those that are
  // prefetched must be next.
  absl::StatusOr<float*> Acquire(size_t k);
  // Begins to take it back to where it lives, when the device has computed it.
  absl::Status Release(size_t k);
  // Ends its life on the device: gives what it is now, in host memory.
  // REQUIRES: it is not held.
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Leave(size_t k);
  // The same, of one that nobody wants any more. It may be held.
  absl::Status Drop(size_t k);
  // Forgets the step, whatever state it is in.
  // REQUIRES: the device computes with none of it.
  void Reset();

 private:
  struct Slot {
    DeviceBuffer buffer;
    int batch = -1;     // whose it is; -1: nobody's
    bool held = false;  // or coming
    IoCompletion in, out;
  };
  struct Batch {
    std::shared_ptr<ActivationBuffer> home;
    // With a disk: its number there and its rows; and where it is in its turn.
    int32_t number = 0;
    int64_t rows = 0;
    float* staged = nullptr;
    Slot* slot = nullptr;  // null: in host memory only
    bool resident = false;
  };

  explicit DeviceActivations(const Options& options)
      : options_(options), outputs_(options.device) {}
  std::span<std::byte> Host(const Batch& batch) const;
  void Load(size_t k, Slot* slot);
  void Store(size_t k);
  // A slot for another micro-batch: at once, or null; or when one is stored.
  absl::StatusOr<Slot*> FreeSlot(bool wait);
  void Forget(Batch& batch);

  const Options options_;
  std::vector<std::unique_ptr<Slot>> resident_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Batch> batches_;
  ActivationPool outputs_;
  // For the stager: the step's order and the rows of each.
  std::vector<int32_t> turns_, stager_rows_;
};

}  // namespace sluice
