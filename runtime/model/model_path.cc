#include "runtime/model/model_path.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/model/families/family.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr char kCachePrefix[] = "models--";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FirstBytes(const fs::path& path, size_t count) {
  std::string bytes(count, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

// Whether `text` is two plain words and a slash, as "meta-llama/Llama-3.1-8B".
bool LooksLikeHubId(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() != 2) return false;
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > 96 || part[0] == '.') return false;
    for (const char c : part) {
      if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') {
        return false;
      }
    }
  }
  return true;
}

// Families that have their name in the names of their models, and are not
// supported.
constexpr const char* kOtherFamilies[] = {
    "qwen1", "gemma", "phi",     "mixtral",  "falcon",    "gpt-oss",
    "olmo",  "glm",   "mamba",   "deepseek", "starcoder", "granite",
    "t5",    "bert",  "whisper", "internlm", "rwkv"};

// The family named in `id` that is not supported; "" if none is, or if the name
// has a supported one, too, as that of a distilled model has.
std::string OtherFamily(const std::string& id) {
  const std::string name = absl::AsciiStrToLower(id.substr(id.find('/') + 1));
  for (const char* supported :
       {"llama",      "mistral-", "qwen2",     "qwen3",     "distill-qwen",
        "opt-",       "phi-3",    "granite-3", "stablelm",  "starcoder2",
        "gemma-2",    "gemma-3-", "gemma-7b",  "olmo-2",    "olmo-3",
        "smollm3",    "glm-4-9b", "glm-4-32b", "command-r", "gpt2",
        "gpt-neox",   "gpt-j",    "pythia",    "falcon-7b", "falcon-40b",
        "falcon-180b"}) {
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

// The snapshot of a folder "models--org--name" that refs/main names, or else
// the newest that has a config.json.
std::optional<fs::path> Snapshot(const fs::path& folder) {
  std::error_code error;
  const std::string main(
      absl::StripAsciiWhitespace(FirstBytes(folder / "refs" / "main", 64)));
  const fs::path named = folder / "snapshots" / main;
  if (!main.empty() && fs::exists(named / "config.json", error)) return named;
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  for (const auto& entry :
       fs::directory_iterator(folder / "snapshots", error)) {
    std::error_code ignored;
    if (!fs::exists(entry.path() / "config.json", ignored)) continue;
    const fs::file_time_type time = fs::last_write_time(entry.path(), ignored);
    if (newest && time <= newest_time) continue;
    newest = entry.path();
    newest_time = time;
  }
  return newest;
}

absl::Status NoSuchModel(const std::string& name) {
  const std::string message = absl::StrCat(name, ": no such directory; ");
  if (!LooksLikeHubId(name)) {
    return NotFound(message, kModelDirMustHold);
  }
  const std::string folder =
      absl::StrCat(kCachePrefix, absl::StrReplaceAll(name, {{"/", "--"}}));
  for (const fs::path& cache : HubCaches()) {
    if (const auto snapshot = Snapshot(cache / folder)) {
      return NotFound(message, "the Hugging Face model of that name is in ",
                      snapshot->string(), ": give that path");
    }
  }
  if (const std::string family = OtherFamily(name); !family.empty()) {
    return Unimplemented(message, "by its name it is a ", family,
                         " model, which Sluice does not run: it runs ",
                         absl::StrJoin(KnownModelTypes(), ", "), " models");
  }
  return NotFound(message,
                  "if this is a model of the Hugging Face Hub, get it with `hf "
                  "download ",
                  name, " --local-dir DIR`, and give DIR");
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
  if (extension == ".gguf" || FirstBytes(path, 4) == "GGUF") {
    return wrong(name,
                 ": a GGUF file, which Sluice does not read; give the "
                 "directory of the model that it was made from; ",
                 kModelDirMustHold);
  }
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
    "model.safetensors (or its shards and model.safetensors.index.json)";

absl::Status NotAModelDir(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return NoSuchModel(path.string());
  if (!fs::is_directory(status)) return OfFile(path);
  if (const auto snapshot = Snapshot(path)) {
    return NotFound(path.string(), ": a folder of the Hugging Face cache; ",
                    "give the snapshot: ", snapshot->string());
  }
  const std::string missing =
      absl::StrCat((path / "config.json").string(), ": no such file; ");
  if (const std::string gguf = GgufIn(path); !gguf.empty()) {
    return NotFound(missing, "there is ", gguf,
                    ", but Sluice reads no GGUF; give the directory of the "
                    "model that it was made from; ",
                    kModelDirMustHold);
  }
  return NotFound(missing, kModelDirMustHold);
}

std::string ModelName(const fs::path& model_dir) {
  fs::path path = fs::absolute(model_dir).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::path folder = path.parent_path().parent_path().filename();
  std::string name = path.filename().string();
  if (path.parent_path().filename() == "snapshots" &&
      absl::StartsWith(folder.string(), kCachePrefix)) {
    name = folder.string().substr(sizeof(kCachePrefix) - 1);
    // Names of organizations do not have two dashes.
    const size_t dashes = name.find("--");
    if (dashes != std::string::npos) name.replace(dashes, 2, "/");
  }
  return EscapeInvalidUtf8(name);
}

std::vector<fs::path> HubCaches() {
  std::vector<fs::path> caches;
  const auto add = [&](const std::string& root, const char* below) {
    std::error_code error;
    const fs::path path = fs::path(root) / below;
    if (!root.empty() && fs::is_directory(path, error)) caches.push_back(path);
  };
  add(Environment("HF_HUB_CACHE"), "");
  add(Environment("HF_HOME"), "hub");
  add(Environment("XDG_CACHE_HOME"), "huggingface/hub");
  add(Environment("HOME"), ".cache/huggingface/hub");
  return caches;
}

}  // namespace sluice
