#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/request.h"

namespace sluice {

// Says what a field of vLLM's, OpenAI's or SGLang's API asks for that Sluice
// does not do: nullopt if there is no such field; "" if with this value it asks
// for nothing, as null, an empty list or the API's default; else the rest of a
// message that begins with the field's name.
std::optional<std::string> ForeignFieldAsks(
    absl::string_view name, Endpoint endpoint,
    const nlohmann::ordered_json& value);

}  // namespace sluice
