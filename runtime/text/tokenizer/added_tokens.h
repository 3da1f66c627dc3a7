#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/normalizer.h"
#include "runtime/text/tokenizer/pieces.h"

namespace sluice {

// A token that is searched for in the text itself, before it is cut into words.
struct AddedToken {
  std::string content;
  bool special = false;      // left out by Decode if asked to
  bool normalized = true;    // looked for in the normalized text
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space behind it

  bool operator==(const AddedToken&) const = default;
};

// Reads an object with "content" and flags; `special` is the default of
// "special", and the opposite of the result that of "normalized".
absl::StatusOr<AddedToken> AddedTokenFromJson(const JsonPart& part,
                                              bool special);

// Finds the longest of many strings at a position.
class Trie {
 public:
  // Adds a key if it is not empty; the first of equal keys keeps its value.
  void Add(absl::string_view key, int32_t value);

  struct Match {
    size_t begin;
    size_t end;
    int32_t value;
  };
  // The longest of the leftmost matches at or after `pos`.
  std::optional<Match> Find(absl::string_view text, size_t pos) const;
  bool empty() const { return next_.empty(); }

 private:
  absl::flat_hash_map<uint64_t, uint32_t> next_;  // node << 8 | byte -> node
  std::vector<int32_t> value_ = {-1};             // of nodes; node 0 is root
  bool first_[256] = {};                          // bytes that keys begin with
};

// The added tokens of a tokenizer. Filled once, then immutable.
class AddedTokens {
 public:
  struct Model {
    std::function<std::optional<int32_t>(absl::string_view)> token_to_id;
    int32_t size;  // number of its tokens
  };

  // Gives each new token its id like Hugging Face, regardless of the file's:
  // the model's if the model has it, else the next one behind the model's and
  // those added by earlier calls.
  void Add(const std::vector<AddedToken>& tokens, const Model& model);
  // Call after the last Add. `normalizer` may be null.
  absl::Status Finish(const Normalizer& normalizer);

  std::optional<int32_t> TokenToId(absl::string_view token) const;
  const AddedToken* IdToToken(
      int32_t id) const;  // null if it is no added token
  // The text that Decode uses: the token as it occurs in normalized text.
  absl::string_view DecodedForm(int32_t id, const AddedToken& token) const;
  bool IsSpecial(absl::string_view token) const {
    return special_.contains(token);
  }
  int32_t max_id() const { return max_id_; }

  // Cuts out the tokens that are searched for in the original text.
  void SplitRaw(Piece piece, std::vector<Piece>* out) const {
    Split(piece, raw_, out);
  }
  void SplitNormalized(Piece piece, std::vector<Piece>* out) const {
    Split(piece, normalized_, out);
  }

 private:
  void Split(const Piece& piece, const Trie& trie,
             std::vector<Piece>* out) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, AddedToken> tokens_;
  absl::flat_hash_set<std::string> special_;
  absl::flat_hash_map<int32_t, std::string>
      normalized_forms_;  // only those that differ
  int32_t max_id_ = -1;
  Trie raw_;
  Trie normalized_;
};

}  // namespace sluice
