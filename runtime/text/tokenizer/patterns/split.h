#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

// What becomes of the parts of a text that a pattern matches.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // neighbouring matches become one piece
};

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonPart& part);

// Appends the parts of `piece` to `out`. With `invert`, what lies between the
// matches counts as matched and the other way round.
void SplitPiece(const Piece& piece, const std::vector<TextRange>& matches,
                bool invert, SplitBehavior behavior, std::vector<Piece>* out);

}  // namespace sluice
