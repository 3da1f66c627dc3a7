#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Calls `visit` for each control group that a process is in where `controller`
// ("cpu", "memory") is limited, and for the groups above it, which limit the
// process, too. `groups` is the text of /proc/self/cgroup; `path` begins with a
// slash, below the hierarchy's root; `first_version` tells cgroups v1 from v2.
void ForEachControlGroup(
    absl::string_view groups, absl::string_view controller,
    absl::FunctionRef<void(const std::string& path, bool first_version)> visit);

}  // namespace sluice
