#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

struct TextRange {
  size_t begin;
  size_t end;
};

// A pattern in Oniguruma's Ruby syntax, as in tokenizer.json, run by PCRE2.
// Immutable, thread-safe.
class Regex {
 public:
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Compiles a pattern. kInvalidArgument (with the place) if that fails;
  // kUnimplemented for Oniguruma's own constructs without an equivalent.
  static absl::StatusOr<std::unique_ptr<Regex>> Compile(
      absl::string_view pattern);
  // Makes a pattern that matches `text` itself.
  static absl::StatusOr<std::unique_ptr<Regex>> Literal(absl::string_view text);

  // Sets `matches` to all matches in `text` (valid UTF-8), from left to right,
  // not overlapping. An empty match right behind the match before it does not
  // count. kResourceExhausted if the pattern backtracks too much.
  absl::Status FindAll(absl::string_view text,
                       std::vector<TextRange>* matches) const;

  // Set if the pattern is a plain, non-empty text.
  const std::string& literal() const { return literal_; }

 private:
  struct Code;
  Regex();
  absl::Status FindAllByCode(absl::string_view text,
                             std::vector<TextRange>* matches) const;

  std::string literal_;
  std::unique_ptr<Code> code_;
};

}  // namespace sluice
