#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/hub_cache.h"

namespace sluice {

// The description of a model directory's files, for messages.
extern const char kModelDirMustHold[];

// Returns the directory, or the GGUF file, of the model that a user named, for
// all that take one: `name` itself, if there is such a path, or else the
// snapshot of "org/name" or "org/name@revision" in HubCacheDir(), of which
// `files` must be there. Nothing is ever downloaded. kNotFound says what is
// missing and the command that gets it, kUnimplemented that Sluice runs no
// models of that name, kInvalidArgument that a revision has no valid name.
absl::StatusOr<std::filesystem::path> FindModel(const std::string& name,
                                                ModelFiles files);

// Does CheckWhole of a snapshot; kNotFound ends with the command that gets what
// is missing.
absl::Status CheckSnapshot(const std::filesystem::path& snapshot,
                           const HubName& name, ModelFiles files);

// Returns the values of config.json's model_type that run, in order.
std::vector<std::string> RunnableModelTypes();

// Returns the reason why `path` is no model directory, and the remedy: it may
// be a file (a shard, config.json), a model's folder in the Hugging Face
// cache, or nothing at all. REQUIRES: `path` is no directory, or has no
// config.json.
absl::Status NotAModelDir(const std::filesystem::path& path);

}  // namespace sluice
