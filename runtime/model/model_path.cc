#include "runtime/model/model_path.h"

#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "runtime/model/families/family.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Families that have their name in the names of their models, and are not
// supported.
constexpr const char* kOtherFamilies[] = {
    "qwen1", "gemma", "phi",      "falcon",    "olmo",
    "glm",   "mamba", "deepseek", "starcoder", "granite",
    "t5",    "bert",  "whisper",  "internlm",  "rwkv"};

// The family named in `id` that is not supported; "" if none is, or if the name
// has a supported one, too, as that of a distilled model has.
std::string OtherFamily(const std::string& id) {
  const std::string name = absl::AsciiStrToLower(id.substr(id.find('/') + 1));
  for (const char* supported :
       {"llama",       "mistral-", "qwen2",     "qwen3",     "distill-qwen",
        "opt-",        "phi-3",    "granite-3", "stablelm",  "starcoder2",
        "gemma-2",     "gemma-3-", "gemma-7b",  "olmo-2",    "olmo-3",
        "smollm3",     "glm-4-9b", "glm-4-32b", "command-r", "gpt2",
        "gpt-neox",    "gpt-j",    "pythia",    "falcon-7b", "falcon-40b",
        "falcon-180b", "olmoe",    "glm-4.5",   "glm-4.6",   "qwen1.5-moe"}) {
    if (absl::StrContains(name, supported)) return "";
  }
  for (const char* other : kOtherFamilies) {
    if (absl::StartsWith(name, other) ||
        absl::StrContains(name, absl::StrCat("-", other))) {
      return other;
    }
  }
  return "";
}

// The name of the first GGUF file in a directory; "" if there is none.
std::string GgufIn(const fs::path& dir) {
  std::string first;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::EndsWithIgnoreCase(name, ".gguf")) continue;
    if (first.empty() || name < first) first = name;
  }
  return first;
}

absl::Status NoSuchDirectory(const std::string& name) {
  return NotFound(name, ": no such directory; ", kModelDirMustHold);
}

// The error for a name that may be meant for the Hub's, but cannot be.
absl::Status NoHubName(const std::string& name) {
  const size_t at = name.find('@');
  const auto id = ParseHubName(name.substr(0, at));
  if (at == std::string::npos || !id || !absl::StrContains(id->id, '/')) {
    return NoSuchDirectory(name);
  }
  return InvalidArgument(
      name, ": no such directory, and what follows the @ is no revision of ",
      id->id, ": give a branch, a tag or a commit's 40 digits");
}

// Whether the snapshot's model is still being downloaded, or its download was
// cut.
bool HasPartialFiles(const fs::path& snapshot) {
  std::error_code error;
  const fs::path blobs = snapshot.parent_path().parent_path() / "blobs";
  for (const auto& entry : fs::directory_iterator(blobs, error)) {
    if (entry.path().extension() == ".incomplete") return true;
  }
  return false;
}

absl::Status OfFile(const fs::path& path) {
  const std::string name = path.string();
  const std::string extension =
      absl::AsciiStrToLower(path.extension().string());
  const fs::path parent =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto wrong = [](const auto&... parts) {
    return InvalidArgument(parts...);
  };
  if (extension == ".json" || extension == ".safetensors" ||
      extension == ".jinja") {
    return wrong(name,
                 ": a file; give the model's directory: ", parent.string());
  }
  if (extension == ".bin" || extension == ".pt" || extension == ".pth" ||
      extension == ".ckpt") {
    return wrong(name,
                 ": a PyTorch file, which Sluice does not read: save the "
                 "model with safe_serialization=True, and give its directory; ",
                 kModelDirMustHold);
  }
  return wrong(name, ": a file, not a directory; ", kModelDirMustHold);
}

}  // namespace

const char kModelDirMustHold[] =
    "a model directory holds config.json, tokenizer files and "
    "model.safetensors (or its shards and model.safetensors.index.json); "
    "a GGUF file is a model, too";

absl::StatusOr<fs::path> FindModel(const std::string& name, ModelFiles files) {
  std::error_code error;
  // A link to nothing is no name of the Hub's either.
  if (fs::exists(fs::symlink_status(name, error))) return fs::path(name);
  if (absl::EndsWithIgnoreCase(name, ".gguf")) {
    return NotFound(name, ": no such file; name a GGUF file that is there");
  }
  const std::optional<HubName> hub = ParseHubName(name);
  if (!hub) return NoHubName(name);
  const fs::path cache = HubCacheDir();
  if (!IsCached(cache, hub->id)) {
    if (!absl::StrContains(hub->id, '/')) return NoSuchDirectory(name);
    if (const std::string family = OtherFamily(hub->id); !family.empty()) {
      return Unimplemented(name, ": no such directory; by its name it is a ",
                           family,
                           " model, which Sluice does not run: it runs ",
                           absl::StrJoin(KnownModelTypes(), ", "), " models");
    }
  }
  SLUICE_ASSIGN_OR_RETURN(fs::path snapshot, FindSnapshot(cache, *hub));
  const absl::Status whole = CheckSnapshot(snapshot, *hub, files);
  if (whole.ok()) return snapshot;
  if (!absl::IsNotFound(whole)) return Annotate(whole, name);
  return NotFound(name, ": the snapshot in the Hugging Face cache (",
                  snapshot.string(), ") ", whole.message());
}

absl::Status CheckSnapshot(const fs::path& snapshot, const HubName& name,
                           ModelFiles files) {
  const absl::Status whole = CheckWhole(snapshot, files);
  if (!absl::IsNotFound(whole)) return whole;
  return NotFound(whole.message(),
                  HasPartialFiles(snapshot)
                      ? "; its download goes on, or was cut: go on with `"
                      : ": get the rest with `",
                  name.DownloadCommand(), "`");
}

std::vector<std::string> RunnableModelTypes() {
  std::vector<std::string> types;
  for (const absl::string_view type : KnownModelTypes()) {
    types.emplace_back(type.data(), type.size());
  }
  return types;
}

absl::Status NotAModelDir(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return NoSuchDirectory(path.string());
  if (!fs::is_directory(status)) return OfFile(path);
  if (const auto snapshot = AnySnapshot(path)) {
    return NotFound(path.string(), ": a folder of the Hugging Face cache; ",
                    "give the model's name, ", ModelName(*snapshot),
                    ", or a snapshot: ", snapshot->string());
  }
  const std::string missing =
      absl::StrCat((path / "config.json").string(), ": no such file; ");
  if (const std::string gguf = GgufIn(path); !gguf.empty()) {
    return NotFound(missing, "there is ", gguf,
                    "; to run it, give the file: ", (path / gguf).string());
  }
  return NotFound(missing, kModelDirMustHold);
}

}  // namespace sluice
