#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// What a model directory holds, for messages.
extern const char kModelDirMustHold[];

// Why `path`, which is no model directory, is none, and what to give instead: a
// file (GGUF, a shard, config.json), the name of a model on the Hugging Face
// Hub (which may lie in its cache), a folder of that cache, or nothing at all.
// REQUIRES: `path` is no directory, or has no config.json.
absl::Status NotAModelDir(const std::filesystem::path& path);

// The directory's name; of a snapshot in the Hub's cache, which is named after
// a commit, that of the model: "org/name". UTF-8.
std::string ModelName(const std::filesystem::path& model_dir);

// Where the Hub's tools keep models, by the environment: HF_HUB_CACHE,
// HF_HOME/hub, else the user's cache. Those that are there.
std::vector<std::filesystem::path> HubCaches();

}  // namespace sluice
