#include "runtime/text/detokenizer.h"

namespace sluice {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer,
                                               bool skip_special_tokens)
    : stream_(tokenizer->NewDecodeStream(skip_special_tokens)) {}

std::string IncrementalDetokenizer::Append(int32_t token) {
  std::string text;
  stream_->Append(token, &text);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  stream_->Flush(&text);
  return text;
}

}  // namespace sluice
