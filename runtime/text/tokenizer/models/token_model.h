#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/json_part.h"

namespace sluice {

// The part of a tokenizer that turns a word into tokens. Thread-safe.
class TokenModel {
 public:
  // Ids are in 0..kMaxId.
  static constexpr int32_t kMaxId = (1 << 24) - 1;

  virtual ~TokenModel() = default;

  // Appends the tokens of `word` (not empty). kInvalidArgument if it needs the
  // token for unknown characters and there is none.
  virtual absl::Status Encode(absl::string_view word,
                              std::vector<int32_t>* ids) const = 0;

  virtual std::optional<int32_t> TokenToId(absl::string_view token) const = 0;
  virtual absl::string_view IdToToken(int32_t id) const = 0;  // "" if unknown
  virtual bool HasId(int32_t id) const = 0;
  virtual int32_t size() const = 0;    // number of its tokens
  virtual int32_t max_id() const = 0;  // -1: it has no tokens
};

// Whether TokenModelFromJson supports `byte_words` for this model.
absl::StatusOr<bool> CanReadBytes(const JsonPart& part);
// Reads tokenizer.json's "model". With `byte_words`, words are given as bytes
// instead of the characters of GetByteAlphabet. kUnimplemented names a type
// that is not supported.
absl::StatusOr<std::unique_ptr<TokenModel>> TokenModelFromJson(
    const JsonPart& part, bool byte_words);

}  // namespace sluice
