#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The local cache of the Hugging Face Hub's tools (huggingface_hub, "Understand
// caching"), which is only read here:
//
//   models--org--name/refs/main               the commit that main is
//   models--org--name/snapshots/COMMIT/FILE   links into blobs/

// A model of the Hub: "org/name", or "name" for some old ones, and a branch, a
// tag or a commit of it; "" means "main".
struct HubName {
  std::string id;
  std::string revision;

  std::string ToString() const;         // "org/name@revision"
  std::string DownloadCommand() const;  // "hf download org/name ..."
};

// Returns what "org/name" or "org/name@revision" names; nothing for a text that
// has not this form. Neither part of what is returned can lead out of a folder.
std::optional<HubName> ParseHubName(absl::string_view text);

// Returns where the cache is, as huggingface_hub has it: HF_HUB_CACHE, or else
// HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or
// ~/.cache/huggingface/hub. It may not exist; "" if none of these is set.
std::filesystem::path HubCacheDir();

// Whether a cache has a folder for this model.
bool IsCached(const std::filesystem::path& cache, const std::string& id);

// Returns the snapshot that `name` has in a cache. kNotFound names the model,
// what is missing and the command that gets it. What is in the snapshot is not
// looked at.
absl::StatusOr<std::filesystem::path> FindSnapshot(
    const std::filesystem::path& cache, const HubName& name);

// Returns the snapshot of a folder "models--org--name" that refs/main names, or
// else the newest that has a config.json.
std::optional<std::filesystem::path> AnySnapshot(
    const std::filesystem::path& folder);

// What a model is needed for decides which of its files must be there.
enum class ModelFiles {
  kAnything,      // it is enough that there is a directory
  kConfig,        // weights are not read
  kWeightsIfAny,  // no weights are fine, a part of them is not
  kWeights,
};

// Checks that a model directory, which may be a snapshot, was downloaded whole:
// config.json and the weights that `files` asks for are there, and no link
// leads nowhere. Weights in another format than safetensors are not missed, nor
// is a config.json where there is a GGUF. kNotFound says, without a subject,
// what is missing: "has no config.json".
absl::Status CheckWhole(const std::filesystem::path& dir, ModelFiles files);

// A model's snapshot in a cache.
struct CachedSnapshot {
  std::string id;                      // "org/name"
  std::string commit;                  // the snapshot's name
  std::vector<std::string> revisions;  // that refs/ has for it, in order
  std::filesystem::path path;
};

// Lists a cache's models in order of name, and the snapshots of each in order
// of commit. A model without any has one entry without a commit, whose path is
// the model's folder. Empty if there is no cache.
std::vector<CachedSnapshot> ListSnapshots(const std::filesystem::path& cache);

// Returns the directory's name in UTF-8; for a snapshot in the Hub's cache,
// which is named after a commit, the model's: "org/name".
std::string ModelName(const std::filesystem::path& model_dir);

// Returns the first 12 digits of the commit that a snapshot is named after; ""
// for any other directory.
std::string ModelCommit(const std::filesystem::path& model_dir);

}  // namespace sluice
