// The part of RequestParser that makes prompts of queries and documents.

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/sampling_params.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/request_body.h"
#include "coordinator/jobs/requests/request_parser.h"

namespace sluice {
namespace {

LineError WrongText(std::string code, const std::string& field,
                    absl::string_view what) {
  return {std::move(code), absl::StrCat("\"", field, "\" ", what), field};
}

}  // namespace

absl::StatusOr<ScoreTokens> FindScoreTokens(absl::string_view no_and_yes,
                                            const Tokenizer& tokenizer) {
  ScoreTokens tokens;
  if (no_and_yes.empty()) return tokens;
  const std::vector<std::string> texts = absl::StrSplit(no_and_yes, ',');
  const auto wrong = [&](const auto&... why) {
    return InvalidArgument("--score-tokens ", QuoteForMessage(no_and_yes), ": ",
                           why...,
                           "; name the tokens for no and yes, as \"no,yes\"");
  };
  if (texts.size() != 2 || texts[0] == texts[1]) {
    return wrong("these are not two tokens");
  }
  for (const auto& [text, token] :
       {std::pair(texts[0], &tokens.no), std::pair(texts[1], &tokens.yes)}) {
    const std::optional<int32_t> id = tokenizer.TokenToId(text);
    if (!id) {
      return wrong("the tokenizer has no token ", QuoteForMessage(text));
    }
    *token = *id;
  }
  return tokens;
}

std::optional<LineError> RequestParser::BuildScores(
    RequestBody& body, std::vector<Prompt>* prompts, Request* request) const {
  const bool reranks = request->endpoint == Endpoint::kRerank;
  const std::string query = reranks ? "query" : "text_1";
  const std::string document = reranks ? "documents" : "text_2";
  if (body.queries.empty()) {
    return WrongText("missing_field", query,
                     "is missing; it is a text to compare others with");
  }
  if (body.documents.empty()) {
    return WrongText("missing_field", document,
                     "is missing; these are the texts to compare with it");
  }
  const size_t count = body.documents.size();
  if (body.queries.size() != 1 && (reranks || body.queries.size() != count)) {
    return WrongText(
        "invalid_request", query,
        absl::StrCat("has ", body.queries.size(), " texts and \"", document,
                     "\" ", count,
                     reranks ? "; give one" : "; give one, or as many"));
  }
  if (body.queries.size() + count > kMaxLinePrompts) {
    return WrongText(
        "invalid_request", document,
        absl::StrCat("is a list of ", count,
                     "; with the queries, a line takes at most ",
                     kMaxLinePrompts, ": divide it into several lines"));
  }
  request->score.documents = reranks && body.return_documents;
  request->score.top_n = body.top_n;
  const absl::StatusOr<ScoreKind> kind = FindScoreKind();
  if (!kind.ok()) {
    return LineError{"unsupported", std::string(kind.status().message()), ""};
  }
  request->score.tokens = kind->tokens;
  const auto encode = [&](const std::string& text, const std::string& field,
                          bool several, size_t i,
                          bool special) -> std::optional<LineError> {
    const std::string name = several ? absl::StrCat(field, "[", i, "]") : field;
    if (auto error = CheckLength(text, name)) return error;
    return EncodePrompt(text, name, special, &prompts->emplace_back());
  };
  if (kind->tokens.yes < 0) {
    request->score.queries = static_cast<int32_t>(body.queries.size());
    for (size_t i = 0; i < body.queries.size(); ++i) {
      if (auto error = encode(body.queries[i], query, body.queries.size() > 1,
                              i, true)) {
        return error;
      }
    }
  } else {
    body.max_tokens = 1;
  }
  for (size_t i = 0; i < count; ++i) {
    std::string text = body.documents[i];
    if (kind->tokens.yes >= 0) {
      absl::StatusOr<std::string> pair =
          PairText(*kind, body.queries[body.queries.size() == 1 ? 0 : i], text,
                   body.instruction);
      if (!pair.ok()) {
        return WrongText("invalid_request", document,
                         absl::StrCat("can't be put into the model's chat "
                                      "template: ",
                                      pair.status().message()));
      }
      text = *std::move(pair);
    }
    if (auto error =
            encode(text, document, count > 1, i, kind->tokens.yes < 0)) {
      return error;
    }
    if (request->score.documents) prompts->back().text = body.documents[i];
  }
  return std::nullopt;
}

absl::StatusOr<RequestParser::ScoreKind> RequestParser::FindScoreKind() const {
  ScoreKind kind;
  const ChatTemplate* const chat = options_.chat_template;
  kind.by_template =
      chat != nullptr && chat->Reads("query") && chat->Reads("document");
  if (options_.score_tokens.yes >= 0) {
    kind.tokens = options_.score_tokens;
    return kind;
  }
  const absl::StatusOr<EmbeddingConfig> config =
      options_.model ? options_.model->embedding() : EmbeddingConfig();
  if (!config.ok()) {
    return InvalidArgument("the model can't score texts (",
                           config.status().message(), ")");
  }
  if (config->logit_score) {
    if (!config->logit_score->no || !kind.by_template) {
      return InvalidArgument(
          "the model's LogitScore module ",
          kind.by_template
              ? "names no false_token_id"
              : "comes without a chat template for \"query\" and \"document\"",
          "; start with --score-tokens NO,YES to score as Qwen3-Reranker does");
    }
    kind.tokens = {config->logit_score->yes, *config->logit_score->no};
    return kind;
  }
  if (config->from_files) return kind;
  return InvalidArgument(
      "the model's files do not say how it scores texts; if it is a reranker "
      "that answers with a token, start with --score-tokens NO,YES (\"no,yes\" "
      "for Qwen3-Reranker); a model for embeddings has a modules.json");
}

absl::StatusOr<std::string> RequestParser::PairText(
    const ScoreKind& kind, const std::string& query,
    const std::string& document,
    const std::optional<std::string>& instruction) const {
  if (!kind.by_template) {
    // Qwen3-Reranker's form, as its model card has it.
    return absl::StrCat(
        "<|im_start|>system\nJudge whether the Document meets the requirements "
        "based on the Query and the Instruct provided. Note that the answer "
        "can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
        "<Instruct>: ",
        instruction.value_or("Given a web search query, retrieve relevant "
                             "passages that answer the query"),
        "\n<Query>: ", query, "\n<Document>: ", document,
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  }
  using json = nlohmann::ordered_json;
  json variables = json::object();
  for (const auto& [name, token] : options_.tokenizer->special_tokens()) {
    variables[name] = token;
  }
  json& messages = variables["messages"] = json::array();
  if (instruction) {
    messages.push_back({{"role", "system"}, {"content", *instruction}});
  }
  messages.push_back({{"role", "query"}, {"content", query}});
  messages.push_back({{"role", "document"}, {"content", document}});
  variables["add_generation_prompt"] = true;
  return options_.chat_template->Render(variables);
}

// One token is sampled, and the log-probabilities of the two are told with it.
void RequestParser::SetScoring(Request* request) const {
  const ScoreTokens tokens = request->score.tokens;
  request->sampling = SamplingParams();
  request->sampling.logit_bias = {{tokens.yes, kToldTokenBias},
                                  {tokens.no, kToldTokenBias}};
  request->sampling.logprobs = 2;
  request->ignore_eos = true;
}

}  // namespace sluice
