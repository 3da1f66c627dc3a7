#include "runtime/text/tokenizer/decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/patterns/regex.h"
#include "runtime/text/tokenizer/patterns/split.h"
#include "runtime/text/unicode/unicode.h"

namespace sluice {
namespace {

constexpr size_t kMaxTokenBytes = size_t{1} << 20;
constexpr absl::string_view kReplacementChar = "\xEF\xBF\xBD";

class StepBase : public DecodeStep {
 public:
  explicit StepBase(DecodeStep* next) : next_(next) {}
  void Flush() override { next_->Flush(); }

 protected:
  DecodeStep* next_;
};

// Rewrites each token by itself; parts of one token are collected first, as
// only the whole can be rewritten.
template <typename Rewrite>
class TokenStep : public StepBase {
 public:
  TokenStep(bool fused, DecodeStep* next, Rewrite rewrite)
      : StepBase(next), fused_(fused), rewrite_(std::move(rewrite)) {}
  void Push(absl::string_view token) override {
    if (fused_) {
      held_.append(token.data(), token.size());
    } else {
      next_->Push(rewrite_(token));
    }
  }
  void Flush() override {
    if (fused_) next_->Push(rewrite_(held_));
    held_.clear();
    next_->Flush();
  }

 private:
  bool fused_;
  Rewrite rewrite_;
  std::string held_;
};

template <typename Rewrite>
std::unique_ptr<DecodeStep> NewTokenStep(bool fused, DecodeStep* next,
                                         Rewrite rewrite) {
  return std::make_unique<TokenStep<Rewrite>>(fused, next, std::move(rewrite));
}

// --- ByteLevel

// A token with a character that stands for no byte is taken as it is.
void AppendBytes(absl::string_view token, std::string* bytes) {
  if (!AppendBytesOfChars(token, bytes)) absl::StrAppend(bytes, token);
}

std::string BytesToText(absl::string_view token) {
  std::string bytes, text;
  AppendBytes(token, &bytes);
  AppendUtf8Lossy(bytes, /*final=*/true, &text);
  return text;
}

class ByteLevelStep : public StepBase {
 public:
  using StepBase::StepBase;
  void Push(absl::string_view token) override {
    AppendBytes(token, &bytes_);
    Pass(/*final=*/false);
  }
  void Flush() override {
    Pass(/*final=*/true);
    next_->Flush();
  }

 private:
  void Pass(bool final) {
    text_.clear();
    bytes_.erase(0, AppendUtf8Lossy(bytes_, final, &text_));
    if (!text_.empty()) next_->Push(text_);
  }
  std::string bytes_;
  std::string text_;
};

// --- ByteFallback: "<0xE2>" tokens become bytes. A run of them that is no
// valid UTF-8 becomes a replacement character for each, so a run is held back
// until it ends.

std::optional<char> FallbackByte(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') {
    return std::nullopt;
  }
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + c - '0';
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      value = value * 16 + (c | 0x20) - 'a' + 10;
    } else if (c != '+' || token[3] != '+' || token[4] == '+') {
      return std::nullopt;  // Rust's parser takes one sign before a digit
    }
  }
  return static_cast<char>(value);
}

std::string FallbackText(absl::string_view token) {
  const std::optional<char> byte = FallbackByte(token);
  if (!byte) return std::string(token);
  return FindInvalidUtf8(absl::string_view(&*byte, 1))
             ? std::string(kReplacementChar)
             : std::string(1, *byte);
}

class ByteFallbackStep : public StepBase {
 public:
  using StepBase::StepBase;
  void Push(absl::string_view token) override {
    if (const std::optional<char> byte = FallbackByte(token)) {
      run_.push_back(*byte);
      return;
    }
    EndRun();
    next_->Push(token);
  }
  void Flush() override {
    EndRun();
    next_->Flush();
  }

 private:
  void EndRun() {
    if (run_.empty()) return;
    if (FindInvalidUtf8(run_)) {
      for (size_t i = 0; i < run_.size(); ++i) next_->Push(kReplacementChar);
    } else {
      next_->Push(run_);
    }
    run_.clear();
  }
  std::string run_;
};

// --- Fuse

class FuseStep : public StepBase {
 public:
  using StepBase::StepBase;
  void Push(absl::string_view token) override { next_->Push(token); }
};

// --- Strip: removes up to `start` and `stop` characters from the ends.

struct StripRule {
  std::string content;
  size_t start;
  size_t stop;

  // Returns the number of removed characters.
  size_t StripStart(size_t max, absl::string_view* text) const {
    size_t count = 0;
    while (count < max && absl::StartsWith(*text, content)) {
      text->remove_prefix(content.size());
      ++count;
    }
    return count;
  }
  // Returns the end of the text when stripped at its end.
  size_t StripEnd(absl::string_view text) const {
    for (size_t i = 0; i < stop && absl::EndsWith(text, content); ++i) {
      text.remove_suffix(content.size());
    }
    return text.size();
  }
  // Strips a whole token.
  std::string operator()(absl::string_view token) const {
    absl::string_view rest = token;
    StripStart(start, &rest);
    const size_t begin = token.size() - rest.size();
    const size_t end = StripEnd(token);
    return std::string(token.substr(begin, end > begin ? end - begin : 0));
  }
};

class FusedStripStep : public StepBase {
 public:
  FusedStripStep(StripRule rule, DecodeStep* next)
      : StepBase(next), rule_(std::move(rule)), left_(rule_.start) {}
  void Push(absl::string_view text) override {
    const size_t count = rule_.StripStart(left_, &text);
    left_ = text.empty() ? left_ - count : 0;
    if (text.empty()) return;
    if (rule_.stop == 0) {
      next_->Push(text);
      return;
    }
    held_.append(text.data(), text.size());
    // Characters that may be stripped at the end are held back.
    const size_t end = rule_.StripEnd(held_);
    if (end > 0) next_->Push(absl::string_view(held_).substr(0, end));
    held_.erase(0, end);
  }
  void Flush() override {
    held_.clear();
    left_ = rule_.start;
    next_->Flush();
  }

 private:
  StripRule rule_;
  size_t left_;  // characters that may still be stripped at the start
  std::string held_;
};

// --- Replace

struct Replacement {
  std::shared_ptr<const Regex> regex;
  std::string content;

  std::string operator()(absl::string_view token) const {
    std::vector<TextRange> matches;
    // A pattern that gives up leaves the token as it is, as does one whose
    // repeated replacements of empty matches would fill the memory.
    if (token.empty() || !regex->FindAll(token, &matches).ok() ||
        matches.size() > kMaxTokenBytes / (content.size() + 1)) {
      return std::string(token);
    }
    std::string out;
    size_t done = 0;
    for (const TextRange& match : matches) {
      absl::StrAppend(&out, token.substr(done, match.begin - done), content);
      done = match.end;
    }
    absl::StrAppend(&out, token.substr(done));
    return out;
  }
};

// Holds back text that may be the beginning of the literal.
class FusedReplaceStep : public StepBase {
 public:
  FusedReplaceStep(std::string literal, std::string content, DecodeStep* next)
      : StepBase(next),
        literal_(std::move(literal)),
        content_(std::move(content)) {}
  void Push(absl::string_view text) override {
    held_.append(text.data(), text.size());
    std::string out;
    size_t done = 0;
    for (size_t at = held_.find(literal_); at != held_.npos;
         at = held_.find(literal_, done)) {
      absl::StrAppend(&out, held_.substr(done, at - done), content_);
      done = at + literal_.size();
    }
    size_t keep = std::min(literal_.size() - 1, held_.size() - done);
    while (keep > 0 &&
           held_.compare(held_.size() - keep, keep, literal_, 0, keep) != 0) {
      --keep;
    }
    out.append(held_, done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    if (!out.empty()) next_->Push(out);
  }
  void Flush() override {
    if (!held_.empty()) next_->Push(held_);
    held_.clear();
    next_->Flush();
  }

 private:
  const std::string literal_;
  const std::string content_;
  std::string held_;
};

// --- Metaspace: the mark becomes a space, or nothing in the first token.

class MetaspaceStep : public StepBase {
 public:
  MetaspaceStep(std::string mark, bool drop_first, bool fused, DecodeStep* next)
      : StepBase(next),
        mark_(std::move(mark)),
        drop_first_(drop_first),
        fused_(fused) {}
  void Push(absl::string_view token) override {
    const char* space = first_ && drop_first_ ? "" : " ";
    if (!fused_) first_ = false;
    next_->Push(absl::StrReplaceAll(token, {{mark_, space}}));
  }
  void Flush() override {
    first_ = true;
    next_->Flush();
  }

 private:
  const std::string mark_;
  const bool drop_first_;
  const bool fused_;
  bool first_ = true;
};

// --- BPEDecoder: a suffix marks the end of a word. Holds the last token back,
// whose suffix becomes nothing.

class SuffixStep : public StepBase {
 public:
  SuffixStep(std::string suffix, DecodeStep* next)
      : StepBase(next), suffix_(std::move(suffix)) {}
  void Push(absl::string_view token) override {
    Pass(" ");
    held_ = std::string(token);
  }
  void Flush() override {
    Pass("");
    held_.reset();
    next_->Flush();
  }

 private:
  void Pass(absl::string_view space) {
    if (held_) next_->Push(absl::StrReplaceAll(*held_, {{suffix_, space}}));
  }
  const std::string suffix_;
  std::optional<std::string> held_;
};

// --- None

class SpacesStep : public StepBase {
 public:
  using StepBase::StepBase;
  void Push(absl::string_view token) override {
    if (!first_) next_->Push(" ");
    first_ = false;
    next_->Push(token);
  }
  void Flush() override {
    first_ = true;
    next_->Flush();
  }

 private:
  bool first_ = true;
};

using StepPtr = std::unique_ptr<DecodeStep>;

// Makes a step that is the same for whole tokens and their parts.
template <typename Step>
StepPtr NewPlainStep(bool fused, DecodeStep* next) {
  return std::make_unique<Step>(next);
}

Decoder ByteFallbackDecoder() {
  return {false, [](bool fused, DecodeStep* next) -> StepPtr {
            if (fused) return NewTokenStep(true, next, FallbackText);
            return std::make_unique<ByteFallbackStep>(next);
          }};
}

Decoder StripDecoder(StripRule rule) {
  return {false,
          [rule = std::move(rule)](bool fused, DecodeStep* next) -> StepPtr {
            if (!fused) return NewTokenStep(false, next, rule);
            return std::make_unique<FusedStripStep>(rule, next);
          }};
}

Decoder ReplaceDecoder(Replacement replacement) {
  return {false,
          [replacement = std::move(replacement)](bool fused,
                                                 DecodeStep* next) -> StepPtr {
            const std::string& literal = replacement.regex->literal();
            if (!fused || literal.empty()) {
              return NewTokenStep(fused, next, replacement);
            }
            return std::make_unique<FusedReplaceStep>(
                literal, replacement.content, next);
          }};
}

Decoder MetaspaceDecoder(std::string mark, bool drop_first) {
  return {false,
          [mark = std::move(mark), drop_first](bool fused,
                                               DecodeStep* next) -> StepPtr {
            return std::make_unique<MetaspaceStep>(mark, drop_first, fused,
                                                   next);
          }};
}

Decoder SuffixDecoder(std::string suffix) {
  return {
      false,
      [suffix = std::move(suffix)](bool fused, DecodeStep* next) -> StepPtr {
        if (!fused) return std::make_unique<SuffixStep>(suffix, next);
        return NewTokenStep(true, next, [suffix](absl::string_view token) {
          return absl::StrReplaceAll(token, {{suffix, ""}});
        });
      }};
}

absl::StatusOr<std::string> CharText(const JsonPart& part,
                                     absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart member, part.Get(key));
  SLUICE_ASSIGN_OR_RETURN(const char32_t c, member.Char());
  std::string text;
  AppendUtf8(c, &text);
  return text;
}

absl::StatusOr<size_t> Count(const JsonPart& part, absl::string_view key) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart member, part.Get(key));
  SLUICE_ASSIGN_OR_RETURN(const int64_t count, member.Int(0, 1 << 20));
  return static_cast<size_t>(count);
}

absl::Status AppendDecoders(const JsonPart& part, int depth,
                            std::vector<Decoder>* out) {
  if (depth > kMaxNestedParts) return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "Sequence") {
    SLUICE_ASSIGN_OR_RETURN(const auto list, part.GetList("decoders"));
    for (const JsonPart& element : list) {
      SLUICE_RETURN_IF_ERROR(AppendDecoders(element, depth + 1, out));
    }
  } else if (type == "ByteLevel") {
    out->push_back(ByteLevelDecoder());
  } else if (type == "ByteFallback") {
    out->push_back(ByteFallbackDecoder());
  } else if (type == "Fuse") {
    out->push_back({true, NewPlainStep<FuseStep>});
  } else if (type == "Strip") {
    SLUICE_ASSIGN_OR_RETURN(std::string content, CharText(part, "content"));
    SLUICE_ASSIGN_OR_RETURN(const size_t start, Count(part, "start"));
    SLUICE_ASSIGN_OR_RETURN(const size_t stop, Count(part, "stop"));
    out->push_back(StripDecoder({std::move(content), start, stop}));
  } else if (type == "Replace") {
    SLUICE_ASSIGN_OR_RETURN(auto regex, PatternFromJson(part));
    SLUICE_ASSIGN_OR_RETURN(std::string text, part.GetString("content"));
    out->push_back(ReplaceDecoder({std::move(regex), std::move(text)}));
  } else if (type == "Metaspace") {
    SLUICE_ASSIGN_OR_RETURN(std::string mark, CharText(part, "replacement"));
    SLUICE_ASSIGN_OR_RETURN(const bool prefix,
                            part.BoolOr("add_prefix_space", true));
    SLUICE_ASSIGN_OR_RETURN(
        const std::string scheme,
        part.StringOr("prepend_scheme", prefix ? "always" : "never"));
    out->push_back(MetaspaceDecoder(std::move(mark), scheme != "never"));
  } else if (type == "BPEDecoder") {
    SLUICE_ASSIGN_OR_RETURN(std::string suffix,
                            part.StringOr("suffix", "</w>"));
    if (suffix.empty()) return part.Unimplemented("the suffix is empty");
    out->push_back(SuffixDecoder(std::move(suffix)));
  } else {
    return type_part.Unimplemented("decoder \"", type, "\" is not supported");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Decoder>> DecodersFromJson(const JsonPart& part) {
  std::vector<Decoder> decoders;
  SLUICE_RETURN_IF_ERROR(AppendDecoders(part, 0, &decoders));
  return decoders;
}

Decoder SpacesDecoder() { return {false, NewPlainStep<SpacesStep>}; }

Decoder ByteLevelDecoder() {
  return {true, [](bool fused, DecodeStep* next) -> StepPtr {
            if (fused) return NewTokenStep(true, next, BytesToText);
            return std::make_unique<ByteLevelStep>(next);
          }};
}

DecodeChain::DecodeChain(const std::vector<Decoder>& decoders) {
  std::vector<bool> fused;  // whether each step gets parts of one token
  bool one = false;
  for (const Decoder& decoder : decoders) {
    fused.push_back(one);
    one = one || decoder.fuses;
  }
  first_ = &end_;
  for (size_t i = decoders.size(); i-- > 0;) {
    steps_.push_back(decoders[i].new_step(fused[i], first_));
    first_ = steps_.back().get();
  }
}

void DecodeChain::Take(std::string* out) {
  out->append(end_.text);
  end_.text.clear();
}

void DecodeChain::Push(absl::string_view token, std::string* out) {
  first_->Push(token);
  Take(out);
}

void DecodeChain::Flush(std::string* out) {
  first_->Flush();
  Take(out);
}

}  // namespace sluice
