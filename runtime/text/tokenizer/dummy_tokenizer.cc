#include "runtime/text/tokenizer/dummy_tokenizer.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

constexpr int32_t kBos = 1;
constexpr int32_t kEos = 2;
constexpr int32_t kFirstByte = 3;
constexpr int32_t kFirstName = kFirstByte + 256;
constexpr size_t kMaxTextBytes = size_t{64} << 20;  // as for all tokenizers

class DummyTokenizer final : public Tokenizer {
 public:
  explicit DummyTokenizer(int32_t vocab_size) : vocab_size_(vocab_size) {
    if (vocab_size > kBos) special_["bos_token"] = "<s>";
    if (vocab_size > kEos) special_["eos_token"] = "</s>";
  }

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const override {
    if (text.size() > kMaxTextBytes) {
      return InvalidArgument("text has ", text.size(), " bytes; at most ",
                             kMaxTextBytes);
    }
    if (const auto invalid = FindInvalidUtf8(text)) {
      return InvalidArgument("text is not valid UTF-8 at byte ", *invalid);
    }
    std::vector<int32_t> ids;
    ids.reserve(text.size() + 1);
    if (add_special_tokens && vocab_size_ > kBos) ids.push_back(kBos);
    for (const char c : text) {
      const int32_t id = kFirstByte + static_cast<unsigned char>(c);
      if (id >= vocab_size_) {
        return InvalidArgument(
            "byte ", id - kFirstByte, " of the text has no token: the model's ",
            "vocabulary has only ", vocab_size_, ", and no tokenizer");
      }
      ids.push_back(id);
    }
    return ids;
  }

  std::unique_ptr<DecodeStream> NewDecodeStream(
      bool skip_special_tokens) const override {
    return std::make_unique<Stream>(this, skip_special_tokens);
  }

  int32_t vocab_size() const override { return vocab_size_; }

  std::optional<int32_t> TokenToId(absl::string_view token) const override {
    int32_t id = -1;
    absl::string_view digits = token;
    if (token == "<unk>") {
      id = 0;
    } else if (token == "<s>") {
      id = kBos;
    } else if (token == "</s>") {
      id = kEos;
    } else if (absl::ConsumePrefix(&digits, "<0x") &&
               absl::ConsumeSuffix(&digits, ">")) {
      if (absl::SimpleHexAtoi(digits, &id)) id += kFirstByte;
    } else if (absl::ConsumePrefix(&digits, " t")) {
      if (!absl::SimpleAtoi(digits, &id)) id = -1;
    }
    // Other spellings of the number are no tokens, either.
    if (id < 0 || IdToToken(id) != token) return std::nullopt;
    return id;
  }

  std::string IdToToken(int32_t id) const override {
    if (id < 0 || id >= vocab_size_) return "";
    if (id == 0) return "<unk>";
    if (id == kBos) return "<s>";
    if (id == kEos) return "</s>";
    if (id < kFirstName) return absl::StrFormat("<0x%02X>", id - kFirstByte);
    return absl::StrCat(" t", id);
  }

  bool IsSpecial(int32_t id) const override {
    return id >= 0 && id < kFirstByte && id < vocab_size_;
  }
  const std::map<std::string, std::string>& special_tokens() const override {
    return special_;
  }

 private:
  class Stream final : public DecodeStream {
   public:
    Stream(const DummyTokenizer* tokenizer, bool skip_special_tokens)
        : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

    void Append(int32_t token, std::string* out) override {
      if (tokenizer_->IsSpecial(token) && skip_special_tokens_) return;
      if (token >= kFirstByte && token < kFirstName &&
          token < tokenizer_->vocab_size()) {
        bytes_.push_back(static_cast<char>(token - kFirstByte));
        bytes_.erase(0, AppendUtf8Lossy(bytes_, false, out));
        return;
      }
      const std::string text = tokenizer_->IdToToken(token);
      if (text.empty()) return;
      Flush(out);
      out->append(text);
    }

    void Flush(std::string* out) override {
      AppendUtf8Lossy(bytes_, true, out);
      bytes_.clear();
    }

   private:
    const DummyTokenizer* const tokenizer_;
    const bool skip_special_tokens_;
    std::string bytes_;  // of an unfinished character
  };

  const int32_t vocab_size_;
  std::map<std::string, std::string> special_;
};

}  // namespace

std::unique_ptr<Tokenizer> CreateDummyTokenizer(int32_t vocab_size) {
  return std::make_unique<DummyTokenizer>(vocab_size);
}

}  // namespace sluice
