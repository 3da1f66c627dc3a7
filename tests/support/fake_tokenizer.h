#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// A tokenizer whose tokens are bytes, for tests that need texts to become
// tokens and care little which.
class FakeTokenizer : public Tokenizer {
 public:
  enum Kind {
    // Token t is the ASCII character t, given at once; token 0 ends an answer
    // and is special.
    kAscii,
    // Token b + 3 is byte b, given at the end of a stream, which is allowed,
    // too; 1 is <s>, put before every text, 2 is </s>.
    kBytes,
  };
  static constexpr int32_t kAsciiVocab = 128, kAsciiEos = 0;

  explicit FakeTokenizer(Kind kind = kAscii) : kind_(kind) {}

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const override;
  std::string Decode(std::span<const int32_t> ids,
                     bool skip_special_tokens) const override;
  std::unique_ptr<DecodeStream> NewDecodeStream(
      bool skip_special_tokens) const override;
  int32_t vocab_size() const override {
    return kind_ == kAscii ? kAsciiVocab : first_byte() + 256;
  }
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  std::string IdToToken(int32_t id) const override;
  bool IsSpecial(int32_t id) const override {
    return id >= 0 && id < static_cast<int32_t>(names().size());
  }
  const std::map<std::string, std::string>& special_tokens() const override;

 private:
  // The names of the tokens before the first that is a byte of a text.
  std::span<const char* const> names() const;
  int32_t first_byte() const { return kind_ == kAscii ? 0 : 3; }

  const Kind kind_;
};

}  // namespace sluice
