#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Returns digests of a model directory's files that answers depend on, by name:
// of each existing text file (configuration, tokenizer, chat template), and,
// under "weights", unless they are `dummy`, of names, shapes and values. For
// weights of more than 1 GiB the values are a sample, spread over every file,
// and the times of the files' last changes, so that little is read of them; a
// change that puts a file's time back may go unseen. kNotFound without weights,
// kDataLoss if a file cannot be read.
absl::StatusOr<std::map<std::string, std::string>> ModelDigests(
    const ModelDir& model, bool dummy);

}  // namespace sluice
