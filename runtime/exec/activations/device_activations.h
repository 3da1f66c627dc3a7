#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/activations/activation_stager.h"
#include "runtime/exec/activations/activations.h"
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
class DeviceActivations : public Activations {
 public:
  struct Options {
    int num_batches = 0;
    int resident = 0;  // up to num_batches
    // The slots for the others: 2 at least, if there are any.
    int slots = 0;
    // The home of the others if a share of them is on disk, where they are
    // counted without the resident ones; else null.
    std::unique_ptr<ActivationStager> disk;
  };
  // Errors are those of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceActivations>> Create(
      const StreamContext& context, Options options);
  ~DeviceActivations() override { Reset(); }

  // Embedded streams begin at once: later the host's backend may be busy with
  // attention. Others begin as they come.
  absl::Status BeginStep(StepWork* step) override;
  absl::StatusOr<float*> Acquire(size_t turn) override;
  void ReadAhead() override;
  // A stream stays where it is if its next turn is next.
  absl::Status Release(size_t turn) override;
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Leave(size_t k) override;
  bool fixed(size_t k) const override { return batches_[k].resident; }
  void Reset() override;
  StreamTotals totals() const override;

 private:
  struct Slot {
    DeviceBuffer buffer;
    int batch = -1;     // whose it is; -1: nobody's
    bool held = false;  // or coming
    IoCompletion in, out;
  };
  struct Batch {
    std::shared_ptr<ActivationBuffer> home;
    // The stream's number in the stager, and its address there in its turn.
    int32_t number = 0;
    float* staged = nullptr;
    Slot* slot = nullptr;  // null: in host memory only
    bool resident = false;
    bool begun = false;
  };

  DeviceActivations(const StreamContext& context, Options options)
      : Activations(context), options_(std::move(options)) {}
  // Places the step's streams, and tells the stager whose turn it is when.
  absl::Status PlaceStreams();
  // Begins k's stream, in host memory.
  absl::Status BeginStream(size_t k);
  // Begins to bring k to the device, if it is there and there is room.
  absl::Status Prefetch(size_t k);
  std::span<std::byte> Host(size_t k) const;
  void Load(size_t k, Slot* slot);
  void Store(size_t k);
  // Returns a slot for another micro-batch; if none is free, waits or gives up.
  absl::StatusOr<Slot*> FreeSlot(bool wait);
  void Forget(Batch& batch);

  const Options options_;
  std::vector<std::unique_ptr<Slot>> resident_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Batch> batches_;
  // The step's order and the rows of each stream, for the stager.
  std::vector<int32_t> turns_, stager_rows_;
  double stall_seconds_ = 0;
};

}  // namespace sluice
