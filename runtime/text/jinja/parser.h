#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/jinja/ast.h"

namespace sluice::jinja {

// Parses a template, with the grammar of jinja2.parser plus loop controls and
// Hugging Face's generation blocks. kInvalidArgument with line and reason;
// kUnimplemented names a construct of Jinja that is not supported (inheritance,
// includes, some filters). Nesting is bounded.
absl::StatusOr<std::unique_ptr<const Template>> ParseTemplate(
    absl::string_view source);

}  // namespace sluice::jinja
