#include "proto/call_guard.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/access_table.h"

namespace sluice {
namespace {

class ClusterGuard : public CallGuard {
 public:
  explicit ClusterGuard(absl::string_view token) : token_(token) {}

  absl::StatusOr<Caller> Check(absl::string_view credential, Scope scope,
                               absl::string_view, absl::string_view) override {
    if (!absl::ConsumePrefix(&credential, "Bearer ") ||
        !SameToken(credential, token_)) {
      return absl::UnauthenticatedError(
          "this is for machines of the cluster: start all with the same "
          "--cluster-token-file");
    }
    if (scope != Scope::kCluster) {
      return absl::PermissionDeniedError("the cluster's token is for machines");
    }
    return Caller{.name = "cluster", .cluster = true};
  }

 private:
  const std::string token_;
};

}  // namespace

std::unique_ptr<CallGuard> MakeClusterGuard(absl::string_view token) {
  return std::make_unique<ClusterGuard>(token);
}

bool SameToken(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

absl::StatusOr<Caller> CheckCall(CallGuard* guard,
                                 const grpc::CallbackServerContext& context,
                                 absl::string_view method,
                                 absl::string_view object) {
  if (guard == nullptr) return Caller::Trusted();
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range("authorization");
  absl::string_view credential;
  // Of several, which other programs could read in another way, none counts.
  if (begin != end && std::next(begin) == end) {
    credential = absl::string_view(begin->second.data(), begin->second.size());
  }
  return guard->Check(
      credential, ScopeOf(method), context.peer(),
      object.empty() ? std::string(method) : absl::StrCat(method, " ", object));
}

}  // namespace sluice
