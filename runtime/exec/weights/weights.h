#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/blocks.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/weights/packed_view.h"

namespace sluice {

// The weights of one stage, wherever they lie, by units (WeightUnits): those of
// its layers, then of its head. What is not where it is computed with is
// brought there, sweep after sweep, ahead of its use as far as there are slots.
// Used by one thread.
class Weights {
 public:
  virtual ~Weights() = default;
  // A step begins that uses the units as in UnitOrder; those of the one before
  // were all used.
  virtual void BeginStep(int layer_passes, int head_passes) = 0;
  // Waits until the unit's weights are there, to be computed with until its
  // release. Units are acquired in the order of the step. Each time that a unit
  // comes from disk it is checked: kDataLoss, and the damaged packed unit is
  // removed.
  virtual absl::StatusOr<PackedView> Acquire(int unit) = 0;
  // Says that the step does not use a unit that is yet to be acquired in it: it
  // need not be brought.
  virtual absl::Status Skip(int unit) = 0;
  // Lets the reading ahead begun by the last Release go on up to this share of
  // its unit: called before each micro-batch of a layer, so that other traffic
  // does not wait behind a whole layer.
  virtual void ReadAhead(double share) {}
  // Nothing is read ahead of units [begin, end), until told otherwise: which of
  // them are wanted is not known yet. With `next_time`, this is not about those
  // that the step is yet to use in its pass through them.
  virtual void HoldBack(int begin, int end, bool next_time) {}
  // Lets what was brought for the unit be overwritten.
  virtual absl::Status Release(int unit) = 0;
  // Whether no layer has to be brought.
  virtual bool layers_stay() const = 0;
  // Forgets the step, and goes on with unit 0.
  // REQUIRES: the backend computes nothing.
  virtual void Reset() = 0;
  virtual StreamTotals totals() const = 0;

 protected:
  // A unit of which a prefix stays where it is, and the rest goes through
  // slots. Offsets are of the packed unit.
  struct Cut {
    size_t bytes = 0;
    size_t kept_end = 0;    // where the bytes that stay end
    size_t split = 0;       // the part (panel) in which they end begins here
    size_t slot_begin = 0;  // split, down to a disk block
    int held_slot = -1;     // between Acquire and Release, if streamed
    bool streamed() const { return kept_end < bytes; }

    void Set(size_t packed_bytes, size_t end, size_t part_begin) {
      bytes = packed_bytes;
      kept_end = end;
      split = part_begin;
      slot_begin = RoundDownToDiskBlock(split);
    }
  };
};

}  // namespace sluice
