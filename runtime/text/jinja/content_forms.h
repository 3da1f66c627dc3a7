#pragma once

#include <string>

#include "absl/container/flat_hash_set.h"
#include "runtime/text/jinja/ast.h"

namespace sluice::jinja {

// The forms of messages' contents that a template takes. See ChatTemplate.
struct ContentForms {
  absl::flat_hash_set<std::string> roles_with_parts;
  bool text_arguments = false;
};

// Finds the forms by rendering small conversations: nothing else tells how a
// template handles a list. A role whose conversation the template refuses has
// no parts.
ContentForms FindContentForms(const Template& parsed);

}  // namespace sluice::jinja
