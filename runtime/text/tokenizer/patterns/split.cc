#include "runtime/text/tokenizer/patterns/split.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "common/status_macros.h"

namespace sluice {
namespace {

struct Part {
  TextRange range;
  bool matched;
};

// Merges parts that begin where another ends, in the order of `parts`.
std::vector<TextRange> Merge(const std::vector<Part>& parts,
                             SplitBehavior behavior, bool backwards) {
  std::vector<TextRange> merged;
  bool previous_matched = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[backwards ? parts.size() - 1 - i : i];
    const bool join = behavior == SplitBehavior::kContiguous
                          ? part.matched == previous_matched
                          : part.matched && !previous_matched;
    previous_matched = part.matched;
    if (!join || merged.empty()) {
      merged.push_back(part.range);
    } else if (backwards) {
      merged.back().begin = part.range.begin;
    } else {
      merged.back().end = part.range.end;
    }
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  return merged;
}

}  // namespace

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const std::string name, part.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return part.Invalid("unknown behavior \"", name, "\"");
}

void SplitPiece(const Piece& piece, const std::vector<TextRange>& matches,
                bool invert, SplitBehavior behavior, std::vector<Piece>* out) {
  const auto emit = [&](const TextRange& range) {
    if (range.begin < range.end) {
      out->push_back(Slice(piece, range.begin, range.end));
    }
  };
  const size_t size = piece.text.size();
  if (behavior == SplitBehavior::kIsolated ||
      behavior == SplitBehavior::kRemoved) {
    const bool keep_matches = behavior == SplitBehavior::kIsolated || invert;
    const bool keep_others = behavior == SplitBehavior::kIsolated || !invert;
    size_t done = 0;
    for (const TextRange& match : matches) {
      if (keep_others) emit({done, match.begin});
      if (keep_matches) emit(match);
      done = match.end;
    }
    if (keep_others) emit({done, size});
    return;
  }
  std::vector<Part> parts;
  size_t done = 0;
  for (const TextRange& match : matches) {
    if (done != match.begin) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done != size) parts.push_back({{done, size}, invert});
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  for (const TextRange& range : Merge(parts, behavior, backwards)) emit(range);
}

absl::StatusOr<std::unique_ptr<Regex>> PatternFromJson(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart pattern, part.Get("pattern"));
  absl::StatusOr<std::unique_ptr<Regex>> regex;
  if (pattern.value().is_string()) {
    regex = Regex::Literal(pattern.value().get<std::string>());
  } else {
    SLUICE_ASSIGN_OR_RETURN(const auto literal, pattern.Find("String"));
    SLUICE_ASSIGN_OR_RETURN(const auto source, pattern.Find("Regex"));
    if (literal) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, literal->String());
      regex = Regex::Literal(text);
    } else if (source) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, source->String());
      regex = Regex::Compile(text);
    } else {
      return pattern.Invalid("has neither \"String\" nor \"Regex\"");
    }
  }
  return Annotate(std::move(regex), pattern.where());
}

}  // namespace sluice
