#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

// The treatment of the parts of a text that a pattern matches.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // neighbouring matches become one piece
};

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonPart& part);

// Appends the parts of `piece` to `out`. With `invert`, the text between
// matches counts as matched, and the matches do not.
void SplitPiece(const Piece& piece, const std::vector<TextRange>& matches,
                bool invert, SplitBehavior behavior, std::vector<Piece>* out);

// Reads the member "pattern" of `part`: {"String": ...}, {"Regex": ...} or, as
// in older files, a plain string.
absl::StatusOr<std::unique_ptr<Regex>> PatternFromJson(const JsonPart& part);

}  // namespace sluice
