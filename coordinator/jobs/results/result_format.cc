#include "coordinator/jobs/results/result_format.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "coordinator/jobs/results/embedding_format.h"
#include "coordinator/jobs/results/scores.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr double kMinLogprob = -9999;

std::string Name(absl::string_view kind, const JobId job, int64_t index) {
  return absl::StrCat(kind, job.value(), "_", index);
}

// Returns a string of a line, which must hold nothing that ends one.
std::string Quote(absl::string_view text) {
  return EscapeLineEnds(QuoteJson(text));
}

std::string Nullable(absl::string_view text) {
  return text.empty() ? "null" : Quote(text);
}

double Finite(float logprob) {
  return std::isnan(logprob) ? kMinLogprob
                             : std::clamp<double>(logprob, kMinLogprob, 0x1p60);
}

// Appends the fewest digits that read back as the same float.
void AppendNumber(float logprob, std::string* out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text),
                                 static_cast<float>(Finite(logprob)));
  const absl::string_view digits(text, end.ptr - text);
  absl::StrAppend(out, digits);
  // The number is never an integer, as some readers tell these apart.
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
  return EscapeLineEnds(
      json{{"content", std::move(content)}, {"refusal", nullptr}}.dump(
          -1, ' ', false, json::error_handler_t::replace));
}

// The completion's "logprobs", written as text: as a tree it would take ten
// times the memory, and a scored prompt may be long.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(TokenTexts* tokens) : tokens_(tokens) {}

  // Adds the first token of a prompt, which nothing predicts.
  void AddFirst(int32_t token, size_t offset) {
    Begin(tokens_->Get(token).quoted, offset);
    logprobs_ += "null";
    tops_ += "null";
  }

  void Add(int32_t token, float logprob, absl::Span<const TokenLogprob> top,
           size_t offset) {
    // The text is copied, as the next Get may drop it.
    const std::string quoted = tokens_->Get(token).quoted;
    Begin(quoted, offset);
    AppendNumber(logprob, &logprobs_);
    names_ = {quoted};  // the token's own name is nobody else's
    tops_ += '{';
    bool shown = false;
    for (const TokenLogprob& other : top) {
      if (other.token < 0) continue;
      shown = shown || other.token == token;
      AddTop(other.token == token ? quoted : NewName(other.token),
             other.logprob);
    }
    if (!shown) AddTop(quoted, logprob);
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

  // Returns the token's text, or, as several tokens may have the same, its id
  // in vLLM's form.
  std::string NewName(int32_t token) {
    std::string name = tokens_->Get(token).quoted;
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
      name = absl::StrCat("\"token_id:", token, "\"");
    }
    names_.push_back(name);
    return name;
  }

  void AddTop(const std::string& name, float logprob) {
    if (tops_.back() != '{') tops_ += ',';
    absl::StrAppend(&tops_, name, ":");
    AppendNumber(logprob, &tops_);
  }

  TokenTexts* const tokens_;
  std::string texts_, logprobs_, tops_, offsets_;
  std::vector<std::string> names_;
};

// Follows tokens through their text, which lacks the tokens that the tokenizer
// adds, and maybe a first space.
class TextOffsets {
 public:
  // `before` is the number of characters before the text.
  explicit TextOffsets(absl::string_view text, size_t before = 0)
      : text_(text), characters_(before) {}

  // The token's start in characters; one inside a character has that one's.
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
      // The tokenizer normalized the text: it advances by as many characters.
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

  // Where the text ends, in characters.
  size_t End() const {
    return characters_ + CountCharacters(text_.substr(at_));
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

std::string FormatLogprobs(const Request& request, const Generation& generation,
                           TokenTexts* tokens) {
  CompletionLogprobs out(tokens);
  const TokenScores& scores = generation.prompt_scores;
  absl::Span<const int32_t> prompt;
  if (request.scores_prompt()) prompt = request.prompt;
  assert(prompt.empty() || scores.logprobs.size() + 1 == prompt.size());
  TextOffsets offsets(request.prompt_text);
  for (size_t i = 0; i < prompt.size(); ++i) {
    const size_t offset = offsets.Next(tokens->Get(prompt[i]));
    if (i == 0) {
      out.AddFirst(prompt[i], offset);
    } else {
      out.Add(prompt[i], scores.logprobs[i - 1],
              absl::MakeConstSpan(scores.top)
                  .subspan((i - 1) * scores.num_top, scores.num_top),
              offset);
    }
  }
  TextOffsets answer(generation.text,
                     request.echo ? CountCharacters(request.prompt_text) : 0);
  for (size_t i = 0; i < generation.logprobs.size(); ++i) {
    const SampledToken& sampled = generation.logprobs[i];
    const size_t offset = i < generation.tokens.size()
                              ? answer.Next(tokens->Get(sampled.token))
                              : answer.End();
    out.Add(sampled.token, sampled.logprob, sampled.top, offset);
  }
  return std::move(out).Finish();
}

}  // namespace

namespace {

// The body of an answer of /v1/score or /v1/rerank, as vLLM has them.
std::string FormatScores(const FinishedLine& line, absl::string_view model,
                         absl::Time created) {
  const Request& request = line.front().request;
  const bool reranks = request.endpoint == Endpoint::kRerank;
  const std::vector<double> scores = ScoresOf(line);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (reranks) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (request.score.top_n > 0) {
      order.resize(std::min<size_t>(order.size(), request.score.top_n));
    }
  }
  std::string body = absl::StrCat(
      "{\"id\":\"",
      Name(reranks ? "rerank-" : "score-", request.job, request.index),
      reranks ? "\"" : "\",\"object\":\"list\"",
      ",\"created\":", absl::ToUnixSeconds(created),
      ",\"model\":", Quote(model), reranks ? ",\"results\":[" : ",\"data\":[");
  for (const size_t i : order) {
    if (body.back() != '[') body += ',';
    absl::StrAppend(&body, "{\"index\":", i);
    if (request.score.documents) {
      absl::StrAppend(
          &body, ",\"document\":{\"text\":",
          Quote(line[request.score.queries + i].request.prompt_text), "}");
    }
    body +=
        reranks ? ",\"relevance_score\":" : ",\"object\":\"score\",\"score\":";
    AppendNumber(static_cast<float>(scores[i]), &body);
    body += '}';
  }
  int64_t prompt_tokens = 0;
  for (const FinishedRequest& part : line) {
    prompt_tokens += std::ssize(part.request.prompt);
  }
  absl::StrAppend(&body, "],\"usage\":{\"prompt_tokens\":", prompt_tokens,
                  ",\"total_tokens\":", prompt_tokens, "}}");
  return body;
}

// The log-probability of an answer per token.
double MeanLogprob(const Generation& generation) {
  double sum = 0;
  for (const SampledToken& token : generation.logprobs) {
    sum += Finite(token.logprob);
  }
  return sum / std::max<double>(1, std::ssize(generation.logprobs));
}

// The choices of a completion, in their order: of each prompt's candidates the
// best, the best first and of equally good ones the earlier; or all as they
// are. Those of a beam search come in that order.
std::vector<const FinishedRequest*> ChoicesOf(const FinishedLine& line) {
  const Request& request = line.front().request;
  const auto candidates = static_cast<size_t>(request.candidates);
  std::vector<const FinishedRequest*> choices;
  for (size_t begin = 0; begin < line.size(); begin += candidates) {
    std::vector<std::pair<double, const FinishedRequest*>> ranked;
    for (size_t i = begin; i < std::min(begin + candidates, line.size()); ++i) {
      ranked.emplace_back(MeanLogprob(line[i].generation), &line[i]);
    }
    if (request.candidates > request.choices && !request.beams) {
      std::stable_sort(
          ranked.begin(), ranked.end(),
          [](const auto& a, const auto& b) { return a.first > b.first; });
    }
    if (request.candidates > request.choices) {
      ranked.resize(static_cast<size_t>(request.choices));
    }
    for (const auto& [mean, choice] : ranked) choices.push_back(choice);
  }
  return choices;
}

// One of a completion's choices.
std::string FormatChoice(const FinishedRequest& part, size_t index,
                         TokenTexts* tokens) {
  const Request& request = part.request;
  const Generation& generation = part.generation;
  const bool chat = request.endpoint == Endpoint::kChatCompletions;
  std::string choice = absl::StrCat("{\"index\":", index, ",");
  if (chat) {
    absl::StrAppend(&choice, "\"message\":{\"role\":\"assistant\",\"content\":",
                    Quote(generation.text), "}");
  } else if (request.echo) {
    absl::StrAppend(&choice,
                    "\"text\":", Quote(request.prompt_text + generation.text));
  } else {
    absl::StrAppend(&choice, "\"text\":", Quote(generation.text));
  }
  absl::StrAppend(&choice, ",\"logprobs\":",
                  !request.shows_logprobs() ? "null"
                  : chat                    ? ChatLogprobs(generation, tokens)
                         : FormatLogprobs(request, generation, tokens));
  absl::StrAppend(
      &choice, ",\"finish_reason\":\"",
      generation.finish_reason == FinishReason::kStop ? "stop" : "length",
      "\"}");
  return choice;
}

// The tokens of a line: of each prompt once, and of all that was generated.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t generated = 0;
  int64_t cached = 0;  // of the prompts, what the line found computed
};

Usage UsageOf(const FinishedLine& line) {
  Usage usage;
  int64_t cached = 0;  // of the present prompt, by each of its candidates
  for (const FinishedRequest& part : line) {
    const int64_t own = part.generation.cached_tokens;
    if (part.request.counts_prompt()) {
      usage.prompt_tokens += std::ssize(part.request.prompt);
      usage.cached += own;
      cached = own;
    } else if (own < cached) {
      usage.cached += own - cached;
      cached = own;
    }
    usage.generated += part.generation.generated;
  }
  return usage;
}

// The body of a completion.
std::string FormatCompletion(const FinishedLine& line, absl::string_view model,
                             absl::Time created, TokenTexts* tokens,
                             bool prompt_details) {
  const Request& request = line.front().request;
  const bool chat = request.endpoint == Endpoint::kChatCompletions;
  std::string body = absl::StrCat(
      "{\"id\":\"",
      Name(chat ? "chatcmpl-" : "cmpl-", request.job, request.index),
      "\",\"object\":\"", chat ? "chat.completion" : "text_completion",
      "\",\"created\":", absl::ToUnixSeconds(created),
      ",\"model\":", Quote(model), ",\"choices\":[");
  const std::vector<const FinishedRequest*> choices = ChoicesOf(line);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) body += ',';
    body += FormatChoice(*choices[i], i, tokens);
  }
  const auto [prompt_tokens, generated, cached] = UsageOf(line);
  absl::StrAppend(&body, "],\"usage\":{\"prompt_tokens\":", prompt_tokens,
                  ",\"completion_tokens\":", generated,
                  ",\"total_tokens\":", prompt_tokens + generated);
  if (prompt_details) {
    absl::StrAppend(
        &body, ",\"prompt_tokens_details\":{\"cached_tokens\":", cached, "}");
  }
  body += "}}";
  return body;
}

}  // namespace

std::string FormatAnswer(const FinishedLine& line, absl::string_view model,
                         absl::Time created, TokenTexts* tokens,
                         bool prompt_details) {
  const Request& request = line.front().request;
  return absl::StrCat(
      "{\"id\":\"", Name("batch_req_", request.job, request.index),
      "\",\"custom_id\":", Nullable(request.custom_id),
      ",\"response\":{\"status_code\":200,\"request_id\":\"",
      Name("req_", request.job, request.index), "\",\"body\":",
      request.scores() ? FormatScores(line, model, created)
      : request.pools()
          ? FormatEmbeddings(line, Quote(model))
          : FormatCompletion(line, model, created, tokens, prompt_details),
      "},\"error\":null}");
}

std::string FormatError(JobId job, int64_t index, absl::string_view custom_id,
                        const LineError& error, int http_status, int64_t line) {
  if (line <= 0) line = index + 1;
  const std::string code = Quote(error.code);
  const std::string param = Nullable(error.param);
  const std::string message =
      Quote(absl::StrCat("line ", line, ": ", error.message));
  std::string response = "null";
  if (http_status != 0) {
    response = absl::StrCat(
        "{\"status_code\":", http_status, ",\"request_id\":\"",
        Name("req_", job, index),
        "\",\"body\":{\"error\":{\"message\":", message, ",\"type\":\"",
        http_status < 500 ? "invalid_request_error" : "server_error",
        "\",\"param\":", param, ",\"code\":", code, "}}}");
  }
  return absl::StrCat("{\"id\":\"", Name("batch_req_", job, index),
                      "\",\"custom_id\":", Nullable(custom_id),
                      ",\"response\":", response, ",\"error\":{\"code\":", code,
                      ",\"message\":", message, ",\"param\":", param,
                      ",\"line\":", line, "}}");
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

StoredResult FormatResult(const FinishedLine& line, absl::string_view model,
                          absl::Time created, int64_t max_bytes,
                          TokenTexts* tokens, bool prompt_details) {
  const Request& request = line.front().request;
  StoredResult result;
  result.job = request.job;
  result.index = request.index;
  const Usage usage = UsageOf(line);
  result.prompt_tokens = usage.prompt_tokens;
  const FinishedRequest* failed = nullptr;
  for (const FinishedRequest& part : line) {
    result.max_tokens += MaxTokensOfLine(part.request);
    if (failed == nullptr && !part.generation.status.ok()) failed = &part;
  }
  LineError error;
  int http_status = kRefused;
  if (failed == nullptr) {
    result.line = FormatAnswer(line, model, created, tokens, prompt_details);
    const auto bytes = static_cast<int64_t>(result.line.size());
    if (bytes <= max_bytes) {
      result.generation_tokens = usage.generated;
      result.cached_tokens = usage.cached;
      result.outcome = "stop";
      if (request.scores()) return result;  // each has its one token
      for (const FinishedRequest* const choice : ChoicesOf(line)) {
        if (choice->generation.finish_reason != FinishReason::kLength) continue;
        result.outcome = "length";
        result.cut_by_default |= choice->request.max_tokens_by_default;
      }
      return result;
    }
    error = {"result_too_large",
             absl::StrCat(
                 "the answer takes ", bytes, " bytes, more than the ",
                 max_bytes, " that are kept of one; ask for ",
                 request.pools() ? "fewer inputs in a line, or fewer dimensions"
                 : request.candidates > 1 ? "fewer answers or fewer logprobs"
                                          : "fewer logprobs or cut the prompt"),
             ""};
  } else {
    error = ErrorOfStatus(failed->generation.status);
    http_status = absl::IsCancelled(failed->generation.status) ? 0 : kFailed;
    if (std::ssize(line) > request.candidates && http_status != 0) {
      error.param =
          absl::StrCat(request.scores()  ? "text["
                       : request.pools() ? "input["
                                         : "prompt[",
                       failed->request.part / request.candidates, "]");
      error.message = absl::StrCat("\"", error.param, "\": ", error.message);
    }
  }
  const bool cancelled = http_status == 0;
  result.kind = cancelled ? ResultKind::kCancelled : ResultKind::kError;
  result.line = FormatError(request.job, request.index, request.custom_id,
                            error, http_status, request.line);
  result.outcome = error.code;
  return result;
}

}  // namespace sluice
