#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/embedding_config.h"
#include "runtime/model/generation_config.h"

namespace sluice {

// A model directory in Hugging Face's layout, or a GGUF file, opened for
// reading. Weights are not read until asked for. Immutable, thread-safe.
class ModelDir {
 public:
  // The part of generation_config.json to use: all, or only the ends of a text.
  enum class Defaults { kAll, kOnlyEnd };

  // Errors name the file, its problem, and the files of a model directory.
  // `path` may be a GGUF file (of several parts, any), or a directory without
  // weights (the coordinator's), which then
  // fails only in tensors().
  static absl::StatusOr<std::unique_ptr<ModelDir>> Open(
      const std::filesystem::path& path, Defaults which = Defaults::kAll);

  const std::filesystem::path& path() const { return path_; }
  // The text of config.json; of a GGUF file, what its metadata says as one.
  const std::string& config() const { return config_; }
  // Whether the head is tied, or missing, is as it was when the directory was
  // opened.
  const DecoderSpec& spec() const { return spec_; }
  // Returns the description that goes with these tensors, of this directory.
  absl::StatusOr<DecoderSpec> SpecOf(const SafetensorsSource& tensors) const;
  // What config.json says of quantized weights.
  const QuantizationConfig& quantization() const { return quantization_; }
  // Returns DescribePositions of rotary.h.
  std::string DescribePositions() const;
  // The eos_token_ids are generation_config.json's, or else config.json's.
  const GenerationDefaults& generation_defaults() const { return generation_; }

  // What the model's texts become as embeddings, or, as an error, why they
  // can't be made of it: see ReadEmbeddingConfig.
  const absl::StatusOr<EmbeddingConfig>& embedding() const {
    return embedding_;
  }

  // Hex digest over config.json and the headers of all weight files (names,
  // dtypes, shapes, offsets): equal on machines that hold the same model. Reads
  // headers only. kNotFound if there are no weights.
  absl::StatusOr<std::string> Fingerprint() const;

  // The fingerprint of config.json, for random weights; unlike any model's.
  std::string DummyFingerprint() const;

  // Returns the tensor that a headless model lacks, or "".
  std::string MissingHead() const;

  // Returns WeightRemarks of weight_remarks.h, and that a head is missing; none
  // without weights.
  std::vector<std::string> Remarks() const;

  // Opens the safetensors files: model.safetensors, or the shards of
  // model.safetensors.index.json. Each header is checked once; data is
  // range-read per tensor, and checked if its file's pieces are `known`.
  absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenTensors(
      const KnownPieces& known = {}) const;

 private:
  ModelDir() = default;
  static absl::StatusOr<std::unique_ptr<ModelDir>> OpenGguf(
      const std::filesystem::path& path);
  std::filesystem::path path_;
  std::string config_;  // text of config.json
  QuantizationConfig quantization_;
  DecoderSpec spec_;
  GenerationDefaults generation_;
  absl::StatusOr<EmbeddingConfig> embedding_ = EmbeddingConfig();
};

}  // namespace sluice
