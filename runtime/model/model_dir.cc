#include "runtime/model/model_dir.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/content_hash.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/model/checkpoint/gguf/gguf_config.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/weight_remarks.h"
#include "runtime/model/codes_json.h"
#include "runtime/model/json_file.h"
#include "runtime/model/model_path.h"
#include "runtime/model/rotary.h"

namespace sluice {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDir>> ModelDir::Open(
    const std::filesystem::path& path, Defaults which) {
  std::error_code error;
  if (IsGgufFile(path)) return OpenGguf(path);
  if (!std::filesystem::is_directory(path, error)) return NotAModelDir(path);
  std::unique_ptr<ModelDir> dir(new ModelDir());
  dir->path_ = path;

  const std::filesystem::path config_path = path / "config.json";
  absl::StatusOr<std::string> config =
      ReadSmallFile(config_path, kMaxConfigBytes);
  if (absl::IsNotFound(config.status())) return NotAModelDir(path);
  SLUICE_RETURN_IF_ERROR(config.status());
  SLUICE_ASSIGN_OR_RETURN(
      dir->spec_, Annotate(ParseDecoderSpec(*config), config_path.string()));
  SLUICE_ASSIGN_OR_RETURN(
      dir->quantization_,
      Annotate(ParseQuantizationText(*config), config_path.string()));
  dir->config_ = *std::move(config);

  const std::filesystem::path generation_path = path / "generation_config.json";
  absl::StatusOr<nlohmann::json> generation = ReadJsonObject(generation_path);
  if (generation.ok()) {
    absl::StatusOr<GenerationDefaults> defaults =
        ParseGenerationDefaults(*generation);
    if (!defaults.ok()) {
      return Annotate(defaults.status(), generation_path.string());
    }
    dir->generation_ = *std::move(defaults);
    if (which == Defaults::kOnlyEnd) {
      GenerationDefaults only;
      only.eos_token_ids = std::move(dir->generation_.eos_token_ids);
      dir->generation_ = std::move(only);
    }
  } else if (!absl::IsNotFound(generation.status())) {
    return generation.status();
  }
  if (dir->generation_.eos_token_ids.empty()) {
    dir->generation_.eos_token_ids = dir->spec_.eos_token_ids;
  }

  // Only requests for embeddings need it.
  dir->embedding_ = ReadEmbeddingConfig(path, dir->spec_.vocab_size);

  // OpenTensors reports unreadable weights.
  const absl::StatusOr<std::unique_ptr<SafetensorsSource>> tensors =
      dir->OpenTensors();
  if (tensors.ok()) {
    SLUICE_ASSIGN_OR_RETURN(dir->spec_, dir->SpecOf(**tensors));
    (*tensors)->SetCodes(&dir->spec_);
    AddCodes(dir->spec_, &dir->config_);
  }
  return dir;
}

absl::StatusOr<std::unique_ptr<ModelDir>> ModelDir::OpenGguf(
    const std::filesystem::path& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> tensors,
                          SafetensorsSource::Open(path));
  std::unique_ptr<ModelDir> model(new ModelDir());
  model->path_ = path;
  SLUICE_ASSIGN_OR_RETURN(model->config_,
                          Annotate(ConfigOfGguf(*tensors), path.string()));
  SLUICE_ASSIGN_OR_RETURN(
      model->spec_, Annotate(ParseDecoderSpec(model->config_), path.string()));
  tensors->SetCodes(&model->spec_);
  AddCodes(model->spec_, &model->config_);
  model->generation_.eos_token_ids = model->spec_.eos_token_ids;
  return model;
}

absl::StatusOr<DecoderSpec> ModelDir::SpecOf(
    const SafetensorsSource& tensors) const {
  SLUICE_ASSIGN_OR_RETURN(DecoderSpec spec, ParseDecoderSpec(config_));
  return tensors.HeadAsFound(std::move(spec));
}

absl::StatusOr<std::string> ModelDir::Fingerprint() const {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> tensors,
                          SafetensorsSource::Open(path_));
  return tensors->Fingerprint(config_);
}

std::string ModelDir::MissingHead() const {
  if (!spec_.headless) return "";
  DecoderSpec untied = spec_;
  untied.tied_embeddings = false;
  std::string name;
  for (const TensorRef& ref : HeadTensors(untied)) {
    if (ref.role == TensorRole::kHead) name = ref.name;
  }
  return name;
}

std::vector<std::string> ModelDir::Remarks() const {
  const absl::StatusOr<std::unique_ptr<SafetensorsSource>> tensors =
      OpenTensors();
  if (!tensors.ok()) return {};
  std::vector<std::string> remarks = WeightRemarks(spec_, **tensors);
  if (spec_.headless) {
    remarks.push_back(absl::StrCat(MissingHead(),
                                   " is not in the model's files, so that it "
                                   "makes embeddings only"));
  }
  return remarks;
}

std::string ModelDir::DescribePositions() const {
  return sluice::DescribePositions(spec_, config_);
}

std::string ModelDir::DummyFingerprint() const {
  return absl::StrCat("dummy-", HexHash(config_));
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> ModelDir::OpenTensors(
    const KnownPieces& known) const {
  return SafetensorsSource::Open(path_, known, quantization_);
}

}  // namespace sluice
