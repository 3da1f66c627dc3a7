#include "runtime/model/model_dir.h"

#include <xxhash.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/json_file.h"
#include "runtime/model/model_path.h"
#include "runtime/model/safetensors_source.h"

namespace sluice {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    const nlohmann::json& config) {
  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  ConfigReader reader(config);
  GenerationDefaults defaults;
  const auto number = [&](const char* key, double min, double max) {
    const std::optional<double> value = reader.OptionalNumber(key, min, max);
    return value ? std::optional<float>(static_cast<float>(*value))
                 : std::nullopt;
  };
  if (reader.Has("do_sample")) {
    defaults.do_sample = reader.Bool("do_sample", false);
  }
  defaults.temperature = number("temperature", 0, 1e6);
  defaults.top_k = reader.OptionalInt("top_k", 0, kMaxInt);
  defaults.top_p = number("top_p", 0, 1);
  defaults.min_p = number("min_p", 0, 1);
  defaults.repetition_penalty = number("repetition_penalty", 1e-6, 1e6);
  defaults.max_new_tokens = reader.OptionalInt("max_new_tokens", 0, kMaxInt);
  defaults.eos_token_ids = reader.OptionalInts("eos_token_id", -1, kMaxInt)
                               .value_or(std::vector<int32_t>());
  std::erase(defaults.eos_token_ids, -1);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return defaults;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDir>> ModelDir::Open(
    const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return NotAModelDir(path);
  std::unique_ptr<ModelDir> dir(new ModelDir());
  dir->path_ = path;

  const std::filesystem::path config_path = path / "config.json";
  absl::StatusOr<std::string> config =
      ReadSmallFile(config_path, kMaxConfigBytes);
  if (absl::IsNotFound(config.status())) return NotAModelDir(path);
  SLUICE_RETURN_IF_ERROR(config.status());
  absl::StatusOr<DecoderSpec> spec = ParseDecoderSpec(*config);
  if (!spec.ok()) return Annotate(spec.status(), config_path.string());
  dir->config_ = *std::move(config);
  dir->spec_ = *std::move(spec);

  const std::filesystem::path generation_path = path / "generation_config.json";
  absl::StatusOr<nlohmann::json> generation = ReadJsonObject(generation_path);
  if (generation.ok()) {
    absl::StatusOr<GenerationDefaults> defaults =
        ParseGenerationDefaults(*generation);
    if (!defaults.ok()) {
      return Annotate(defaults.status(), generation_path.string());
    }
    dir->generation_ = *std::move(defaults);
  } else if (!absl::IsNotFound(generation.status())) {
    return generation.status();
  }
  if (dir->generation_.eos_token_ids.empty()) {
    dir->generation_.eos_token_ids = dir->spec_.eos_token_ids;
  }

  // As transformers does: a checkpoint that has both of a tied pair, and they
  // differ, means them both. Unreadable weights are OpenTensors' to report.
  if (dir->spec_.tied_embeddings) {
    const absl::StatusOr<std::unique_ptr<SafetensorsSource>> tensors =
        SafetensorsSource::Open(path);
    const std::string embedding = EmbeddingTensors(dir->spec_)[0].name;
    if (tensors.ok() && (*tensors)->Has(embedding) &&
        (*tensors)->Has("lm_head.weight")) {
      SLUICE_ASSIGN_OR_RETURN(
          dir->spec_.tied_embeddings,
          (*tensors)->SameData(embedding, "lm_head.weight"));
    }
  }
  return dir;
}

absl::StatusOr<std::string> ModelDir::Fingerprint() const {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> tensors,
                          SafetensorsSource::Open(path_));
  return tensors->Fingerprint(config_);
}

std::string ModelDir::DummyFingerprint() const {
  const XXH128_hash_t hash = XXH3_128bits(config_.data(), config_.size());
  return absl::StrCat("dummy-", absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

absl::StatusOr<std::unique_ptr<TensorSource>> ModelDir::OpenTensors() const {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsSource> tensors,
                          SafetensorsSource::Open(path_));
  return std::unique_ptr<TensorSource>(std::move(tensors));
}

}  // namespace sluice
