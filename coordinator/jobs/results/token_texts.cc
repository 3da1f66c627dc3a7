#include "coordinator/jobs/results/token_texts.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr size_t kMaxCached = 32768;
constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Parses a byte in SentencePiece's form, such as "<0x0A>".
std::optional<std::string> FallbackByte(absl::string_view token) {
  int byte = 0;
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") ||
      token.back() != '>' || !absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
    return std::nullopt;
  }
  return std::string(1, static_cast<char>(byte));
}

std::string NameOf(const TokenTexts::Entry& entry) {
  if (!FindInvalidUtf8(entry.bytes)) return entry.text;
  std::string name = "bytes:";
  for (const char c : entry.bytes) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '\\') {
      name += c;
    } else {
      absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return name;
}

}  // namespace

const TokenTexts::Entry& TokenTexts::Get(int32_t id) {
  if (const auto it = cache_.find(id); it != cache_.end()) return it->second;
  if (cache_.size() >= kMaxCached) cache_.clear();
  Entry entry;
  // A token alone may lose its leading space; its second copy does not.
  const std::array<int32_t, 2> twice = {id, id};
  const std::string once = tokenizer_->Decode({twice.data(), 1}, false);
  const std::string both = tokenizer_->Decode(twice, false);
  entry.text = absl::StartsWith(both, once) ? both.substr(once.size()) : once;
  if (FindInvalidUtf8(entry.text)) entry.text = once;
  entry.special = tokenizer_->IsSpecial(id);
  entry.bytes = entry.text;
  if (absl::StrContains(entry.text, kReplacement)) {
    const std::string token = tokenizer_->IdToToken(id);
    std::string bytes;
    if (auto byte = FallbackByte(token)) {
      entry.bytes = *byte;
    } else if (AppendBytesOfChars(token, &bytes)) {
      entry.bytes = bytes;
    }
  }
  entry.quoted = EscapeLineEnds(QuoteJson(NameOf(entry)));
  return cache_.insert_or_assign(id, std::move(entry)).first->second;
}

}  // namespace sluice
