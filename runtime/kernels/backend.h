#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/threads/work_marks.h"
#include "common/types.h"
#include "runtime/kernels/image_view.h"
#include "runtime/kernels/image_window.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/placement/backend_space.h"
#include "runtime/sample/pick.h"

namespace sluice {

class Device;

// What a backend is told while it packs. Returns an error to stop. Called on
// the packing thread with the bytes done since the last call, counted as they
// lie in the image.
using LoadProgress = absl::FunctionRef<absl::Status(uint64_t bytes)>;

// Where a stage's arithmetic happens. One call per part of a layer and
// micro-batch, or larger, so that what lies inside can be fused.
//
// A backend owns work space only. Weights come as images: blocks of bytes, laid
// out by the backend, that the caller keeps in memory or on disk as it likes
// and shows for the time of a call (ImageView). K and V come as pages
// (SegmentView). x is the residual stream of a micro-batch, float32
// [rows, hidden].
//
// Computing calls may return before they are done, on backends with memory of
// their own: they are done in order, each as of what memory holds by then, and
// what was shown in host memory (the batch, rows_of_x) has been read. Results
// are there for later calls; for others, and before anybody else writes to
// memory that a call reads, after Finish().
//
// Confined to one thread, but for what it starts itself. After an error in a
// computing call, x and the KV pages of the batch are undefined.
class Backend {
 public:
  struct Options : BackendShape {
    std::vector<int> cores;          // one for each thread, or empty
    MemoryBudget* budget = nullptr;  // for the work space; outlives the backend
    // Of kinds with memory of their own: where the work space lies, and all
    // that the computing calls take. What then is charged to `budget` is for
    // packing and for what is on its way between both. Outlives the backend.
    Device* device = nullptr;
    // Of a backend without that, beside a device: what is copied between both,
    // which is attention_rows(). Outlives the backend.
    Device* beside = nullptr;
    // Gets what the host threads have done, task by task; or null. Outlives the
    // backend.
    WorkMarks* marks = nullptr;
  };

  // Makes a backend with its work space charged. kUnimplemented: not built in,
  // or the machine lacks what it needs; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(
      BackendKind kind, const DecoderSpec& spec, const Options& options);
  virtual ~Backend() = default;

  // Sizes of images: multiples of 4096. All layers are alike.
  virtual size_t EmbeddingBytes() const = 0;
  virtual size_t LayerBytes() const = 0;
  // The head's matrix is cut into sections of columns, none of which is much
  // larger than a layer: a large vocabulary's need not be in memory at once.
  virtual int num_head_sections() const = 0;
  virtual size_t HeadBytes(int section) const = 0;
  // The embedding's table lies at the head of its image: the row of token t is
  // bytes [t, t + 1) * EmbeddingRowBytes(), and nothing else is looked up by
  // token. A caller may show an image with other rows there, and give Embed
  // their numbers for tokens.
  virtual size_t EmbeddingRowBytes() const = 0;
  virtual size_t EmbeddingTableBytes() const = 0;
  // What the bytes of an image depend on, beside the weights themselves.
  virtual std::string ImageKey() const = 0;

  // Read, convert and pack what of the tensors lies in the window of their
  // image; progress adds up to the window. `layer` counts from the model's
  // first.
  virtual absl::Status PackEmbedding(const TensorSource& source,
                                     LoadProgress progress,
                                     const ImageWindow& to) = 0;
  virtual absl::Status PackLayer(int layer, const TensorSource& source,
                                 LoadProgress progress,
                                 const ImageWindow& to) = 0;
  virtual absl::Status PackHead(int section, const TensorSource& source,
                                LoadProgress progress,
                                const ImageWindow& to) = 0;

  // Quantized weights can be expanded once for several micro-batches: from a
  // layer's image into one of ExpandedLayerBytes() (0 if they are not
  // quantized), which the computing calls then take with `expanded` set.
  struct LayerImage {
    ImageView view;
    bool expanded = false;
  };
  virtual size_t ExpandedLayerBytes() const = 0;
  virtual absl::Status ExpandLayer(const ImageView& image, std::byte* out) = 0;

  virtual const KvLayout& kv_layout() const = 0;

  // x = embedding of the batch's tokens, positions included if they are
  // learned. Tokens must be within the vocabulary.
  virtual absl::Status Embed(const ImageView& image, const BatchView& batch,
                             float* x) = 0;
  // x += attention(norm1(x)), or x = norm1(x + attention(x)), in three steps.
  // The middle one may be called for the segments in any order and grouping,
  // once for each; their K and V need to be in place only then. It writes the
  // new positions' K and V into the segments' pages first.
  virtual absl::Status ProjectQkv(int layer, const LayerImage& image,
                                  const BatchView& batch, const float* x) = 0;
  virtual absl::Status Attend(int layer, const BatchView& batch,
                              int32_t first_segment, int32_t count) = 0;
  virtual absl::Status ProjectOut(int layer, const LayerImage& image,
                                  const BatchView& batch, float* x) = 0;
  // x += mlp(norm2(x)), or x = norm2(x + mlp(x)).
  virtual absl::Status Mlp(int layer, const LayerImage& image,
                           const BatchView& batch, float* x) = 0;

  // What lies between the three steps, for attention elsewhere (another
  // backend's Attend, on a copy of the rows): the q, k and v of each row of the
  // micro-batch in `slot`, before positions are applied, and what attention
  // gave it. Where the backend computes; valid as long as it lives.
  struct AttentionRows {
    std::byte* qkv = nullptr;  // float [rows, q + 2 kv]
    size_t qkv_bytes = 0;      // of a row
    std::byte* out = nullptr;  // [rows, q], in the dtype
    size_t out_bytes = 0;      // of a row
  };
  virtual AttentionRows attention_rows(int32_t slot) = 0;

  // Logits, in three steps, so that rows of several micro-batches can share one
  // pass over the head. First, some rows of x become rows [at, at + n) of the
  // head's input, of which there are head_rows(). Nothing else may be computed
  // until the logits are taken. `image`: the head's first section.
  virtual int32_t head_rows() const = 0;
  virtual absl::Status HeadInput(const ImageView& image,
                                 std::span<const int32_t> rows_of_x,
                                 const float* x, int32_t at) = 0;
  // Then the logits of input rows [0, rows), section by section, each with its
  // image.
  virtual absl::Status HeadLogits(const ImageView& image, int section,
                                  int32_t rows) = 0;
  // And what becomes of them, once after the last section.
  struct LogitRow {
    // What may be answered where the logits are; none: the host wants them.
    std::optional<PickRequest> request;
    // Set, one or the other: the answer; or the logits, [vocab] in host memory,
    // for the caller to overwrite, until the next computing call.
    Pick pick;
    std::span<float> logits;
    bool picked() const { return logits.empty(); }
  };
  // Of input rows [0, rows.size()), of which there are logits. Brings those
  // that the host wants; a backend whose logits are the host's gives all. Waits
  // for what it gives, as Finish().
  virtual absl::Status TakeLogits(std::span<LogitRow> rows) = 0;

  // A step's layers as one, for steps all of whose weights, pages and residual
  // streams stay on the device, where they were in the step before: what the
  // calls from ProjectQkv to Mlp compute is then told by the batches (but for
  // where their pages begin) and by where their residual streams lie.
  //
  // Asked before the first of these calls. True: they have been begun, and the
  // caller leaves them out. False: it makes them, in the order of all such
  // steps, with one Attend() for a batch and without a Finish() between them,
  // and then calls EndLayers().
  virtual absl::StatusOr<bool> ReplayLayers(std::span<const BatchView> batches,
                                            std::span<float* const> x) {
    return false;
  }
  virtual absl::Status EndLayers() { return absl::OkStatus(); }

  // Waits for all that computing calls have begun, and says what went wrong.
  virtual absl::Status Finish() { return absl::OkStatus(); }

  // Runs body(task, thread) on the backend's host threads: for work on logits.
  // On the calling one, and from any, where the device has none.
  virtual void ParallelFor(
      int num_tasks, absl::FunctionRef<void(int task, int thread)> body) = 0;
};

}  // namespace sluice
