#include "runtime/text/detokenizer.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

// The bytes of the whole characters that both texts begin with.
size_t CommonStart(absl::string_view a, absl::string_view b) {
  size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  const auto inside = [&at](absl::string_view text) {
    return at < text.size() && IsUtf8Continuation(text[at]);
  };
  while (inside(a) || inside(b)) --at;
  return at;
}

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer,
                                               bool skip_special_tokens)
    : stream_(tokenizer->NewDecodeStream(skip_special_tokens)) {}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer* tokenizer,
                                               bool skip_special_tokens,
                                               std::span<const int32_t> before)
    : IncrementalDetokenizer(tokenizer, skip_special_tokens) {
  if (before.empty()) return;
  const auto ended = tokenizer->NewDecodeStream(skip_special_tokens);
  for (const int32_t token : before) {
    stream_->Append(token, &known_);
    ended->Append(token, &known_);
    known_.clear();
  }
  // The stream's held-back text comes with later tokens.
  ended->Flush(&known_);
}

std::string IncrementalDetokenizer::Take(std::string text) {
  if (known_.empty() || text.empty()) return text;
  const size_t skipped = CommonStart(text, known_);
  if (skipped == text.size()) {
    known_.erase(0, skipped);
  } else {
    known_.clear();
  }
  return text.substr(skipped);
}

std::string IncrementalDetokenizer::Append(int32_t token) {
  std::string text;
  stream_->Append(token, &text);
  return Take(std::move(text));
}

std::string IncrementalDetokenizer::Flush() {
  std::string text;
  stream_->Flush(&text);
  return Take(std::move(text));
}

std::string DecodeAfter(const Tokenizer& tokenizer,
                        std::span<const int32_t> before,
                        std::span<const int32_t> tokens,
                        bool skip_special_tokens) {
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special_tokens, before);
  std::string text;
  for (const int32_t token : tokens) text += detokenizer.Append(token);
  return text + detokenizer.Flush();
}

}  // namespace sluice
