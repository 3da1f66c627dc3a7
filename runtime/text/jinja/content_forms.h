#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "runtime/text/jinja/ast.h"

namespace sluice::jinja {

// In which forms a template takes what messages hold. See ChatTemplate.
struct ContentForms {
  absl::flat_hash_set<std::string> roles_with_parts;
  bool text_arguments = false;
};

// Finds them out by rendering small conversations: nothing else tells what a
// template does with a list. A role whose conversation the template refuses
// has no parts.
ContentForms FindContentForms(const Template& parsed);

}  // namespace sluice::jinja
