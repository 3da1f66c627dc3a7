#include "tests/support/fake_tokenizer.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

constexpr std::array kAsciiNames = {"<eos>"};
constexpr std::array kByteNames = {"<unk>", "<s>", "</s>"};

class Stream : public DecodeStream {
 public:
  Stream(const FakeTokenizer* tokenizer, bool at_end, bool skip_special_tokens)
      : tokenizer_(tokenizer),
        at_end_(at_end),
        skip_special_tokens_(skip_special_tokens) {}
  void Append(int32_t token, std::string* out) override {
    ids_.push_back(token);
    if (!at_end_) Flush(out);
  }
  void Flush(std::string* out) override {
    *out += tokenizer_->Decode(ids_, skip_special_tokens_);
    ids_.clear();
  }

 private:
  const FakeTokenizer* const tokenizer_;
  const bool at_end_, skip_special_tokens_;
  std::vector<int32_t> ids_;
};

}  // namespace

std::span<const char* const> FakeTokenizer::names() const {
  if (kind_ == kAscii) return kAsciiNames;
  return kByteNames;
}

absl::StatusOr<std::vector<int32_t>> FakeTokenizer::Encode(
    absl::string_view text, bool add_special_tokens) const {
  if (FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError("not valid UTF-8");
  }
  std::vector<int32_t> ids;
  if (kind_ == kBytes && add_special_tokens) ids.push_back(1);
  for (const char c : text) {
    ids.push_back(static_cast<uint8_t>(c) + first_byte());
  }
  return ids;
}

std::string FakeTokenizer::Decode(std::span<const int32_t> ids,
                                  bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    if (!IsSpecial(id)) {
      bytes.push_back(static_cast<char>(id - first_byte()));
    } else if (!skip_special_tokens) {
      bytes += IdToToken(id);
    }
  }
  std::string text;
  AppendUtf8Lossy(bytes, true, &text);
  return text;
}

std::unique_ptr<DecodeStream> FakeTokenizer::NewDecodeStream(
    bool skip_special_tokens) const {
  return std::make_unique<Stream>(this, kind_ == kBytes, skip_special_tokens);
}

std::optional<int32_t> FakeTokenizer::TokenToId(absl::string_view token) const {
  for (size_t id = 0; id < names().size(); ++id) {
    if (token == names()[id]) return static_cast<int32_t>(id);
  }
  if (kind_ == kBytes || token.size() != 1) return std::nullopt;
  return token[0];
}

std::string FakeTokenizer::IdToToken(int32_t id) const {
  if (IsSpecial(id)) return names()[id];
  if (kind_ == kAscii) return std::string(1, static_cast<char>(id));
  return absl::StrCat("<0x", absl::Hex(id - first_byte(), absl::kZeroPad2),
                      ">");
}

const std::map<std::string, std::string>& FakeTokenizer::special_tokens()
    const {
  static const auto& none = *new std::map<std::string, std::string>();
  static const auto& bytes = *new std::map<std::string, std::string>(
      {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  return kind_ == kAscii ? none : bytes;
}

}  // namespace sluice
