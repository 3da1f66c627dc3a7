#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace sluice {

// Turns tokens into text as they come, never splitting a UTF-8 character: bytes
// of an unfinished character are held back. The concatenation of all pieces and
// Flush() equals Decode of all tokens. Amortised O(1) per token.
// Thread-compatible; `tokenizer` must outlive it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens);

  // Text that this token completes; may be empty.
  std::string Append(int32_t token);
  // What was held back; an unfinished character becomes U+FFFD as in Decode.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> window_;  // tokens whose decoding may still change
  size_t emitted_ = 0;           // bytes of the window's text already given out
};

}  // namespace sluice
