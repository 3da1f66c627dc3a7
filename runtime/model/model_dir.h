#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/tensor_source.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/generation_config.h"

namespace sluice {

// A model directory in Hugging Face's layout, opened for reading. Weights are
// not touched until asked for. Immutable, thread-safe.
class ModelDir {
 public:
  // What is taken from generation_config.json: all, or only what ends a text.
  enum class Defaults { kAll, kOnlyEnd };

  // Errors name the file and what is wrong with it, and what a model directory
  // must hold. `path` may be a directory without weights (the coordinator's),
  // which then fails only in tensors().
  static absl::StatusOr<std::unique_ptr<ModelDir>> Open(
      const std::filesystem::path& path, Defaults which = Defaults::kAll);

  const std::filesystem::path& path() const { return path_; }
  // The text of config.json.
  const std::string& config() const { return config_; }
  const DecoderSpec& spec() const { return spec_; }
  // See positions.h.
  std::string DescribePositions() const;
  // Its eos_token_ids are generation_config.json's, or else config.json's.
  const GenerationDefaults& generation_defaults() const { return generation_; }

  // Hex digest over config.json and the headers of all weight files (names,
  // dtypes, shapes, offsets): equal on machines that hold the same model. Reads
  // headers only. kNotFound if there are no weights.
  absl::StatusOr<std::string> Fingerprint() const;

  // Of config.json alone, for random weights; no other model has it.
  std::string DummyFingerprint() const;

  // Opens the safetensors files: model.safetensors, or the shards of
  // model.safetensors.index.json. Each header is checked once; data is
  // range-read (pread) per tensor.
  absl::StatusOr<std::unique_ptr<TensorSource>> OpenTensors() const;

 private:
  ModelDir() = default;
  std::filesystem::path path_;
  std::string config_;  // text of config.json
  DecoderSpec spec_;
  GenerationDefaults generation_;
};

}  // namespace sluice
