#pragma once

#include <cstdint>

#include "scheduler/cost/cost_model.h"

namespace sluice {

// Positions of a sequence that a KV page holds (kPageTokens in
// runtime/kv/kv_layout.h).
inline constexpr int32_t kPagePositions = 32;

// Sizes of what a stage's runtime keeps, in bytes: as it computes them itself
// where the model's sizes are multiples of 64, up to a cache line or a disk
// block here and there, and never less; of a GPU's workspace, up to tens of
// megabytes more. tests/integration/capacity_test.cc holds them against real
// stages.
struct StageBytes {
  // Images (runtime/weights/layer_layout.h): matrices in panels of 128
  // columns, biases and norms in float32. 0 where the stage has none.
  double embedding = 0, layer = 0, head = 0;
  // The head's sections: the first is the largest, the last the smallest.
  int head_sections = 0;
  double head_first = 0, head_other = 0, head_last = 0;
  // Rows that go through it at a time.
  int64_t head_rows = 0;
  // The largest part of an image that is not cut.
  double part = 0;
  // On disk, with header and checksums.
  double embedding_file = 0, layer_file = 0, head_file = 0;
  // What the embedding takes with its table on disk, and what is read then for
  // each token.
  double embedding_rows = 0, embedding_read = 0;
  // A layer in the full format, beside its quantized image.
  double expanded = 0;
  // A KV page in one layer; pages of the longest sequence; sequences.
  double layer_page = 0;
  int64_t sequence_pages = 0;
  int64_t sequences = 0;
  // The residual stream of a micro-batch, of as many rows as a step may have.
  double activations = 0;
  // Buffers of the backend that runs the layers: where it computes, and on the
  // host beside a device. Its threads' scratch memory included.
  double workspace = 0, host_workspace = 0;
  // What packing takes while weights are loaded.
  double table_packing = 0, layer_packing = 0, head_packing = 0;

  // All KV pages of all layers.
  double kv_pages() const {
    return static_cast<double>(sequence_pages) * static_cast<double>(sequences);
  }
  bool table_on_disk() const { return embedding_rows < embedding; }
};

StageBytes StageBytesOf(const StageCase& stage);

}  // namespace sluice
