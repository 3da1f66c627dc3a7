#pragma once

#include <grpcpp/server_context.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/access.h"

namespace sluice {

// Says who may call what. Each handler of a service asks it before anything
// else; a null guard lets everybody do everything. Thread-safe.
class CallGuard {
 public:
  virtual ~CallGuard() = default;
  // Returns who shows this credential, "Bearer TOKEN" or "" for none, if it is
  // allowed `scope`. kUnauthenticated if there is no such credential or it has
  // expired; kPermissionDenied if it is not granted the scope. `peer` and
  // `what`, the method or route, are for the audit log.
  virtual absl::StatusOr<Caller> Check(absl::string_view credential,
                                       Scope scope, absl::string_view peer,
                                       absl::string_view what) = 0;
};

// A guard that grants kCluster, and nothing else, to whoever shows this token.
std::unique_ptr<CallGuard> MakeClusterGuard(absl::string_view token);

// Asks `guard`, which may be null, about a call of a method of AccessRules().
// `object` is what it is about, for the audit log: a job's id.
absl::StatusOr<Caller> CheckCall(CallGuard* guard,
                                 const grpc::CallbackServerContext& context,
                                 absl::string_view method,
                                 absl::string_view object = "");

// Whether two tokens are the same, in a time that does not depend on where they
// differ.
bool SameToken(absl::string_view a, absl::string_view b);

}  // namespace sluice
