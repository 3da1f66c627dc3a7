#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/types.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/kv/batch_view.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "tests/cuda/support/parity.h"
#include "tests/cuda/support/sample_judge.h"

// A model that is run through a backend call by call, as a stage does it, for
// comparing backends.

namespace sluice {

// A sequence's part in a micro-batch.
struct WorldSegment {
  int sequence = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
  int32_t padding = 0;  // rows after it that are nobody's
};
using WorldBatch = std::vector<WorldSegment>;
using WorldStep = std::vector<WorldBatch>;

struct WorldOptions {
  DType dtype = DType::kFloat32;
  WeightFormat weight_format = WeightFormat::kFull;
  KvFormat kv_format = KvFormat::kFloat32;
  float sparsity = 1;
  int32_t max_rows = 128;
  int32_t head_rows = 16;
  int32_t max_model_len = 160;
  int32_t attention_slots = 1;
  bool dequantize = false;  // layers' quantized weights, once for all batches
  bool cut_packed = false;  // into two pieces of memory, anywhere
  unsigned seed = 0;        // of tokens, pages and cuts
  int num_sequences = 0;
};

// The results of a step: of each micro-batch, the residual stream after the
// last layer, without rows of padding; and the logits of each segment's last
// row. On a device, samples from some of these were asked for, too, and judged.
struct WorldOutput {
  std::vector<std::vector<float>> x;
  std::vector<float> logits;
};

// Runs a model as a stage does whose data stays where it is: layers may be
// replayed.
class BackendWorld {
 public:
  // The backend is the CPU's or, with a device, that device's.
  static std::unique_ptr<BackendWorld> Create(const DecoderSpec& spec,
                                              const TensorSource& source,
                                              const WorldOptions& options,
                                              Device* device,
                                              cudaStream_t stream);
  // Fails the test on an error.
  WorldOutput Run(const WorldStep& step);
  Backend& backend() { return *backend_; }
  MemoryBudget& memory() { return memory_; }

 private:
  // Memory where the backend computes.
  struct Piece {
    HostBuffer host;
    DeviceBuffer device;
    std::byte* data() const {
      return device.data() != nullptr ? device.as<std::byte>()
                                      : host.as<std::byte>();
    }
  };
  struct Packed {
    Piece low, high;
    PackedView view;
  };
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;
  };

  BackendWorld(const DecoderSpec& spec, const WorldOptions& options,
               Device* device)
      : spec_(spec),
        options_(options),
        device_(device),
        requests_(static_cast<int>(options.seed)) {}
  void Load(const TensorSource& source);
  Piece Allocate(size_t bytes);
  void Write(const Piece& to, const std::byte* from, size_t bytes);
  // Returns where the part begins that the byte at an offset belongs to; null:
  // not to be cut.
  using PartBegin = std::function<size_t(size_t offset)>;
  template <typename Pack>
  Packed Load(size_t bytes, const PartBegin& part_begin, const Pack& pack);
  std::vector<float> Read(const Piece& from, size_t count);
  void RunLayer(int layer, std::vector<BatchView>& batches,
                std::vector<std::vector<SegmentView>>& segments,
                std::vector<Piece>& x);
  void TakeLogits(std::vector<Backend::LogitRow>& rows);
  // Appends the logits of the first rows of the head's input.
  void AppendLogits(int32_t rows, std::vector<float>* logits);
  std::vector<float> Logits(const std::vector<std::vector<SegmentView>>& step,
                            const std::vector<Piece>& x);

  const DecoderSpec spec_;
  const WorldOptions options_;
  Device* const device_;
  MemoryBudget memory_{Tier::kHost, uint64_t{1} << 32};
  uint32_t random_ = 0;
  Random requests_;
  SampleJudge judge_;
  BackendParts parts_;
  Backend* backend_ = nullptr;  // its
  Packed embedding_;
  std::vector<Packed> layers_, head_;
  Piece dequantized_;
  std::vector<Piece> pages_;  // by layer
  std::vector<Piece> x_;      // by micro-batch
  std::vector<Sequence> sequences_;
};

}  // namespace sluice
