#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// Turns tokens into text as they come, never splitting a UTF-8 character: bytes
// of an unfinished character are held back, and so is all that later tokens can
// still change. The concatenation of all pieces and Flush() equals Decode of
// all tokens. Amortised O(1) per token. Thread-compatible; `tokenizer` must
// outlive it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens);
  // The text continues that of `before`: it is Decode of all tokens behind
  // Decode of `before`, and keeps a first space that a separate text would
  // lose. A character that `before` leaves unfinished is given whole.
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens,
                         std::span<const int32_t> before);

  // Returns the text that this token completes; may be empty.
  std::string Append(int32_t token);
  // Returns held-back text; an unfinished character becomes U+FFFD.
  std::string Flush();

 private:
  std::string Take(std::string text);

  std::unique_ptr<DecodeStream> stream_;
  std::string known_;  // the start of the next text, unless tokens change it
};

// Returns the text of `tokens` behind that of `before`, in the same way.
std::string DecodeAfter(const Tokenizer& tokenizer,
                        std::span<const int32_t> before,
                        std::span<const int32_t> tokens,
                        bool skip_special_tokens);

}  // namespace sluice
