#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// The description of a model directory's files, for messages.
extern const char kModelDirMustHold[];

// Returns the reason why `path` is no model directory, and the remedy: it may
// be a file (GGUF, a shard, config.json), the name of a model on the Hugging
// Face Hub (which may lie in its cache), a folder of that cache, or nothing at
// all. REQUIRES: `path` is no directory, or has no config.json.
absl::Status NotAModelDir(const std::filesystem::path& path);

// Returns the directory's name in UTF-8; for a snapshot in the Hub's cache,
// which is named after a commit, the model's: "org/name".
std::string ModelName(const std::filesystem::path& model_dir);

// Returns the existing caches of the Hub's tools: HF_HUB_CACHE, HF_HOME/hub,
// else the one in the user's cache.
std::vector<std::filesystem::path> HubCaches();

}  // namespace sluice
