#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/access.h"

namespace sluice {

struct AccessRule {
  absl::string_view method;  // "sluice.v1.JobService/GetJob"
  Scope scope;
};

// What a caller needs for each method of our services, all of them. gRPC's own
// services, of health and of reflection, are open.
absl::Span<const AccessRule> AccessRules();

// The scope of one method; without a rule, that which is granted least.
Scope ScopeOf(absl::string_view method);

}  // namespace sluice
