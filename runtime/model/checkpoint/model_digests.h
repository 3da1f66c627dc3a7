#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Digests of what answers depend on in a model directory, by file name: of each
// text file (configuration, tokenizer, chat template) that is there, and, under
// "weights", unless they are `dummy`, of names, shapes and values. Of weights
// of more than 1 GiB these are a sample, spread over every file, and the times
// of the files' last changes, so that little is read of them; a change that
// puts a file's time back may go unseen. kNotFound without weights, kDataLoss
// if a file cannot be read.
absl::StatusOr<std::map<std::string, std::string>> ModelDigests(
    const ModelDir& model, bool dummy);

}  // namespace sluice
