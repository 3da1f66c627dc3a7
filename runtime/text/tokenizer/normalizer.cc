#include "runtime/text/tokenizer/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/patterns/regex_json.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 32;

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  absl::Status Apply(NormalizedText* text) const override {
    for (const auto& step : steps_) SLUICE_RETURN_IF_ERROR(step->Apply(text));
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalForm form) : form_(form) {}
  absl::Status Apply(NormalizedText* text) const override {
    std::string out = Normalized(form_, text->text);
    if (text->first_bytes > 0 && !out.empty()) {
      // What the first character alone becomes; it may still have been joined
      // with marks behind it.
      const size_t alone =
          Normalized(form_,
                     absl::string_view(text->text).substr(0, text->first_bytes))
              .size();
      const size_t least = Utf8Length(out[0]);
      const bool whole = alone < out.size() && !IsUtf8Continuation(out[alone]);
      text->first_bytes =
          whole || alone == out.size() ? std::max(alone, least) : least;
    }
    text->text = std::move(out);
    return absl::OkStatus();
  }

 private:
  NormalForm form_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(NormalizedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    text->text.insert(0, prefix_);
    if (text->first_bytes > 0) text->first_bytes += prefix_.size();
    return absl::OkStatus();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<Regex> regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}
  absl::Status Apply(NormalizedText* text) const override {
    if (text->text.empty()) return absl::OkStatus();
    std::vector<TextRange> matches;
    SLUICE_RETURN_IF_ERROR(regex_->FindAll(text->text, &matches));
    if (matches.empty()) return absl::OkStatus();
    const std::string& in = text->text;
    if (matches.size() > text->max_bytes / (content_.size() + 1)) {
      return absl::ResourceExhaustedError(
          "the normalizer makes the text too long");
    }
    std::string out;
    out.reserve(in.size());
    size_t done = 0;
    size_t first_bytes = 0;
    const auto copy = [&](size_t end) {
      if (text->first_bytes > done) {
        first_bytes = out.size() + std::min(end, text->first_bytes) - done;
      }
      out.append(in, done, end - done);
      done = end;
    };
    for (const TextRange& match : matches) {
      copy(match.begin);
      out += content_;
      // New characters stem from the last one that they replace.
      const size_t last = match.end > 0 ? PreviousUtf8(in, match.end) : 0;
      if (last < text->first_bytes) first_bytes = out.size();
      done = match.end;
    }
    copy(in.size());
    text->text = std::move(out);
    text->first_bytes = first_bytes;
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<Regex> regex_;
  std::string content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(NormalizedText* text) const override {
    const std::string& in = text->text;
    size_t begin = 0;
    while (left_ && begin < in.size()) {
      size_t next = begin;
      if (!IsWhitespace(DecodeUtf8(in, &next))) break;
      begin = next;
    }
    size_t end = in.size();
    while (right_ && end > begin) {
      const size_t previous = PreviousUtf8(in, end);
      size_t pos = previous;
      if (!IsWhitespace(DecodeUtf8(in, &pos))) break;
      end = previous;
    }
    text->first_bytes =
        text->first_bytes > begin ? text->first_bytes - begin : 0;
    text->text = in.substr(begin, end - begin);
    text->first_bytes = std::min(text->first_bytes, text->text.size());
    return absl::OkStatus();
  }

 private:
  bool left_;
  bool right_;
};

// Rewrites each character by itself.
template <typename Rewrite>
class CharNormalizer : public Normalizer {
 public:
  absl::Status Apply(NormalizedText* text) const override {
    std::string out;
    out.reserve(text->text.size());
    size_t first_bytes = 0;
    for (size_t pos = 0; pos < text->text.size();) {
      const bool first = pos < text->first_bytes;
      Rewrite()(DecodeUtf8(text->text, &pos), &out);
      if (first) first_bytes = out.size();
    }
    text->text = std::move(out);
    text->first_bytes = first_bytes;
    return absl::OkStatus();
  }
};

struct Lowercase {
  void operator()(char32_t c, std::string* out) const {
    AppendLowercase(c, out);
  }
};
struct StripAccents {
  void operator()(char32_t c, std::string* out) const {
    if (!IsMark(c)) AppendUtf8(c, out);
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Apply(NormalizedText* text) const override {
    std::string first;
    AppendByteChars(absl::string_view(text->text).substr(0, text->first_bytes),
                    &first);
    std::string out = first;
    AppendByteChars(absl::string_view(text->text).substr(text->first_bytes),
                    &out);
    text->text = std::move(out);
    text->first_bytes = first.size();
    return absl::OkStatus();
  }
};

absl::StatusOr<std::unique_ptr<Normalizer>> CreateAt(const JsonPart& part,
                                                     int depth);

absl::StatusOr<std::unique_ptr<Normalizer>> CreateSequence(const JsonPart& part,
                                                           int depth) {
  if (depth >= kMaxDepth) return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const JsonPart list, part.Get("normalizers"));
  SLUICE_RETURN_IF_ERROR(list.ExpectArray());
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; i < list.value().size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(auto step, CreateAt(list.At(i), depth + 1));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

absl::StatusOr<std::unique_ptr<Normalizer>> CreateAt(const JsonPart& part,
                                                     int depth) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "Sequence") return CreateSequence(part, depth);
  if (type == "NFC")
    return std::make_unique<UnicodeNormalizer>(NormalForm::kNfc);
  if (type == "NFD")
    return std::make_unique<UnicodeNormalizer>(NormalForm::kNfd);
  if (type == "NFKC") {
    return std::make_unique<UnicodeNormalizer>(NormalForm::kNfkc);
  }
  if (type == "NFKD") {
    return std::make_unique<UnicodeNormalizer>(NormalForm::kNfkd);
  }
  if (type == "Lowercase") return std::make_unique<CharNormalizer<Lowercase>>();
  if (type == "StripAccents") {
    return std::make_unique<CharNormalizer<StripAccents>>();
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Prepend") {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart prefix, part.Get("prepend"));
    SLUICE_ASSIGN_OR_RETURN(std::string text, prefix.String());
    return std::make_unique<PrependNormalizer>(std::move(text));
  }
  if (type == "Replace") {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart content, part.Get("content"));
    SLUICE_ASSIGN_OR_RETURN(std::string text, content.String());
    SLUICE_ASSIGN_OR_RETURN(auto regex, PatternFromJson(part));
    return std::make_unique<ReplaceNormalizer>(std::move(regex),
                                               std::move(text));
  }
  if (type == "Strip") {
    SLUICE_ASSIGN_OR_RETURN(const bool left, part.BoolOr("strip_left", true));
    SLUICE_ASSIGN_OR_RETURN(const bool right, part.BoolOr("strip_right", true));
    return std::make_unique<StripNormalizer>(left, right);
  }
  return type_part.Unimplemented(
      absl::StrCat("normalizer \"", type, "\" is not supported"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> Normalizer::Create(
    const JsonPart& part) {
  return CreateAt(part, 0);
}

}  // namespace sluice
