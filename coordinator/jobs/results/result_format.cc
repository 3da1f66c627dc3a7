#include "coordinator/jobs/results/result_format.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/text/text.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr double kLeastLogprob = -9999;

std::string Name(absl::string_view kind, const JobId job, int64_t index) {
  return absl::StrCat(kind, job.value(), "_", index);
}

std::string Nullable(absl::string_view text) {
  return text.empty() ? "null" : QuoteJson(text);
}

double Finite(float logprob) {
  return std::isnan(logprob)
             ? kLeastLogprob
             : std::clamp<double>(logprob, kLeastLogprob, 0x1p60);
}

// In the fewest digits that read back as the same float.
void AppendNumber(float logprob, std::string* out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text),
                                 static_cast<float>(Finite(logprob)));
  const absl::string_view digits(text, end.ptr - text);
  absl::StrAppend(out, digits);
  // Never an integer: some readers tell these apart.
  if (digits.find_first_of(".e") == absl::string_view::npos) {
    absl::StrAppend(out, ".0");
  }
}

json Bytes(absl::string_view bytes) {
  json list = json::array();
  for (const char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return list;
}

json ChatToken(int32_t id, float logprob, TokenTexts* tokens) {
  const TokenTexts::Entry& token = tokens->Get(id);
  return {{"token", token.text},
          {"logprob", Finite(logprob)},
          {"bytes", Bytes(token.bytes)}};
}

std::string ChatLogprobs(const Generation& generation, TokenTexts* tokens) {
  json content = json::array();
  for (const SampledToken& sampled : generation.logprobs) {
    json entry = ChatToken(sampled.token, sampled.logprob, tokens);
    json& top = entry["top_logprobs"] = json::array();
    for (const TokenLogprob& other : sampled.top) {
      top.push_back(ChatToken(other.token, other.logprob, tokens));
    }
    content.push_back(std::move(entry));
  }
  return json{{"content", std::move(content)}, {"refusal", nullptr}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

// The completion's "logprobs", written as text: as a tree it would take ten
// times the memory, and a scored prompt may be long.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(TokenTexts* tokens) : tokens_(tokens) {}

  // The first token of a prompt, which nothing predicts.
  void AddFirst(int32_t token, size_t offset) {
    Begin(tokens_->Get(token).quoted, offset);
    logprobs_ += "null";
    tops_ += "null";
  }

  void Add(int32_t token, float logprob, absl::Span<const TokenLogprob> top,
           size_t offset) {
    // Copies: the next Get may drop them.
    const std::string quoted = tokens_->Get(token).quoted;
    Begin(quoted, offset);
    AppendNumber(logprob, &logprobs_);
    names_.clear();
    tops_ += '{';
    for (const TokenLogprob& other : top) {
      if (other.token >= 0) {
        AddTop(tokens_->Get(other.token).quoted, other.logprob);
      }
    }
    AddTop(quoted, logprob);
    tops_ += '}';
  }

  std::string Finish() && {
    return absl::StrCat("{\"tokens\":[", texts_, "],\"token_logprobs\":[",
                        logprobs_, "],\"top_logprobs\":[", tops_,
                        "],\"text_offset\":[", offsets_, "]}");
  }

 private:
  void Begin(absl::string_view quoted, size_t offset) {
    if (!texts_.empty()) {
      for (std::string* list : {&texts_, &logprobs_, &tops_, &offsets_}) {
        *list += ',';
      }
    }
    absl::StrAppend(&texts_, quoted);
    absl::StrAppend(&offsets_, offset);
  }

  void AddTop(const std::string& quoted, float logprob) {
    // Several tokens may have the same text; the likeliest comes first.
    if (std::find(names_.begin(), names_.end(), quoted) != names_.end()) return;
    if (!names_.empty()) tops_ += ',';
    absl::StrAppend(&tops_, quoted, ":");
    AppendNumber(logprob, &tops_);
    names_.push_back(quoted);
  }

  TokenTexts* const tokens_;
  std::string texts_, logprobs_, tops_, offsets_;
  std::vector<std::string> names_;
};

// Follows tokens through their text, in which the tokens that the tokenizer
// adds do not stand, and a first space maybe neither.
class TextOffsets {
 public:
  // `before`: characters before the text.
  explicit TextOffsets(absl::string_view text, size_t before = 0)
      : text_(text), characters_(before) {}

  // Where the token begins, in characters; one that begins inside a character
  // belongs to that.
  size_t Next(const TokenTexts::Entry& token) {
    const absl::string_view rest = text_.substr(at_);
    const bool inside = !rest.empty() && IsUtf8Continuation(rest.front());
    const size_t offset = characters_ - (inside ? 1 : 0);
    absl::string_view bytes = token.bytes;
    if (at_ == 0 && absl::StartsWith(bytes, " ") &&
        !absl::StartsWith(rest, " ")) {
      bytes.remove_prefix(1);
    }
    if (absl::StartsWith(rest, bytes)) {
      Advance(bytes.size());
    } else if (!token.special) {
      // A text that the tokenizer normalized: as many characters.
      size_t size = 0;
      for (size_t left = CountCharacters(token.text); left > 0; --left) {
        while (size < rest.size() && IsUtf8Continuation(rest[size])) ++size;
        if (size < rest.size()) ++size;
      }
      while (size < rest.size() && IsUtf8Continuation(rest[size])) ++size;
      Advance(size);
    }
    return offset;
  }

 private:
  void Advance(size_t bytes) {
    characters_ += CountCharacters(text_.substr(at_, bytes));
    at_ += bytes;
  }

  const absl::string_view text_;
  size_t at_ = 0;      // in bytes
  size_t characters_;  // that begin before it
};

std::string FormatLogprobs(const ResultHead& head, const Generation& generation,
                           TokenTexts* tokens) {
  CompletionLogprobs out(tokens);
  const TokenScores& scores = generation.prompt_scores;
  assert(head.prompt.empty() ||
         scores.logprobs.size() + 1 == head.prompt.size());
  TextOffsets offsets(head.prompt_text);
  for (size_t i = 0; i < head.prompt.size(); ++i) {
    const size_t offset = offsets.Next(tokens->Get(head.prompt[i]));
    if (i == 0) {
      out.AddFirst(head.prompt[i], offset);
    } else {
      out.Add(head.prompt[i], scores.logprobs[i - 1],
              absl::MakeConstSpan(scores.top)
                  .subspan((i - 1) * scores.num_top, scores.num_top),
              offset);
    }
  }
  TextOffsets answer(generation.text,
                     head.echo ? CountCharacters(head.prompt_text) : 0);
  for (const SampledToken& sampled : generation.logprobs) {
    const size_t offset = answer.Next(tokens->Get(sampled.token));
    out.Add(sampled.token, sampled.logprob, sampled.top, offset);
  }
  return std::move(out).Finish();
}

}  // namespace

ResultHead HeadOf(const Request& request) {
  ResultHead head;
  head.job = request.job;
  head.index = request.index;
  head.custom_id = request.custom_id;
  head.endpoint = request.endpoint;
  head.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  head.max_tokens = request.max_tokens;
  head.max_tokens_by_default = request.max_tokens_by_default;
  head.logprobs = request.sampling.logprobs >= 0;
  head.echo = request.echo;
  head.prompt_text = request.prompt_text;
  if (request.scores_prompt()) head.prompt = request.prompt;
  return head;
}

std::string FormatAnswer(const ResultHead& head, const Generation& generation,
                         absl::string_view model, absl::Time created,
                         TokenTexts* tokens) {
  const bool chat = head.endpoint == Endpoint::kChatCompletions;
  std::string line = absl::StrCat(
      "{\"id\":\"", Name("batch_req_", head.job, head.index),
      "\",\"custom_id\":", Nullable(head.custom_id),
      ",\"response\":{\"status_code\":200,\"request_id\":\"",
      Name("req_", head.job, head.index), "\",\"body\":{\"id\":\"",
      Name(chat ? "chatcmpl-" : "cmpl-", head.job, head.index),
      "\",\"object\":\"", chat ? "chat.completion" : "text_completion",
      "\",\"created\":", absl::ToUnixSeconds(created),
      ",\"model\":", QuoteJson(model), ",\"choices\":[{\"index\":0,");
  if (chat) {
    absl::StrAppend(&line, "\"message\":{\"role\":\"assistant\",\"content\":",
                    QuoteJson(generation.text), "}");
  } else if (head.echo) {
    absl::StrAppend(&line,
                    "\"text\":", QuoteJson(head.prompt_text + generation.text));
  } else {
    absl::StrAppend(&line, "\"text\":", QuoteJson(generation.text));
  }
  absl::StrAppend(&line, ",\"logprobs\":",
                  !head.logprobs ? "null"
                  : chat         ? ChatLogprobs(generation, tokens)
                                 : FormatLogprobs(head, generation, tokens));
  const int64_t total = head.prompt_tokens + generation.generated;
  absl::StrAppend(
      &line, ",\"finish_reason\":\"",
      generation.finish_reason == FinishReason::kStop ? "stop" : "length",
      "\"}],\"usage\":{\"prompt_tokens\":", head.prompt_tokens,
      ",\"completion_tokens\":", generation.generated,
      ",\"total_tokens\":", total, "}}},\"error\":null}");
  return line;
}

std::string FormatError(JobId job, int64_t index, absl::string_view custom_id,
                        const LineError& error) {
  return absl::StrCat(
      "{\"id\":\"", Name("batch_req_", job, index),
      "\",\"custom_id\":", Nullable(custom_id),
      ",\"response\":null,\"error\":{\"code\":", QuoteJson(error.code),
      ",\"message\":",
      QuoteJson(absl::StrCat("line ", index + 1, ": ", error.message)),
      ",\"param\":", Nullable(error.param), ",\"line\":", index + 1, "}}");
}

LineError ErrorOfStatus(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kCancelled) {
    return {"batch_cancelled",
            "the job was cancelled before this request had "
            "its answer",
            ""};
  }
  return {absl::AsciiStrToLower(absl::StatusCodeToString(status.code())),
          std::string(status.message()), ""};
}

}  // namespace sluice
