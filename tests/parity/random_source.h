#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {

// Weights that look trained enough to run: pseudo-random, a pure function of
// the tensor's name and the element's place. Thread-safe.
class RandomSource : public TensorSource {
 public:
  explicit RandomSource(uint64_t seed = 0) : seed_(seed) {}
  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override;
  absl::Status Check(const TensorRef& ref) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override {
    return "random " + std::to_string(seed_);
  }

 private:
  uint64_t seed_;
};

// A Llama of the given size.
DecoderSpec LlamaSpec(int32_t layers, int32_t hidden, int32_t heads,
                      int32_t kv_heads, int32_t inner, int32_t vocab);

// Models with what those of other families have: norms of outputs, too, capped
// scores and logits, windows and two rotary embeddings; norms of outputs alone,
// and of all heads together; ALiBi and a norm of the embedding; rounded ALiBi
// and a scale of scores for each layer; parallel blocks and a bias of the head.
DecoderSpec GemmaSpec(int32_t layers);
DecoderSpec OlmoSpec(int32_t layers);
DecoderSpec BloomSpec(int32_t layers);
DecoderSpec FalconSpec(int32_t layers);
DecoderSpec ParallelSpec(int32_t layers);
// Mixtures of experts: with each router and what else they may have, and an MLP
// in some layers; and alone, chosen among groups, between norms of outputs.
DecoderSpec MixtureOfExperts(int32_t layers, RouterKind router);
DecoderSpec GroupedMixture(int32_t layers);

}  // namespace sluice
