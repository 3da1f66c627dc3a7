#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/model_content.h"

namespace sluice {

// A text file that says which copy of a model unfinished jobs began with:
//
//   sluice model 1
//   SIZE HASH NAME     for each file
//   end CHECKSUM       of all lines before
//
// Replaces the file atomically. Names are free of line breaks (see ContentOf).
absl::Status WriteModelRecord(const std::filesystem::path& path,
                              const ModelContent& content);
// Reads the file. kNotFound: there is none. kDataLoss: it is damaged.
absl::StatusOr<ModelContent> ReadModelRecord(const std::filesystem::path& path);

}  // namespace sluice
