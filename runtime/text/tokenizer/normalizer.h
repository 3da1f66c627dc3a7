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
  // The limit of growth: repeated replacements of empty matches would fill any
  // memory.
  size_t max_bytes = size_t{1} << 22;
};

// Rewrites text before it is cut into words. `text` is and stays valid UTF-8.
// kResourceExhausted if it would grow beyond its bound. Thread-safe.
using Normalizer = absl::AnyInvocable<absl::Status(NormalizedText* text) const>;

// Reads tokenizer.json's "normalizer".
absl::StatusOr<Normalizer> CreateNormalizer(const JsonPart& part);

}  // namespace sluice
