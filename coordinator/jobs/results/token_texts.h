#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// The text and the bytes of single tokens, as logprobs show them.
// Thread-compatible; the tokenizer must outlive it.
class TokenTexts {
 public:
  struct Entry {
    std::string text;  // as inside a text, with its leading space; valid UTF-8
    // A name for completions, as a JSON string: `text`, unless the token's
    // bytes are no text ("bytes:\xe3\x81", OpenAI's form).
    std::string quoted;
    bool special = false;
    std::string bytes;  // the token's bytes; may be part of a character
  };
  explicit TokenTexts(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // Valid until the next call.
  const Entry& Get(int32_t id);

 private:
  const Tokenizer* const tokenizer_;
  absl::flat_hash_map<int32_t, Entry> cache_;
};

}  // namespace sluice
