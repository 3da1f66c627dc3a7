#pragma once

#include "runtime/text/jinja/ast.h"

namespace sluice::jinja {

// Fills in every `unset_names`, and which special names macros use, by the
// rules of jinja2.idtracking: a scope reads top to bottom, and a name that it
// sets before it ever reads it, and that no outer scope knows, is its own from
// its start on.
void ResolveScopes(Template& parsed);

}  // namespace sluice::jinja
