#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/request.h"

namespace sluice {

// A request's parameters as the store keeps them: all of it but job, index,
// custom_id and prompt. JSON, without what has its default.
std::string EncodeRequestParams(const Request& request);

// kDataLoss if `params` is not what EncodeRequestParams gave.
absl::Status DecodeRequestParams(absl::string_view params, Request* request);

}  // namespace sluice
