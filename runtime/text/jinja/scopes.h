#pragma once

#include "runtime/text/jinja/ast.h"

namespace sluice::jinja {

// Fills in every `unset_names`, and the special names that macros use, by the
// rules of jinja2.idtracking: a scope is read top to bottom, and a name that it
// sets before reading it, and that no outer scope has, is its own from its
// start.
void ResolveScopes(Template& parsed);

}  // namespace sluice::jinja
