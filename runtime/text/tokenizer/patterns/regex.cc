#include "runtime/text/tokenizer/patterns/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/tokenizer/patterns/regex_syntax.h"

namespace sluice {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 16 << 20;
// The limit of the interpreter, which is used if just-in-time code has run out
// of stack or cannot be made.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;

// The scratch of matching, one for each thread: it fits any pattern, as groups
// are not captured.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack =
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  Scratch() {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) {
    return absl::StrCat("error ", code);
  }
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex() = default;
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(
    absl::string_view pattern) {
  SLUICE_ASSIGN_OR_RETURN(const std::string translated,
                          TranslateOniguruma(pattern));
  std::unique_ptr<Regex> regex(new Regex());
  regex->code_ = std::make_unique<Code>();
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)>
      context(pcre2_compile_context_create(nullptr),
              pcre2_compile_context_free);
  if (context == nullptr) {
    return absl::ResourceExhaustedError("no memory for a regular expression");
  }
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_bsr(context.get(), PCRE2_BSR_UNICODE);
  pcre2_set_parens_nest_limit(context.get(), 200);
  int error = 0;
  PCRE2_SIZE offset = 0;
  regex->code_->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, context.get());
  if (regex->code_->code == nullptr) {
    return InvalidArgument("bad regular expression \"", pattern,
                           "\": ", ErrorText(error), " (near byte ", offset,
                           " of \"", translated, "\")");
  }
  regex->code_->jit =
      pcre2_jit_compile(regex->code_->code, PCRE2_JIT_COMPLETE) == 0;
  return regex;
}

absl::StatusOr<std::unique_ptr<Regex>> Regex::Literal(absl::string_view text) {
  // An empty pattern matches everywhere, as the general case handles.
  if (text.empty()) return Compile("");
  std::unique_ptr<Regex> regex(new Regex());
  regex->literal_ = std::string(text);
  return regex;
}

absl::Status Regex::FindAll(absl::string_view text,
                            std::vector<TextRange>* matches) const {
  matches->clear();
  if (literal_.empty()) return FindAllByCode(text, matches);
  size_t pos = text.find(literal_);
  while (pos != absl::string_view::npos) {
    matches->push_back({pos, pos + literal_.size()});
    pos = text.find(literal_, pos + literal_.size());
  }
  return absl::OkStatus();
}

absl::Status Regex::FindAllByCode(absl::string_view text,
                                  std::vector<TextRange>* matches) const {
  Scratch& scratch = ThreadScratch();
  if (scratch.data == nullptr || scratch.context == nullptr) {
    return absl::ResourceExhaustedError("no memory for a regular expression");
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  if (subject == nullptr) subject = reinterpret_cast<PCRE2_SPTR>("");
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(scratch.data);
  bool jit = code_->jit;
  size_t start = 0;
  while (start <= text.size()) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit) {
      rc = pcre2_jit_match(code_->code, subject, text.size(), start,
                           PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code_->code, subject, text.size(), start,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch.data,
                       scratch.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return ResourceExhausted("regular expression gives up at byte ", start,
                               ": ", ErrorText(rc));
    }
    const TextRange range{found[0], found[1]};
    if (range.begin < start || range.begin > range.end) {  // \K
      return absl::InvalidArgumentError("regular expression matches backwards");
    }
    const bool again = range.begin == range.end && !matches->empty() &&
                       matches->back().end == range.end;
    if (again) {
      start += start < text.size() ? Utf8Length(text[start]) : 1;
      continue;
    }
    matches->push_back(range);
    start = range.end;
  }
  return absl::OkStatus();
}

}  // namespace sluice
