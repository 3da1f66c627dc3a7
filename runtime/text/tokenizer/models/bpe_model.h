#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/models/token_model.h"
#include "runtime/text/tokenizer/models/word_cache.h"

namespace sluice {

// Byte-pair encoding: a word's characters are joined, the pair with the best
// rank first (of equal ones the leftmost), while any pair has a rank. Words are
// remembered in a cache of bounded size.
class BpeModel : public TokenModel {
 public:
  struct Options {
    std::string unk_token;  // "": characters without a token are left out
    bool has_unk_token = false;
    std::string continuing_subword_prefix;
    std::string end_of_word_suffix;
    bool fuse_unk = false;
    bool byte_fallback = false;  // "<0x0A>" for characters without a token
    bool ignore_merges = false;  // a word that is a token is not taken apart
    // Words are given as bytes instead of the characters of GetByteAlphabet.
    bool byte_words = false;
  };
  using Vocabulary = absl::flat_hash_map<std::string, int32_t>;
  using Merge = std::pair<std::string, std::string>;

  // kInvalidArgument if a merge names an unknown token. Ids must be in
  // 0..kMaxId.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(
      Options options, Vocabulary vocabulary, const std::vector<Merge>& merges);
  // Reads {"token": id, ...}.
  static absl::StatusOr<Vocabulary> VocabularyFromJson(const JsonPart& part);
  // Reads tokenizer.json's "model".
  static absl::StatusOr<std::unique_ptr<BpeModel>> FromJson(
      const JsonPart& part, bool byte_words);
  // Whether FromJson supports byte_words for this model.
  static absl::StatusOr<bool> CanReadBytes(const JsonPart& part);

  absl::Status Encode(absl::string_view word,
                      std::vector<int32_t>* ids) const override;
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  absl::string_view IdToToken(int32_t id) const override;
  bool HasId(int32_t id) const override;
  int32_t size() const override {
    return static_cast<int32_t>(vocabulary_.size());
  }
  int32_t max_id() const override {
    return static_cast<int32_t>(tokens_.size()) - 1;
  }

 private:
  struct Rank {
    uint32_t rank;
    int32_t id;  // of the joined token
  };
  struct Scratch;

  BpeModel() = default;
  absl::Status AddMerges(const std::vector<Merge>& merges);
  absl::Status EncodePart(absl::string_view word,
                          std::vector<int32_t>* ids) const;
  absl::Status Symbols(absl::string_view word, std::vector<int32_t>* ids) const;
  absl::Status CharSymbols(absl::string_view word,
                           std::vector<int32_t>* ids) const;
  void Join(std::vector<int32_t>* ids) const;
  void JoinFew(std::vector<int32_t>* ids) const;
  void JoinMany(std::vector<int32_t>* ids) const;
  // Returns where a part of `text` that begins at 0 may end, before a "▁",
  // because no symbols are ever joined across it.
  size_t PartEnd(absl::string_view text) const;
  const Rank* FindRank(int32_t left, int32_t right) const;

  Options options_;
  Vocabulary vocabulary_;
  std::vector<const std::string*> tokens_;  // by id; null if unknown
  absl::flat_hash_map<uint64_t, Rank> ranks_;
  std::array<int32_t, 256> byte_ids_;      // of byte words; -1: none
  std::array<int32_t, 256> fallback_ids_;  // of "<0x00>"...; -1: none
  // The ids of whole words, for ignore_merges with byte words.
  absl::flat_hash_map<std::string, int32_t> words_;
  // Last characters of the left sides of merges whose right side begins with
  // "▁"; and whether "▁" is a token.
  absl::flat_hash_set<char32_t> before_space_;
  bool cuts_at_space_ = false;
  mutable WordCache cache_;
};

}  // namespace sluice
