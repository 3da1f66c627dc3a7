#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/kernels/cpu/cpu_backend.h"
#include "runtime/memory/device.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/sample/sampler_scratch.h"

namespace sluice {

// A CPU backend that behaves as one with memory of its own does: its arithmetic
// is CpuBackend's, bit for bit, but its work space lies on
// BackendOptions::device, and a computing call whose weights, activations or
// pages do not is refused with kInternal, which names what was elsewhere. So a
// copy that the stage forgot can't go unnoticed on a machine without a GPU.
//
// Two things are the host's, as for any device: packing writes packed units
// into host memory, and FinalRows gives rows there, as does TakeLogits logits
// that it was not asked to pick from. It picks as the host does. Scratch of a
// thread (the query and the sums of one attention call) is neither's.
class DiscreteBackend : public CpuBackend {
 public:
  // Fails with kInvalidArgument without a device.
  static absl::StatusOr<BackendParts> Create(const DecoderSpec& spec,
                                             const BackendOptions& options);

  absl::Status TakeLogits(std::span<LogitRow> rows) override;
  absl::Status FinalRows(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         float* out) override;

 private:
  DiscreteBackend(const DecoderSpec& spec, const BackendOptions& options,
                  const BackendParts& parts, GemmEngine* gemm)
      : CpuBackend(spec, options, parts, gemm, options.device),
        device_(options.device),
        hidden_(spec.hidden_size),
        scratch_(options.threads) {}

  Device* const device_;
  const int64_t hidden_;
  HostBuffer logits_;  // [head rows, vocab]; last stage, leading rank
  struct Copy {
    std::span<const float> from;
    float* to;
  };
  std::vector<LogitRow> on_device_;      // as CpuBackend gives them
  std::vector<Copy> copies_;             // copies of what the host wants
  std::vector<SamplerScratch> scratch_;  // per thread
};

}  // namespace sluice
