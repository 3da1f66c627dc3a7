#include "coordinator/jobs/requests/request_codec.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

using json = nlohmann::json;

constexpr std::pair<Endpoint, const char*> kEndpoints[] = {
    {Endpoint::kChatCompletions, "chat"},
    {Endpoint::kCompletions, "completions"},
    {Endpoint::kEmbeddings, "embeddings"},
    {Endpoint::kScore, "score"},
    {Endpoint::kRerank, "rerank"},
};

// The text has the float as the equal double, which preserves it exactly.
void Put(json* params, const char* name, float value, float otherwise) {
  if (value != otherwise) (*params)[name] = value;
}

void Get(const json& params, const char* name, float* value) {
  if (const auto it = params.find(name); it != params.end()) {
    *value = it->get<float>();
  }
}

}  // namespace

std::string EncodeRequestParams(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  const SamplingParams otherwise;
  json params = {{"max_tokens", request.max_tokens}, {"seed", sampling.seed}};
  for (const auto& [endpoint, name] : kEndpoints) {
    if (request.endpoint == endpoint) params["endpoint"] = name;
  }
  Put(&params, "temperature", sampling.temperature, otherwise.temperature);
  Put(&params, "top_p", sampling.top_p, otherwise.top_p);
  Put(&params, "min_p", sampling.min_p, otherwise.min_p);
  Put(&params, "repetition_penalty", sampling.repetition_penalty,
      otherwise.repetition_penalty);
  Put(&params, "presence_penalty", sampling.presence_penalty,
      otherwise.presence_penalty);
  Put(&params, "frequency_penalty", sampling.frequency_penalty,
      otherwise.frequency_penalty);
  if (sampling.top_k != 0) params["top_k"] = sampling.top_k;
  if (sampling.logprobs >= 0) params["logprobs"] = sampling.logprobs;
  if (!sampling.logit_bias.empty()) params["logit_bias"] = sampling.logit_bias;
  if (!request.stop.empty()) params["stop"] = request.stop;
  if (!request.stop_tokens.empty()) {
    params["stop_tokens"] = request.stop_tokens;
  }
  if (request.max_tokens_by_default) params["max_tokens_by_default"] = true;
  if (request.ignore_eos) params["ignore_eos"] = true;
  if (request.echo) params["echo"] = request.prompt_text;
  if (request.line > 0) params["line"] = request.line;
  if (request.pools()) {
    params["pooling"] = static_cast<int>(request.pooling);
    params["normalize"] = request.embedding.normalize;
    params["dimensions"] = request.embedding.dimensions;
    params["base64"] = request.embedding.base64;
  }
  if (request.scores()) {
    const ScoreParams& score = request.score;
    params["score"] = {score.tokens.yes, score.tokens.no, score.queries,
                       score.top_n, score.documents};
    if (score.documents) params["document"] = request.prompt_text;
  }
  if (request.candidates > 1) {
    params["choices"] = request.choices;
    params["candidates"] = request.candidates;
    if (request.hides_logprobs) params["hides_logprobs"] = true;
    if (request.beams) {
      params["beams"] = {request.beams->length_penalty,
                         static_cast<int>(request.beams->early_stopping)};
    }
  }
  for (const RequestPart& part : request.parts) {
    json entry = {part.prompt_tokens, part.max_tokens, part.seed};
    if (request.echo || request.score.documents) {
      entry.push_back(part.prompt_text);
    }
    params["parts"].push_back(std::move(entry));
  }
  return params.dump();
}

absl::Status DecodeRequestParams(absl::string_view text, Request* request) {
  try {
    const json params = json::parse(text.begin(), text.end());
    SamplingParams& sampling = request->sampling;
    const std::string name = params.at("endpoint");
    const auto* const endpoint =
        std::find_if(std::begin(kEndpoints), std::end(kEndpoints),
                     [&](const auto& entry) { return entry.second == name; });
    if (endpoint == std::end(kEndpoints)) {
      return absl::DataLossError("unknown endpoint in stored parameters");
    }
    request->endpoint = endpoint->first;
    request->max_tokens = params.at("max_tokens");
    request->max_tokens_by_default =
        params.value("max_tokens_by_default", false);
    sampling.seed = params.at("seed");
    Get(params, "temperature", &sampling.temperature);
    Get(params, "top_p", &sampling.top_p);
    Get(params, "min_p", &sampling.min_p);
    Get(params, "repetition_penalty", &sampling.repetition_penalty);
    Get(params, "presence_penalty", &sampling.presence_penalty);
    Get(params, "frequency_penalty", &sampling.frequency_penalty);
    sampling.top_k = params.value("top_k", 0);
    sampling.logprobs = params.value("logprobs", -1);
    if (params.contains("logit_bias")) {
      params["logit_bias"].get_to(sampling.logit_bias);
    }
    if (params.contains("stop")) params["stop"].get_to(request->stop);
    if (params.contains("stop_tokens")) {
      params["stop_tokens"].get_to(request->stop_tokens);
    }
    request->ignore_eos = params.value("ignore_eos", false);
    request->line = params.value("line", int64_t{0});
    if (params.contains("echo")) {
      request->echo = true;
      params["echo"].get_to(request->prompt_text);
    }
    if (params.contains("pooling")) {
      const int pooling = params.at("pooling");
      if (pooling < 0 || pooling > static_cast<int>(kLastPooling)) {
        return absl::DataLossError("unknown pooling in stored parameters");
      }
      request->pooling = static_cast<Pooling>(pooling);
      params.at("normalize").get_to(request->embedding.normalize);
      params.at("dimensions").get_to(request->embedding.dimensions);
      params.at("base64").get_to(request->embedding.base64);
    }
    if (request->scores()) {
      const json& entry = params.at("score");
      ScoreParams& score = request->score;
      entry.at(0).get_to(score.tokens.yes);
      entry.at(1).get_to(score.tokens.no);
      entry.at(2).get_to(score.queries);
      entry.at(3).get_to(score.top_n);
      entry.at(4).get_to(score.documents);
      if (score.documents) {
        params.at("document").get_to(request->prompt_text);
      }
    }
    const int32_t choices = params.value("choices", 1);
    const int32_t candidates = params.value("candidates", 1);
    request->hides_logprobs = params.value("hides_logprobs", false);
    if (const auto it = params.find("beams"); it != params.end()) {
      const int stopping = it->at(1);
      if (stopping < 0 || stopping > static_cast<int>(EarlyStopping::kNever)) {
        return absl::DataLossError("unknown beams in stored parameters");
      }
      request->beams = {it->at(0).get<double>(),
                        static_cast<EarlyStopping>(stopping)};
    }
    for (const json& entry : params.value("parts", json::array())) {
      RequestPart& part = request->parts.emplace_back();
      entry.at(0).get_to(part.prompt_tokens);
      entry.at(1).get_to(part.max_tokens);
      entry.at(2).get_to(part.seed);
      if (request->echo || request->score.documents) {
        entry.at(3).get_to(part.prompt_text);
      }
    }
    if (choices < 1 || candidates < choices ||
        std::ssize(request->parts) % candidates != 0) {
      return absl::DataLossError("impossible choices in stored parameters");
    }
    request->choices = choices;
    request->candidates = candidates;
  } catch (const json::exception& error) {
    return DataLoss("stored parameters are damaged: ",
                    JsonErrorText(error.what()));
  }
  return absl::OkStatus();
}

}  // namespace sluice
