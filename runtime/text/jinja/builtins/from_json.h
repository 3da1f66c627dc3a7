#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "runtime/text/jinja/value.h"

namespace sluice::jinja {

// Makes the variables of a template from an object, with keys in their order.
// Like transformers before rendering, it adds the variables that are always
// defined (tools, documents: none; add_generation_prompt: false) and gives each
// message that has a reasoning_content, thinking or reasoning the first two of
// these names. kInvalidArgument if it is no object or nested too deeply.
absl::StatusOr<Value> ContextFromJson(const nlohmann::ordered_json& variables);

}  // namespace sluice::jinja
