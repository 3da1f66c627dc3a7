#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

// Cuts text into words. Immutable, thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces each piece that is still text by its words.
  virtual absl::Status Apply(Pieces* pieces) const = 0;

  // From tokenizer.json's "pre_tokenizer". With `bytes_at_end`, a ByteLevel
  // that comes last leaves bytes as they are, for a model that reads bytes, and
  // `*bytes` tells whether there is one.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(
      const JsonPart& part, bool bytes_at_end, bool* bytes);
  // GPT-2's: ByteLevel with use_regex, leaving bytes as they are.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> CreateByteLevel(
      bool add_prefix_space);
};

}  // namespace sluice
