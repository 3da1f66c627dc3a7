#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Returns `status` with `context` put before its message ("context: message");
// OK stays OK. The code and payloads are kept.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

// Does the same for the status of a value.
template <typename T>
absl::StatusOr<T> Annotate(absl::StatusOr<T> value, absl::string_view context) {
  if (value.ok()) return value;
  return Annotate(value.status(), context);
}

// A status of the code, of a message in parts as for absl::StrCat.
template <typename... Parts>
absl::Status InvalidArgument(const Parts&... message) {
  return absl::InvalidArgumentError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... message) {
  return absl::FailedPreconditionError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status NotFound(const Parts&... message) {
  return absl::NotFoundError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status ResourceExhausted(const Parts&... message) {
  return absl::ResourceExhaustedError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status Unavailable(const Parts&... message) {
  return absl::UnavailableError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status Unimplemented(const Parts&... message) {
  return absl::UnimplementedError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status DataLoss(const Parts&... message) {
  return absl::DataLossError(absl::StrCat(message...));
}
template <typename... Parts>
absl::Status Internal(const Parts&... message) {
  return absl::InternalError(absl::StrCat(message...));
}

}  // namespace sluice

// Returns from the enclosing function when `expr` (an absl::Status) is not OK.
#define SLUICE_RETURN_IF_ERROR(expr)                                     \
  do {                                                                   \
    if (absl::Status sluice_s = (expr); !sluice_s.ok()) return sluice_s; \
  } while (false)

#define SLUICE_CONCAT_INNER_(a, b) a##b
#define SLUICE_CONCAT_(a, b) SLUICE_CONCAT_INNER_(a, b)

// SLUICE_ASSIGN_OR_RETURN(auto x, F()): assigns the value of a StatusOr, or
// returns its status.
#define SLUICE_ASSIGN_OR_RETURN(lhs, expr) \
  SLUICE_ASSIGN_OR_RETURN_IMPL_(SLUICE_CONCAT_(sluice_or_, __LINE__), lhs, expr)
#define SLUICE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)
