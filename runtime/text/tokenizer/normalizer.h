#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

struct NormalizedText {
  std::string text;
  size_t first_bytes = 0;  // as in Piece
  // What it may grow to: a few replacements of nothing by something would fill
  // any memory.
  size_t max_bytes = size_t{1} << 22;
};

// Rewrites text before it is cut into words. Immutable, thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `text` is valid UTF-8 and stays it. kResourceExhausted if it would grow
  // beyond its bound.
  virtual absl::Status Apply(NormalizedText* text) const = 0;

  // From tokenizer.json's "normalizer".
  static absl::StatusOr<std::unique_ptr<Normalizer>> Create(
      const JsonPart& part);
};

}  // namespace sluice
