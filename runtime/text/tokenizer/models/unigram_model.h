#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/models/prefix_trie.h"
#include "runtime/text/tokenizer/models/token_model.h"
#include "runtime/text/tokenizer/models/word_cache.h"

namespace sluice {

// A unigram language model: of all ways to cut a word into tokens, the one
// with the best sum of scores (Kudo, "Subword Regularization", 2018, section
// 3.2), found by Viterbi's algorithm in time linear in the word. Neighbouring
// unknown characters become one unknown token. Words are remembered in a cache
// of bounded size.
class UnigramModel : public TokenModel {
 public:
  struct Options {
    std::optional<int32_t> unk_id;
    bool byte_fallback = false;  // "<0x0A>" for characters without a token
  };
  using Vocabulary = std::vector<std::pair<std::string, double>>;  // by id

  // kInvalidArgument if the unknown token is not in the vocabulary, or a score
  // is no number.
  static absl::StatusOr<std::unique_ptr<UnigramModel>> Create(
      Options options, Vocabulary vocabulary);
  // Reads tokenizer.json's "model".
  static absl::StatusOr<std::unique_ptr<UnigramModel>> FromJson(
      const JsonPart& part);

  absl::Status Encode(absl::string_view word,
                      std::vector<int32_t>* ids) const override;
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  absl::string_view IdToToken(int32_t id) const override;
  bool HasId(int32_t id) const override {
    return id >= 0 && id < static_cast<int32_t>(vocabulary_.size());
  }
  int32_t size() const override {
    return static_cast<int32_t>(vocabulary_.size());
  }
  int32_t max_id() const override { return size() - 1; }

 private:
  // The best way to a place in the word: its last token.
  struct Node {
    double score;
    int32_t id;
    uint32_t length;  // of the token; 0: no way leads here
  };

  UnigramModel() = default;
  // Finds the best way. Appends its tokens.
  absl::Status Search(absl::string_view word, std::vector<int32_t>* ids) const;
  // Sets the nodes behind the place `at`, and `end` to the end of the longest
  // token from there.
  absl::Status Extend(absl::string_view word, size_t at, std::vector<Node>* way,
                      size_t origin, size_t* end) const;
  // Appends the tokens of a run of unknown characters.
  void AppendUnknown(absl::string_view text, std::vector<int32_t>* ids) const;

  Options options_;
  Vocabulary vocabulary_;
  double unk_score_ = 0;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  PrefixTrie trie_;
  std::array<int32_t, 256> fallback_ids_;  // of "<0x00>"...; -1: none
  mutable WordCache cache_;
};

}  // namespace sluice
