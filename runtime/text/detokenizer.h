#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/text/tokenizer.h"

namespace sluice {

// Turns tokens into text as they come, never splitting a UTF-8 character: bytes
// of an unfinished character are held back, and so is all that later tokens can
// still change. The concatenation of all pieces and Flush() equals Decode of
// all tokens. Amortised O(1) per token. Thread-compatible; `tokenizer` must
// outlive it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens);

  // Text that this token completes; may be empty.
  std::string Append(int32_t token);
  // What was held back; an unfinished character becomes U+FFFD as in Decode.
  std::string Flush();

 private:
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace sluice
