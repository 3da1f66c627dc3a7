#include "coordinator/jobs/result_format.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/jobs/message_text.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr double kLeastLogprob = -9999;

std::string Name(absl::string_view kind, const JobId job, int64_t index) {
  return absl::StrCat(kind, job.value(), "_", index);
}

json Nullable(absl::string_view text) {
  return text.empty() ? json(nullptr) : json(std::string(text));
}

// On text that is not UTF-8, U+FFFD.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

double Finite(float logprob) {
  return std::isnan(logprob)
             ? kLeastLogprob
             : std::clamp<double>(logprob, kLeastLogprob, 0x1p60);
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

json ChatLogprobs(const Generation& generation, TokenTexts* tokens) {
  json content = json::array();
  for (const SampledToken& sampled : generation.logprobs) {
    json entry = ChatToken(sampled.token, sampled.logprob, tokens);
    json& top = entry["top_logprobs"] = json::array();
    for (const TokenLogprob& other : sampled.top) {
      top.push_back(ChatToken(other.token, other.logprob, tokens));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json CompletionLogprobs(const ResultHead& head, const Generation& generation,
                        TokenTexts* tokens) {
  json texts = json::array(), logprobs = json::array(), tops = json::array(),
       offsets = json::array();
  size_t offset = head.echo ? CountCharacters(head.prompt_text) : 0;
  for (const SampledToken& sampled : generation.logprobs) {
    const std::string text = tokens->Get(sampled.token).text;
    json top = json::object();
    for (const TokenLogprob& other : sampled.top) {
      // Several tokens may have the same text; the likeliest comes first.
      top.emplace(tokens->Get(other.token).text, Finite(other.logprob));
    }
    top.emplace(text, Finite(sampled.logprob));
    texts.push_back(text);
    logprobs.push_back(Finite(sampled.logprob));
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += CountCharacters(text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

ResultHead HeadOf(const Request& request) {
  ResultHead head;
  head.job = request.job;
  head.index = request.index;
  head.custom_id = request.custom_id;
  head.endpoint = request.endpoint;
  head.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  head.logprobs = request.sampling.logprobs >= 0;
  head.echo = request.echo;
  head.prompt_text = request.prompt_text;
  return head;
}

std::string FormatAnswer(const ResultHead& head, const Generation& generation,
                         absl::string_view model, absl::Time created,
                         TokenTexts* tokens) {
  const bool chat = head.endpoint == Endpoint::kChatCompletions;
  json choice = {{"index", 0}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", generation.text}};
  } else {
    choice["text"] =
        head.echo ? head.prompt_text + generation.text : generation.text;
  }
  if (!head.logprobs) {
    choice["logprobs"] = nullptr;
  } else if (chat) {
    choice["logprobs"] = ChatLogprobs(generation, tokens);
  } else {
    choice["logprobs"] = CompletionLogprobs(head, generation, tokens);
  }
  choice["finish_reason"] =
      generation.finish_reason == FinishReason::kStop ? "stop" : "length";

  json body = {{"id", Name(chat ? "chatcmpl-" : "cmpl-", head.job, head.index)},
               {"object", chat ? "chat.completion" : "text_completion"},
               {"created", absl::ToUnixSeconds(created)},
               {"model", std::string(model)}};
  body["choices"] = json::array();
  body["choices"].push_back(std::move(choice));
  body["usage"] = {{"prompt_tokens", head.prompt_tokens},
                   {"completion_tokens", generation.generated},
                   {"total_tokens", head.prompt_tokens + generation.generated}};

  json line = {{"id", Name("batch_req_", head.job, head.index)},
               {"custom_id", Nullable(head.custom_id)}};
  line["response"] = {{"status_code", 200},
                      {"request_id", Name("req_", head.job, head.index)}};
  line["response"]["body"] = std::move(body);
  line["error"] = nullptr;
  return Dump(line);
}

std::string FormatError(JobId job, int64_t index, absl::string_view custom_id,
                        const LineError& error) {
  const json line = {
      {"id", Name("batch_req_", job, index)},
      {"custom_id", Nullable(custom_id)},
      {"response", nullptr},
      {"error",
       {{"code", error.code},
        {"message", absl::StrCat("line ", index + 1, ": ", error.message)},
        {"param", Nullable(error.param)},
        {"line", index + 1}}}};
  return Dump(line);
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
