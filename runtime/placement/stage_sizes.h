#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/policy.h"
#include "common/types.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_kind.h"
#include "runtime/placement/backend_space.h"
#include "runtime/placement/weight_units.h"

// The sizes of all that a stage keeps and works with, wherever it lies.

namespace sluice {

// A stage, as far as sizes depend on it.
struct StageShape {
  const DecoderSpec* model = nullptr;
  LayerRange layers;
  // The rank, if several compute the stage together: the sizes are its own.
  TensorRank tensor;
  Policy policy;  // all but the fractions
  // kCpu: the device is the processor.
  BackendKind device = BackendKind::kCpu;
  int32_t max_model_len = 0;  // positions in a sequence
  // Positions that KV is kept for, on average; 0: max_model_len.
  int32_t kv_positions = 0;
  int32_t max_sequences = 0;
  int32_t threads = 1;        // if the policy leaves them open
  bool may_use_disk = false;  // pages of KV have a disk's alignment

  bool has_device() const { return device != BackendKind::kCpu; }
  // The shape of the backend that runs the layers; and, beside a device, of the
  // host's, which has the embedding and attends, but never the head.
  BackendShape backend() const;
  BackendShape beside() const;
  PanelRules rules() const;
};

// Whether weights, KV or activations may lie on a disk that is there.
bool MayUseDisk(const Policy& policy);

// Groups a stage's layers by the positions that they keep K and V of. Those
// with a window are a group if that saves pages of the longest sequence.
KvGroups MakeKvGroups(const DecoderSpec& spec, LayerRange layers,
                      int32_t max_model_len);

// The sizes of a stage, in bytes unless said otherwise.
struct StageSizes {
  explicit StageSizes(const StageShape& shape);

  StageShape shape;
  PackedLayouts layouts;       // of the backend that runs the layers
  EmbeddingLayout embedding;   // of the host's; 0 bytes where there is none
  uint64_t embedding_on_disk;  // what stays in memory with its table there
  // The bytes of a dequantized layer that several micro-batches share; or 0. A
  // single micro-batch dequantizes inside its GEMMs.
  uint64_t dequantized;
  // The units, and the bytes and the PlacementGranule of each: the policy's
  // shares of weights are shares of these.
  WeightUnits weights;
  std::vector<size_t> units;
  std::vector<size_t> granules;
  uint64_t streamable;
  uint64_t largest_unit;
  uint64_t largest_expert;  // 0: there is none
  uint64_t layer_bytes;     // of all layers' units
  uint64_t expert_bytes;    // of those that are experts
  KvLayout kv;              // of all layers
  KvGroups kv_groups;
  int32_t head_rows;  // that go through the head at a time
  // Pages of group kAll are counted even where it has no layers and they take
  // no bytes: how many positions there is room for is told by them.
  int64_t sequence_pages;  // of the longest sequence
  int64_t kv_pages;        // that are worth having
  int64_t window_pages;    // of group kWindow, that are worth having with these
  // KV pages of a layer that are moved together: enough for requests of several
  // MiB, no fewer than a sequence has, no more than a micro-batch has.
  int64_t group_pages;
  uint64_t activation;    // the residual stream of a micro-batch
  uint64_t link_buffers;  // the frames that wait on links to its neighbours
  // Backends' work space: where they compute, and in host memory beside that.
  uint64_t device_workspace, host_workspace;
  // The bytes that packing the embedding, a unit or a packed unit takes beside
  // the result.
  uint64_t embedding_staging;
  std::vector<uint64_t> unit_staging;
  std::vector<uint64_t> packed_staging;

  // Returns the bytes of a page of all of a group's layers.
  uint64_t page(KvGroup group) const {
    return kv.layer_page_bytes() *
           static_cast<uint64_t>(kv_groups.sizes[group]);
  }
  // Returns the pages of group kWindow that belong to so many of group kAll:
  // their share of what is worth having, for a sequence at least.
  int64_t WindowPagesWith(int64_t pages) const;
  // Returns the bytes of such pages of both groups.
  uint64_t KvBytes(int64_t pages) const {
    return static_cast<uint64_t>(pages) * page(KvGroup::kAll) +
           static_cast<uint64_t>(WindowPagesWith(pages)) *
               page(KvGroup::kWindow);
  }
  int num_layers() const { return shape.layers.size(); }
  std::vector<const MatrixLayout*> MatricesOf(const WeightUnit& unit) const;
  // Returns where the part of a unit begins that has the byte at `offset` in
  // it.
  size_t PartBegin(size_t unit, size_t offset) const;
};

}  // namespace sluice
