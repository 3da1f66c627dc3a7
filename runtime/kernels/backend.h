#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/tensor_source.h"

namespace sluice {

enum class BackendKind { kCpu, kCuda };

// What a backend is told while it loads. Returns an error to stop the load.
// Called on the loading thread with the bytes done since the last call, counted
// as stored by the backend.
using LoadProgress = absl::FunctionRef<absl::Status(uint64_t bytes)>;

// Where a stage's arithmetic happens. One call per part of a layer and
// micro-batch, or larger, so that what lies inside can be fused. A backend owns
// the weights, the KV pages and the work space of one stage; x is the residual
// stream of a micro-batch, float32 [rows, hidden] in host memory.
//
// Life: Create; Load*, each layer of the stage once; ReserveKv; then the
// computing calls in any order. Confined to one thread, but for what it starts
// itself. After an error in a computing call, x and the KV pages of the batch
// are undefined.
class Backend {
 public:
  struct Options {
    LayerRange layers;
    DType dtype = DType::kFloat32;
    int32_t max_rows = 0;                 // rows in a micro-batch
    int32_t max_model_len = 0;            // positions in a sequence
    int32_t threads = 1;                  // the calling one included
    MemoryBudget* host_budget = nullptr;  // must outlive the backend
  };

  // Makes an empty backend with its work space charged. kUnimplemented: not
  // built in, or the machine lacks what it needs; kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(
      BackendKind kind, const DecoderSpec& spec, const Options& options);
  virtual ~Backend() = default;

  // Bytes that the weights will take.
  virtual absl::StatusOr<uint64_t> EmbeddingBytes() = 0;
  virtual absl::StatusOr<uint64_t> LayerBytes() = 0;
  virtual absl::StatusOr<uint64_t> HeadBytes() = 0;

  // Charge the budget as "embedding", "weights layer <n>", "head"; read,
  // convert and pack. `layer` counts from the model's first.
  virtual absl::Status LoadEmbedding(const TensorSource& source,
                                     LoadProgress progress) = 0;
  virtual absl::Status LoadLayer(int layer, const TensorSource& source,
                                 LoadProgress progress) = 0;
  virtual absl::Status LoadHead(const TensorSource& source,
                                LoadProgress progress) = 0;

  // Bytes of one page of K and V over all layers of the stage.
  virtual uint64_t KvPageBytes() const = 0;
  // Charges and reserves them.
  virtual absl::Status ReserveKv(int64_t num_pages) = 0;

  // x = embedding of the batch's tokens, positions included if they are
  // learned. Tokens must be within the vocabulary.
  virtual absl::Status Embed(const BatchView& batch, float* x) = 0;
  // x += attention(norm1(x)), or x = norm1(x + attention(x)). Writes the
  // batch's K and V into its pages first.
  virtual absl::Status Attention(int layer, const BatchView& batch,
                                 float* x) = 0;
  // x += mlp(norm2(x)), or x = norm2(x + mlp(x)).
  virtual absl::Status Mlp(int layer, const BatchView& batch, float* x) = 0;

  // Logits of some rows of x, in groups: `sink` gets the indices (into
  // `rows_of_x`) [first, first + logits.size() / vocab) and their logits, which
  // it may overwrite. Groups come in order.
  using LogitsSink =
      absl::FunctionRef<absl::Status(int32_t first, std::span<float> logits)>;
  virtual absl::Status Head(std::span<const int32_t> rows_of_x, const float* x,
                            LogitsSink sink) = 0;

  // Runs body(task, thread) on the backend's host threads: for work on logits.
  virtual void ParallelFor(
      int num_tasks, absl::FunctionRef<void(int task, int thread)> body) = 0;
};

}  // namespace sluice
