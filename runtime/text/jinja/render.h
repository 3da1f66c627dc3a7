#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/services.h"

namespace sluice::jinja {

// Renders once; see ChatTemplate::Render for variables and errors. `limits`
// grow with the size of the variables.
absl::StatusOr<std::string> RenderTemplate(
    const Template& parsed, const nlohmann::ordered_json& variables,
    absl::CivilSecond now, Limits limits = {});

}  // namespace sluice::jinja
