#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/request.h"

namespace sluice {

// Encodes a request's parameters for the store: all members but job, index,
// custom_id and prompt, as JSON without those that have their default.
std::string EncodeRequestParams(const Request& request);

// Decodes them; kDataLoss if `params` did not come from EncodeRequestParams.
absl::Status DecodeRequestParams(absl::string_view params, Request* request);

}  // namespace sluice
