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

// A token that is looked for in the text itself, before it is cut into words.
struct AddedToken {
  std::string content;
  bool special = false;      // left out by Decode if asked to
  bool normalized = true;    // looked for in the normalized text
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it

  bool operator==(const AddedToken&) const = default;
};

// An object with "content" and flags; `special` is what a missing "special"
// means, and a missing "normalized" is its opposite.
absl::StatusOr<AddedToken> AddedTokenFromJson(const JsonPart& part,
                                              bool special);

// Finds the longest of many strings that begins at a place.
class Trie {
 public:
  // The first of equal keys keeps its value. Empty keys are ignored.
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

  // Gives each new token its id as Hugging Face does, whatever the file says:
  // the model's if the model has it, else the next one behind the model's and
  // those added by earlier calls.
  void Add(const std::vector<AddedToken>& tokens, const Model& model);
  // Call after the last Add. `normalizer` may be null.
  absl::Status Finish(const Normalizer& normalizer);

  std::optional<int32_t> TokenToId(absl::string_view token) const;
  const AddedToken* IdToToken(int32_t id) const;  // null if it is none
  // What Decode makes text of: the token as it stands in normalized text.
  absl::string_view DecodedForm(int32_t id, const AddedToken& token) const;
  bool IsSpecial(absl::string_view token) const {
    return special_.contains(token);
  }
  int32_t max_id() const { return max_id_; }

  // Cuts out the tokens that are looked for in the text as it came.
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
  absl::flat_hash_map<int32_t, std::string> normalized_forms_;  // that differ
  int32_t max_id_ = -1;
  Trie raw_;
  Trie normalized_;
};

}  // namespace sluice
