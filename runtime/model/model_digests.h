#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/model_dir.h"

namespace sluice {

// Digests of what answers depend on in a model directory, by file name: of each
// text file (configuration, tokenizer, chat template) that is there, and, under
// "weights", unless they are `dummy`, of names, shapes and a sample of the
// values. The sample is spread over every file, so that two models trained
// apart differ; that a few values were changed it may not see. Reads some
// megabytes. kNotFound without weights, kDataLoss if a file cannot be read.
absl::StatusOr<std::map<std::string, std::string>> ModelDigests(
    const ModelDir& model, bool dummy);

}  // namespace sluice
