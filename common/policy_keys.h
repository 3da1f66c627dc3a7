#pragma once

#include <set>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/policy.h"

namespace sluice {

// What a plan does about a key of the policy.
enum class PlanRole {
  kChosen,  // a plan has a value for it, which the user may fix
  kShares,  // a plan has a value for it; a user who gives one plans nothing
  kAside,   // plans are made for its default; a policy's value stays
};

// A key of UpdatePolicy. All lists of keys are made of this table.
struct PolicyKey {
  absl::string_view name;    // "w" stands for "w.device" and so on, too
  absl::string_view values;  // "int8, int4 or none", for help
  PlanRole plan;
  bool changes_answers;
  // Sets the key, whose whole name may be "w.device"; kInvalidArgument names
  // it.
  absl::Status (*set)(absl::string_view key, absl::string_view value,
                      Policy* policy);
  // Returns the value, for people and as `set` takes it.
  std::string (*get)(const Policy& policy);
  // Gives `to` exactly the value of `from`.
  void (*copy)(const Policy& from, Policy* to);
};

// In the order in which PolicyText has them.
std::span<const PolicyKey> PolicyKeys();

// Returns the key of that name ("w" for "w.disk", too); null if there is none.
const PolicyKey* FindPolicyKey(absl::string_view name);

// Does UpdatePolicy, and adds the keys that `text` names ("w" for "w.disk").
absl::Status UpdatePolicy(absl::string_view text, Policy* policy,
                          std::set<absl::string_view>* keys);

// Joins the names of the keys that `which` is true for: "w, c and h" for ", "
// and " and ".
std::string PolicyKeyNames(absl::FunctionRef<bool(const PolicyKey&)> which,
                           absl::string_view separator,
                           absl::string_view last_separator);

// "compress-weights=none sparsity=1 ...": the values of these keys, likewise.
std::string PolicyValues(const Policy& policy,
                         absl::FunctionRef<bool(const PolicyKey&)> which,
                         absl::string_view separator = " ",
                         absl::string_view last_separator = " ");

}  // namespace sluice
