#include "server/local_models.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/weight_remarks.h"
#include "runtime/model/hub_cache.h"
#include "runtime/model/json_file.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/model_path.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The bytes of a directory's files, each once, however many links lead to it.
uint64_t BytesOf(const fs::path& dir) {
  uint64_t bytes = 0;
  std::set<fs::path> seen;
  std::error_code error;
  for (fs::recursive_directory_iterator it(dir, error), end; it != end;
       it.increment(error)) {
    if (error) break;
    std::error_code ignored;
    const fs::path file = fs::canonical(it->path(), ignored);
    if (ignored || !fs::is_regular_file(file, ignored)) continue;
    const uintmax_t size = fs::file_size(file, ignored);
    if (!ignored && seen.insert(file).second) bytes += size;
  }
  return bytes;
}

std::string TypeOf(const fs::path& dir) {
  const absl::StatusOr<nlohmann::json> config =
      ReadJsonObject(dir / "config.json");
  if (!config.ok()) return "";
  const auto type = config->find("model_type");
  if (type == config->end() || !type->is_string()) return "";
  return type->get<std::string>().substr(0, 60);
}

// Fills in what is known of a model of which all files are there; the first
// thing that is wrong with it.
absl::Status Examine(const fs::path& dir, LocalModel* model) {
  const absl::StatusOr<std::unique_ptr<SafetensorsSource>> headers =
      SafetensorsSource::Open(dir);
  if (headers.ok()) {
    model->parameters = (*headers)->Parameters();
    model->weight_bytes = (*headers)->BytesByType();
    if ((*headers)->gguf() != nullptr) {
      model->bytes = 0;
      for (const auto& file : (*headers)->Files()) model->bytes += file.bytes;
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelDir> opened,
                          ModelDir::Open(dir));
  const absl::StatusOr<std::unique_ptr<SafetensorsSource>> tensors =
      opened->OpenTensors();
  const DecoderSpec& spec = opened->spec();
  if (tensors.ok()) model->weight_bytes = (*tensors)->BytesByType(&spec);
  model->model_type = spec.model_type;
  const absl::string_view dtype = DTypeName(spec.native_dtype);
  model->dtype = std::string(dtype.data(), dtype.size());
  model->quantization = opened->quantization().Description();
  model->layers = spec.num_layers;
  model->positions = spec.max_positions;
  model->vocabulary = spec.vocab_size;
  SLUICE_RETURN_IF_ERROR(tensors.status());
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, **tensors));
  SLUICE_RETURN_IF_ERROR(Tokenizer::Load(dir).status());
  model->remarks = opened->Remarks();
  if (const auto& keys = opened->generation_defaults().unsupported;
      !keys.empty()) {
    model->remarks.push_back(
        absl::StrCat("it runs with --generation-config none only, as "
                     "generation_config.json asks for ",
                     absl::StrJoin(keys, ", ")));
  }
  if (const auto chat = ChatTemplate::Load(dir);
      absl::IsNotFound(chat.status())) {
    model->remarks.push_back(
        "it has no chat template, so requests with \"messages\" are refused");
  } else if (!chat.ok()) {
    model->remarks.push_back(absl::StrCat(
        "requests with \"messages\" are refused, as its chat template cannot "
        "be used: ",
        chat.status().message()));
  }
  return absl::OkStatus();
}

// Errors stand beside the model's name, so that they need no paths.
std::string Within(const fs::path& dir, absl::string_view message) {
  return absl::StrReplaceAll(message, {{absl::StrCat(dir.string(), "/"), ""},
                                       {absl::StrCat(dir.string(), ": "), ""}});
}

LocalModel ExamineDir(const fs::path& dir, const absl::Status& whole) {
  LocalModel model;
  model.name = ModelName(dir);
  model.dir = EscapeInvalidUtf8(dir.string());
  model.model_type = EscapeInvalidUtf8(TypeOf(dir));
  model.bytes = BytesOf(dir);
  const absl::Status status =
      whole.ok() ? Examine(dir, &model)
                 : absl::NotFoundError(absl::StrCat("it ", whole.message()));
  model.why_not = EscapeInvalidUtf8(Within(dir, status.message()));
  for (std::string& remark : model.remarks) {
    remark = EscapeInvalidUtf8(Within(dir, remark));
  }
  return model;
}

LocalModel ExamineSnapshot(const CachedSnapshot& snapshot) {
  HubName name{.id = snapshot.id};
  const auto& revisions = snapshot.revisions;
  const bool is_main =
      std::count(revisions.begin(), revisions.end(), "main") > 0;
  if (!is_main && !snapshot.commit.empty()) {
    name.revision = revisions.empty() ? snapshot.commit : revisions.front();
  }
  LocalModel model = ExamineDir(
      snapshot.path,
      snapshot.commit.empty()
          ? NotFound("has no snapshot: get it with `", name.DownloadCommand(),
                     "`")
          : CheckSnapshot(snapshot.path, name, ModelFiles::kWeights));
  model.name = snapshot.id;
  model.commit = snapshot.commit;
  model.revisions = revisions;
  return model;
}

}  // namespace

absl::StatusOr<LocalModel> ExamineModel(const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(const fs::path dir,
                          FindModel(name, ModelFiles::kAnything));
  std::error_code error;
  if (IsGgufFile(dir)) return ExamineDir(dir, absl::OkStatus());
  if (!fs::is_directory(dir, error)) return NotAModelDir(dir);
  for (const CachedSnapshot& snapshot : ListSnapshots(HubCacheDir())) {
    if (snapshot.commit.empty() || snapshot.path != dir) continue;
    return ExamineSnapshot(snapshot);
  }
  if (!fs::exists(dir / "config.json", error)) return NotAModelDir(dir);
  return ExamineDir(dir, absl::OkStatus());
}

LocalModels ExamineCache() {
  LocalModels all;
  all.model_types = RunnableModelTypes();
  const fs::path cache = HubCacheDir();
  all.cache = EscapeInvalidUtf8(cache.string());
  for (const CachedSnapshot& snapshot : ListSnapshots(cache)) {
    all.models.push_back(ExamineSnapshot(snapshot));
  }
  return all;
}

}  // namespace sluice
