#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/piece_reader.h"

namespace sluice {

// Somebody who may have pieces of a model's files. Thread-safe.
class PieceSource {
 public:
  virtual ~PieceSource() = default;
  // For messages: "the coordinator", "the worker at 10.0.0.2:7071".
  virtual std::string name() const = 0;

  // Returns the hashes of a file's pieces, which the caller checks.
  virtual absl::StatusOr<PieceListPtr> List(const PiecedFile& file) = 0;

  // Takes a piece, in consecutive parts; an error ends the call.
  using Take = absl::FunctionRef<absl::Status(
      uint64_t piece, std::span<const absl::string_view> parts)>;
  // Reads pieces [first, first + count) of a file, and calls `take` for each,
  // in order, on this thread. Returns take's error, or: kNotFound, the next
  // piece is not there; kFailedPrecondition or kUnimplemented, the source is of
  // no use; kUnavailable, kCancelled and others, it may be later.
  virtual absl::Status Read(const PiecedFile& file, uint64_t first,
                            uint64_t count, Take take) = 0;

  // Ends calls to which nothing came for this long, as if their connection had
  // broken. Zero: all calls, and those that follow.
  virtual void CancelStalled(absl::Duration silence) = 0;
};

}  // namespace sluice
