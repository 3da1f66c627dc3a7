#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"

namespace sluice {

struct NormalizedText {
  std::string text;
  size_t first_bytes = 0;  // as in Piece
  // What it may grow to: a few replacements of nothing by something would fill
  // any memory.
  size_t max_bytes = size_t{1} << 22;
};

// Rewrites text before it is cut into words. `text` is valid UTF-8 and stays
// it. kResourceExhausted if it would grow beyond its bound. Thread-safe.
using Normalizer = absl::AnyInvocable<absl::Status(NormalizedText* text) const>;

// From tokenizer.json's "normalizer".
absl::StatusOr<Normalizer> CreateNormalizer(const JsonPart& part);

}  // namespace sluice
