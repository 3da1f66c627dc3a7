#include "coordinator/jobs/results/token_texts.h"

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "common/text/utf8.h"
#include "coordinator/jobs/requests/message_text.h"

namespace sluice {
namespace {

constexpr size_t kMaxCached = 32768;
constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Byte-level BPE writes bytes that are not printable Latin-1 as U+0100 and up,
// in order (GPT-2's bytes_to_unicode). Index: the character.
const std::array<int16_t, 324>& ByteOfCharacter() {
  static const std::array<int16_t, 324> kTable = [] {
    std::array<int16_t, 324> table;
    table.fill(-1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) ||
                             (b >= 174 && b <= 255);
      table[printable ? b : next++] = static_cast<int16_t>(b);
    }
    return table;
  }();
  return kTable;
}

// The bytes of a token that is written in the byte-level alphabet.
std::optional<std::string> ByteLevelBytes(absl::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    auto c = static_cast<uint32_t>(static_cast<uint8_t>(token[i]));
    if (c >= 0x80) {  // the alphabet needs two bytes at most
      if ((c & 0xE0) != 0xC0 || i + 1 == token.size()) return std::nullopt;
      c = (c & 0x1F) << 6 | (static_cast<uint8_t>(token[++i]) & 0x3F);
    }
    if (c >= ByteOfCharacter().size() || ByteOfCharacter()[c] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(ByteOfCharacter()[c]));
  }
  return bytes;
}

// "<0x0A>", as SentencePiece writes a byte.
std::optional<std::string> FallbackByte(absl::string_view token) {
  int byte = 0;
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") ||
      token.back() != '>' || !absl::SimpleHexAtoi(token.substr(3, 2), &byte)) {
    return std::nullopt;
  }
  return std::string(1, static_cast<char>(byte));
}

}  // namespace

const TokenTexts::Entry& TokenTexts::Get(int32_t id) {
  if (const auto it = cache_.find(id); it != cache_.end()) return it->second;
  if (cache_.size() >= kMaxCached) cache_.clear();
  Entry entry;
  // Alone, a token may lose its leading space; behind itself it does not.
  const std::array<int32_t, 2> twice = {id, id};
  const std::string once = tokenizer_->Decode({twice.data(), 1}, false);
  const std::string both = tokenizer_->Decode(twice, false);
  entry.text = absl::StartsWith(both, once) ? both.substr(once.size()) : once;
  if (FindInvalidUtf8(entry.text)) entry.text = once;
  entry.quoted = QuoteJson(entry.text);
  entry.special = tokenizer_->IsSpecial(id);
  entry.bytes = entry.text;
  if (absl::StrContains(entry.text, kReplacement)) {
    const std::string token = tokenizer_->IdToToken(id);
    if (auto byte = FallbackByte(token)) {
      entry.bytes = *byte;
    } else if (auto bytes = ByteLevelBytes(token)) {
      entry.bytes = *bytes;
    }
  }
  return cache_.insert_or_assign(id, std::move(entry)).first->second;
}

}  // namespace sluice
