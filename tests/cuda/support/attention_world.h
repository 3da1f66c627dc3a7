#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "runtime/kernels/cuda/attention/attention.h"
#include "runtime/kv/kv_layout.h"
#include "tests/cuda/support/device_array.h"

namespace sluice {

// Some sequences with random K and V, of which some are to be attended: their
// pages lie in no order, and hold nothing but NaN where nothing was stored.
struct AttentionWorld {
  struct Sequence {
    int start = 0;
    int num_tokens = 0;
  };

  // The shape and the contents of a random world.
  struct Choice {
    AttentionShape shape;
    int window = 0;
    float scale = 1;  // of the layer, times the shape's
    std::vector<Sequence> sequences;
    // Scores are about normal, with this deviation.
    float spread = 1;
    unsigned seed = 0;
    // The position in each sequence where an element of K or V is no number;
    // -1: nowhere.
    int nan_position = -1;
    bool nan_in_k = false;
  };

  explicit AttentionWorld(const Choice& choice);

  // Returns attention by its definition, in double precision, from K and V as
  // they are stored: [rows, num_heads, head_dim]. With sparsity below 1, it is
  // that of the kept positions. A score that is no number has no weight.
  std::vector<double> Definition(float sparsity = 1) const;
  // Returns what the CPU's kernels compute.
  std::vector<float> OnCpu(float sparsity = 1) const;

  // Returns what the device's kernels compute: segments of one token by decode,
  // or by sparse attention if sparsity is below 1, and the others by prefill.
  std::vector<float> OnDevice(const AttentionDevice& device,
                              float sparsity = 1) const;

  Choice choice;
  int rows = 0;
  int max_context = 0;   // of any token
  std::vector<float> q;  // [rows, q_stride], of which the first are q
  int64_t q_stride = 0;
  std::vector<int32_t> pages;
  std::vector<AttentionSegment> host_segments;
  std::vector<std::byte> memory;  // filled with all before it

 private:
  std::span<const int32_t> PagesOf(size_t sequence) const;
  std::vector<float> Floats(const std::vector<std::byte>& out) const;
  void Decode(const AttentionDevice& device, const AttentionData& data,
              int sequences, int max_context, float sparsity) const;

  DeviceArray<float> device_q_;
  DeviceArray<std::byte> device_memory_;
};

// |a - b| / |b|; not a number if any is not.
double RelativeError(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace sluice
