#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kernels/backend.h"
#include "runtime/kernels/cpu/compute_pool.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/kernels/cpu/host_buffer.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/tensor_names.h"
#include "runtime/model/tensor_source.h"

// Weights as the CPU backend keeps them, and how they get there: tensors are
// read by rows, a panel at a time and on all threads, so that loading needs
// little more memory than the weights themselves.

namespace sluice {

// data() is null where the model has none.
struct NormWeights {
  HostBuffer weight;
  HostBuffer bias;
};

struct LayerWeights {
  NormWeights norm1, norm2;
  // Q, K and V side by side.
  PackedMatrix qkv;
  HostBuffer qkv_bias;
  PackedMatrix out;
  HostBuffer out_bias;
  // Gated: each panel holds some gate columns, then the same up columns, so
  // that a tile has all that the activation needs.
  PackedMatrix up;
  HostBuffer up_bias;  // in the columns' order
  PackedMatrix down;
  HostBuffer down_bias;
};

struct HeadWeights {
  NormWeights norm;
  PackedMatrix project_out;  // n() is 0 if the model has none
  PackedMatrix head;
};

struct EmbeddingWeights {
  HostBuffer table;         // [vocab, embed_dim] in the engine's dtype
  HostBuffer positions;     // [positions, hidden] in the engine's dtype
  PackedMatrix project_in;  // n() is 0 if the model has none
};

// Reads the weights of one stage. Used by one thread at a time.
class WeightLoader {
 public:
  // All must outlive the loader.
  WeightLoader(const DecoderSpec& spec, GemmEngine* gemm, ComputePool* pool,
               MemoryBudget* budget)
      : spec_(spec), gemm_(gemm), pool_(pool), budget_(budget) {}

  // Bytes that each takes. `positions`: rows of the position table in use.
  absl::StatusOr<uint64_t> LayerBytes();
  absl::StatusOr<uint64_t> EmbeddingBytes(int64_t positions);
  absl::StatusOr<uint64_t> HeadBytes();

  absl::StatusOr<LayerWeights> LoadLayer(int layer, const TensorSource& source,
                                         LoadProgress progress);
  absl::StatusOr<EmbeddingWeights> LoadEmbedding(int64_t positions,
                                                 const TensorSource& source,
                                                 LoadProgress progress);
  absl::StatusOr<HeadWeights> LoadHead(const TensorSource& source,
                                       LoadProgress progress);

 private:
  // Rows of tensors that lie side by side in a panel.
  struct RowRun {
    const TensorRef* ref;
    int64_t begin;
    int64_t end;
  };
  using PanelRows = std::vector<RowRun>;

  // Tensors one after the other.
  static std::vector<PanelRows> Concatenate(
      const std::vector<const TensorRef*>& tensors);
  // Half a panel of each.
  static std::vector<PanelRows> Interleave(const TensorRef* a,
                                           const TensorRef* b);

  absl::Status LoadMatrix(const std::string& name,
                          const std::vector<PanelRows>& panels,
                          const TensorSource& source, LoadProgress progress,
                          PackedMatrix* out);
  // A table of which rows are looked up, in the engine's dtype.
  absl::Status LoadTable(const std::string& name, const TensorRef& ref,
                         int64_t rows, const TensorSource& source,
                         LoadProgress progress, HostBuffer* out);
  // Leaves `out` empty if a tensor is null.
  absl::Status LoadVectors(const std::string& name,
                           const std::vector<const TensorRef*>& tensors,
                           const TensorSource& source, LoadProgress progress,
                           HostBuffer* out);
  absl::Status LoadNorm(const std::string& name, const TensorRef* weight,
                        const TensorRef* bias, const TensorSource& source,
                        LoadProgress progress, NormWeights* out);

  const DecoderSpec& spec_;
  GemmEngine* const gemm_;
  ComputePool* const pool_;
  MemoryBudget* const budget_;
};

}  // namespace sluice
