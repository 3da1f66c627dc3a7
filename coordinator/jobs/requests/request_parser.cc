#include "coordinator/jobs/requests/request_parser.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "coordinator/jobs/requests/json_line.h"
#include "coordinator/jobs/requests/request_body.h"
#include "coordinator/jobs/requests/request_messages.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr char kChatUrl[] = "/v1/chat/completions";
constexpr char kCompletionsUrl[] = "/v1/completions";
constexpr char kEmbeddingsUrl[] = "/v1/embeddings";
constexpr std::pair<const char*, Endpoint> kEndpoints[] = {
    {kChatUrl, Endpoint::kChatCompletions},
    {kCompletionsUrl, Endpoint::kCompletions},
    {kEmbeddingsUrl, Endpoint::kEmbeddings},
    {"/v1/score", Endpoint::kScore},
    {"/v1/rerank", Endpoint::kRerank},
};

// Returns the urls for messages.
std::string Urls() {
  std::vector<std::string> urls;
  for (const auto& [url, endpoint] : kEndpoints) {
    urls.push_back(absl::StrCat("\"", url, "\""));
  }
  const std::string last = urls.back();
  urls.pop_back();
  return absl::StrCat(absl::StrJoin(urls, ", "), " or ", last);
}

// Returns a url as OpenAI writes it: clients have it with or without "/v1", and
// with slashes at its end.
std::string FullUrl(absl::string_view url) {
  while (absl::ConsumeSuffix(&url, "/")) {
  }
  absl::ConsumePrefix(&url, "/");
  absl::ConsumePrefix(&url, "v1/");
  return absl::StrCat("/v1/", url);
}

constexpr size_t kMaxCustomIdBytes = 512;
// Bytes of a long text that are tokenized per position of the model.
constexpr size_t kBytesToLookAt = 32;
constexpr size_t kMaxUtf8Bytes = 4;
// Numbers of a line's embeddings, which take some 13 bytes each as text.
constexpr int64_t kMaxLineValues = 8 << 20;

LineError Invalid(std::string param, std::string message) {
  return {"invalid_request", std::move(message), std::move(param)};
}

LineError Missing(std::string field, absl::string_view what) {
  std::string message = absl::StrCat("\"", field, "\" is missing; ", what);
  return {"missing_field", std::move(message), std::move(field)};
}

bool IsBlank(absl::string_view text) {
  return text.find_first_not_of(" \t\r\v\f") == absl::string_view::npos;
}

LineError EmptyLine() {
  return {"empty_line", "the line is empty; remove it", ""};
}

// Returns the messages of a prompt that is a user's.
json MessagesOf(json prompt, const v1::RequestDefaults& defaults) {
  json messages = json::array();
  if (defaults.has_system()) {
    messages.push_back({{"role", "system"}, {"content", defaults.system()}});
  }
  messages.push_back({{"role", "user"}, {"content", std::move(prompt)}});
  return messages;
}

// Reads the parts of a batch line around its body.
std::optional<LineError> ReadEnvelope(const json& line, Endpoint* endpoint,
                                      const json** body) {
  for (const auto& [name, value] : line.items()) {
    if (name != "custom_id" && name != "method" && name != "url" &&
        name != "body") {
      return LineError{
          "unknown_field",
          absl::StrCat(QuoteForMessage(name),
                       " does not belong beside custom_id, method, url and "
                       "body; put parameters into the body"),
          name.size() <= 64 ? name : ""};
    }
  }
  if (!line.contains("custom_id")) {
    return Missing("custom_id", "give each line a string of its own");
  }
  const auto method = line.find("method");
  if (method == line.end()) return Missing("method", "it must be \"POST\"");
  if (*method != "POST") {
    return Invalid("method", absl::StrCat("\"method\" must be \"POST\", got ",
                                          DescribeJson(*method)));
  }
  const auto url = line.find("url");
  if (url == line.end()) {
    return Missing("url", absl::StrCat("it must be ", Urls()));
  }
  const std::string full =
      url->is_string() ? FullUrl(url->get_ref<const std::string&>()) : "";
  const auto* const known =
      std::find_if(std::begin(kEndpoints), std::end(kEndpoints),
                   [&](const auto& entry) { return full == entry.first; });
  if (known == std::end(kEndpoints)) {
    return LineError{
        "unknown_endpoint",
        absl::StrCat("\"url\" must be ", Urls(), ", got ", DescribeJson(*url)),
        "url"};
  }
  *endpoint = known->second;
  const auto it = line.find("body");
  if (it == line.end()) {
    return Missing("body", "it is an object with the request's fields");
  }
  if (!it->is_object()) {
    return Invalid("body", absl::StrCat("\"body\" must be an object, got ",
                                        DescribeJson(*it)));
  }
  *body = &*it;
  return std::nullopt;
}

}  // namespace

RequestParser::RequestParser(Options options, v1::RequestDefaults defaults)
    : options_(std::move(options)),
      defaults_(std::move(defaults)),
      generation_(options_.model ? options_.model->generation_defaults()
                                 : GenerationDefaults()),
      vocab_size_(options_.model ? options_.model->spec().vocab_size
                                 : options_.tokenizer->vocab_size()) {}

RequestParser::Line RequestParser::ParseJson(absl::string_view text,
                                             int64_t index) const {
  Line line;
  line.request.index = index;
  line.error = Parse(text, &line);
  return line;
}

RequestParser::Line RequestParser::ParseText(absl::string_view text,
                                             int64_t index) const {
  return ParsePrompt(text, absl::StrCat("line-", index + 1), index);
}

RequestParser::Line RequestParser::ParsePrompt(absl::string_view text,
                                               std::string custom_id,
                                               int64_t index) const {
  Line line;
  line.custom_id = std::move(custom_id);
  line.request.index = index;
  line.request.custom_id = line.custom_id;
  line.request.endpoint = Endpoint::kCompletions;
  if (IsBlank(text)) {
    line.error = EmptyLine();
    return line;
  }
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    line.error = Invalid("", absl::StrCat("a NUL byte at byte ", nul + 1,
                                          "; is this a text file?"));
    return line;
  }
  if (const auto at = FindInvalidUtf8(text)) {
    line.error = LineError{"invalid_utf8",
                           absl::StrCat("not valid UTF-8 at byte ", *at + 1,
                                        "; save the file as UTF-8"),
                           ""};
    return line;
  }
  RequestBody body;
  if (chats()) {
    line.request.endpoint = Endpoint::kChatCompletions;
    body.messages = MessagesOf(std::string(text), defaults_);
  } else {
    body.prompt = std::string(text);
  }
  line.error = Build(body, &line.request);
  return line;
}

std::optional<LineError> RequestParser::Parse(absl::string_view text,
                                              Line* line) const {
  if (IsBlank(text)) return EmptyLine();
  auto parsed = ParseJsonLine(text);
  if (auto* error = std::get_if<LineError>(&parsed)) return std::move(*error);
  json& object = std::get<json>(parsed);
  if (!object.is_object()) {
    return Invalid("", absl::StrCat("a line must be a JSON object, got ",
                                    DescribeJson(object)));
  }

  // The custom_id comes first, so that even errors of a bad line carry it.
  const auto custom_id = object.find("custom_id");
  if (custom_id != object.end()) {
    if (!custom_id->is_string()) {
      return Invalid("custom_id", absl::StrCat("\"custom_id\" must be a "
                                               "string, got ",
                                               DescribeJson(*custom_id)));
    }
    const std::string& id = custom_id->get_ref<const std::string&>();
    if (id.empty() || id.size() > kMaxCustomIdBytes) {
      return Invalid("custom_id", absl::StrCat("\"custom_id\" must have 1 to ",
                                               kMaxCustomIdBytes,
                                               " bytes, got ", id.size()));
    }
    line->custom_id = id;
  }

  Endpoint endpoint = Endpoint::kCompletions;
  const json* fields = &object;
  if (object.contains("body") || object.contains("url") ||
      object.contains("method")) {
    if (auto error = ReadEnvelope(object, &endpoint, &fields)) return error;
  } else {
    const bool chat = object.contains("messages");
    if (chat == object.contains("prompt")) {
      return chat ? Invalid("messages",
                            "both \"messages\" and \"prompt\" are there; give "
                            "only one")
                  : Missing("prompt",
                            "a line is a batch request (custom_id, method, "
                            "url, body) or has \"prompt\" or \"messages\"");
    }
    if (!chat && chats()) {
      const json& prompt = object["prompt"];
      if (!prompt.is_string()) {
        return Invalid(
            "prompt", absl::StrCat("\"prompt\" must be a string to be put into "
                                   "the chat template (--chat), got ",
                                   DescribeJson(prompt)));
      }
      json messages = MessagesOf(prompt, defaults_);
      object.erase("prompt");
      object["messages"] = std::move(messages);
    }
    if (object.contains("messages")) endpoint = Endpoint::kChatCompletions;
    if (line->custom_id.empty()) {
      line->custom_id = absl::StrCat("line-", line->request.index + 1);
    }
    object.erase("custom_id");
  }
  line->request.custom_id = line->custom_id;
  line->request.endpoint = endpoint;
  RequestBody body;
  if (auto error = ReadRequestBody(*fields, endpoint, vocab_size_, &body)) {
    return error;
  }
  return Build(body, &line->request);
}

std::optional<LineError> RequestParser::Build(RequestBody& body,
                                              Request* request) const {
  if (body.model && *body.model != options_.served_model) {
    return LineError{"unknown_model",
                     absl::StrCat("\"model\" is ", QuoteForMessage(*body.model),
                                  ", but the model here is called ",
                                  QuoteForMessage(options_.served_model),
                                  "; name that one, leave \"model\" out, or "
                                  "start with --served-model-name ",
                                  QuoteForMessage(*body.model)),
                     "model"};
  }
  std::vector<Prompt> prompts;
  auto error =
      request->endpoint == Endpoint::kChatCompletions
          ? BuildChatPrompt(body, &prompts)
      : request->scores() ? BuildScores(body, &prompts, request)
      : request->endpoint == Endpoint::kEmbeddings
          ? BuildPrompts(body, "input", "embeddings need it", &prompts)
          : BuildPrompts(body, "prompt", "completions need one", &prompts);
  if (error) return error;
  const bool embeds = request->scores()
                          ? request->score.tokens.yes < 0
                          : request->endpoint == Endpoint::kEmbeddings;
  if (!embeds && options_.model && options_.model->spec().headless) {
    return LineError{
        "unsupported",
        absl::StrCat("the model's files have no tensor ",
                     options_.model->MissingHead(),
                     ", so that it makes embeddings only; ask for "
                     "\"/v1/embeddings\", or get the model with its head"),
        ""};
  }
  if (body.truncate_prompt_tokens != 0) {
    if ((error = TruncatePrompts(body, embeds, &prompts))) return error;
  }
  if (embeds) {
    if ((error = SetEmbedding(body, prompts, request))) return error;
  } else if (request->scores()) {
    SetScoring(request);
  } else {
    if ((error = SetStops(body, request))) return error;
    SetSampling(body, request);
    if ((error = SetChoices(body, prompts, request))) return error;
    request->ignore_eos = body.ignore_eos.value_or(defaults_.ignore_eos());
    request->echo = body.echo;
  }
  return AddPrompts(body, std::move(prompts), request);
}

int32_t RequestParser::EmbeddingLimit(const EmbeddingConfig& config) const {
  return config.max_tokens > 0
             ? std::min(config.max_tokens, options_.max_model_len)
             : options_.max_model_len;
}

std::optional<LineError> RequestParser::TruncatePrompts(
    const RequestBody& body, bool embeds, std::vector<Prompt>* prompts) const {
  int64_t limit = options_.max_model_len;
  // An error of the files is told by SetEmbedding.
  if (embeds && options_.model && options_.model->embedding().ok()) {
    limit = EmbeddingLimit(*options_.model->embedding());
  }
  int64_t kept = body.truncate_prompt_tokens;
  if (kept > limit) {
    return Invalid("truncate_prompt_tokens",
                   absl::StrCat("\"truncate_prompt_tokens\" is ", kept,
                                ", but the model takes ", limit,
                                " tokens; give at most as many, or -1"));
  }
  if (kept == RequestBody::kKeepWhatFits) {
    int64_t room = 0;  // for what is generated
    if (!embeds) {
      room = body.max_tokens.value_or(
          defaults_.has_max_tokens() ? defaults_.max_tokens() : 1);
    }
    kept = std::max<int64_t>(1, limit - room);
  }
  for (Prompt& prompt : *prompts) {
    if (std::ssize(prompt.tokens) <= kept) continue;
    prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - kept);
    if (body.echo) {
      prompt.text = options_.tokenizer->Decode(prompt.tokens, true);
    }
  }
  return std::nullopt;
}

std::optional<LineError> RequestParser::SetEmbedding(
    const RequestBody& body, const std::vector<Prompt>& prompts,
    Request* request) const {
  const absl::StatusOr<EmbeddingConfig> config =
      options_.model ? options_.model->embedding() : EmbeddingConfig();
  if (!config.ok()) {
    return LineError{"unsupported",
                     absl::StrCat("the model's embeddings can't be made (",
                                  config.status().message(), ")"),
                     "input"};
  }
  const int32_t hidden =
      options_.model ? options_.model->spec().hidden_size : INT32_MAX;
  if (body.dimensions > hidden) {
    return Invalid("dimensions",
                   absl::StrCat("\"dimensions\" is ", body.dimensions,
                                ", but the model's embeddings have ", hidden,
                                "; ask for at most as many"));
  }
  const int64_t values = body.dimensions > 0 ? body.dimensions : hidden;
  if (options_.model && std::ssize(prompts) * values > kMaxLineValues) {
    return Invalid("input",
                   absl::StrCat("\"input\" has ", prompts.size(),
                                " texts, whose embeddings of ", values,
                                " numbers are more than the ", kMaxLineValues,
                                " that a line may have; divide it into several "
                                "lines, or ask for fewer \"dimensions\""));
  }
  const int32_t limit = EmbeddingLimit(*config);
  for (const Prompt& prompt : prompts) {
    if (std::ssize(prompt.tokens) <= limit) continue;
    return LineError{
        "prompt_too_long",
        absl::StrCat("too long a text: \"", prompt.field, "\" has ",
                     prompt.tokens.size(), " tokens, and the model takes ",
                     limit,
                     limit < options_.max_model_len
                         ? " (max_seq_length of sentence_bert_config.json)"
                         : "",
                     "; shorten it"),
        prompt.field};
  }
  request->pooling = config->pooling;
  // Cosines are of normalized vectors.
  request->embedding = {config->normalize || request->scores(), body.dimensions,
                        body.base64};
  return std::nullopt;
}

// A text that is far too long is not tokenized to its end, which takes some
// twenty times its size: its beginning shows that it does not fit. The cut
// changes some tokens at the end, not their number by a factor of two.
std::optional<LineError> RequestParser::CheckLength(
    absl::string_view text, absl::string_view field) const {
  const size_t enough =
      static_cast<size_t>(options_.max_model_len) * kBytesToLookAt;
  if (text.size() <= enough + kMaxUtf8Bytes) return std::nullopt;
  size_t end = enough;
  while (IsUtf8Continuation(text[end])) ++end;  // within a character
  const auto ids = options_.tokenizer->Encode(text.substr(0, end), false);
  if (!ids.ok() ||
      ids->size() / 2 <= static_cast<size_t>(options_.max_model_len)) {
    return std::nullopt;
  }
  return LineError{
      "prompt_too_long",
      absl::StrCat("too long a prompt: it has more than ", ids->size() / 2,
                   " tokens, and the model takes ", options_.max_model_len,
                   "; shorten it"),
      std::string(field)};
}

std::optional<LineError> RequestParser::EncodePrompt(absl::string_view text,
                                                     absl::string_view field,
                                                     bool add_special_tokens,
                                                     Prompt* prompt) const {
  auto ids = options_.tokenizer->Encode(text, add_special_tokens);
  if (!ids.ok()) {
    return Invalid(std::string(field),
                   absl::StrCat("\"", field, "\" cannot be tokenized: ",
                                ids.status().message()));
  }
  prompt->field = std::string(field);
  prompt->tokens = *std::move(ids);
  for (const int32_t id : prompt->tokens) {
    if (id < 0 || id >= vocab_size_) {
      return Invalid(
          std::string(field),
          absl::StrCat("the tokenizer gives token ", id, " for \"", field,
                       "\", but the model has only tokens 0 to ",
                       vocab_size_ - 1));
    }
  }
  if (prompt->tokens.empty()) {
    return Invalid(std::string(field),
                   absl::StrCat("\"", field, "\" is empty: it gives no token"));
  }
  return std::nullopt;
}

std::optional<LineError> RequestParser::BuildPrompts(
    const RequestBody& body, const std::string& field, absl::string_view need,
    std::vector<Prompt>* prompts) const {
  const json& all = body.prompt;
  if (all.is_null()) return Missing(field, need);
  // A list of numbers is one prompt.
  const bool several =
      all.is_array() && !all.empty() && !all.front().is_number();
  if (!several) {
    return BuildPrompt(body, all, field, &prompts->emplace_back());
  }
  if (all.size() > kMaxLinePrompts) {
    return Invalid(field,
                   absl::StrCat("\"", field, "\" is a list of ", all.size(),
                                "; a line takes at most ", kMaxLinePrompts,
                                ": divide it into several lines"));
  }
  for (const json& prompt : all) {
    const std::string name =
        all.size() == 1 ? field
                        : absl::StrCat(field, "[", prompts->size(), "]");
    if (auto error =
            BuildPrompt(body, prompt, name, &prompts->emplace_back())) {
      return error;
    }
  }
  return std::nullopt;
}

std::optional<LineError> RequestParser::BuildPrompt(const RequestBody& body,
                                                    const json& prompt,
                                                    const std::string& field,
                                                    Prompt* out) const {
  constexpr absl::string_view kMustBe =
      "must be a string, a list of token ids, or a list of these";
  out->field = field;
  if (prompt.is_string()) {
    const std::string& text = prompt.get_ref<const std::string&>();
    if (body.echo) out->text = text;
    if (body.truncate_prompt_tokens == 0) {
      if (auto error = CheckLength(text, field)) return error;
    }
    return EncodePrompt(text, field, true, out);
  }
  if (!prompt.is_array()) {
    return Invalid(field, absl::StrCat("\"", field, "\" ", kMustBe, ", got ",
                                       DescribeJson(prompt)));
  }
  if (prompt.empty()) {
    return Invalid(field,
                   absl::StrCat("\"", field, "\" is empty: it has no token"));
  }
  out->tokens.reserve(prompt.size());
  for (const json& id : prompt) {
    if (!id.is_number_integer()) {
      return Invalid(
          field, absl::StrCat("\"", field, "\" ", kMustBe, ", got a list with ",
                              DescribeJson(id)));
    }
    const bool huge =
        id.is_number_unsigned() && id.get<uint64_t>() > 0x7fffffffu;
    if (huge || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size_) {
      return Invalid(
          field, absl::StrCat("\"", field, "\" has the token id ", id.dump(),
                              "; ids go from 0 to ", vocab_size_ - 1));
    }
    out->tokens.push_back(id.get<int32_t>());
  }
  if (body.echo) out->text = options_.tokenizer->Decode(out->tokens, true);
  return std::nullopt;
}

std::optional<LineError> RequestParser::BuildChatPrompt(
    RequestBody& body, std::vector<Prompt>* prompts) const {
  if (body.messages.is_null()) {
    return Missing("messages", "chat completions need them");
  }
  if (options_.chat_template == nullptr) {
    return LineError{
        "unsupported",
        absl::StrCat(options_.no_chat_template.empty()
                         ? "the model has no chat template"
                         : options_.no_chat_template,
                     ", so \"messages\" cannot be used; use /v1/completions "
                     "with \"prompt\""),
        "messages"};
  }
  json& variables = body.template_variables;
  const auto given = [&](const char* name) {
    const auto it = variables.find(name);
    return it != variables.end() && !it->empty();
  };
  absl::StatusOr<const ChatTemplate*> chosen = options_.chat_template;
  if (given("tools")) chosen = options_.chat_template->ForTools();
  if (!chosen.ok()) {
    return LineError{
        "unsupported",
        absl::StrCat("the model's chat template for tools can't be used (",
                     chosen.status().message(),
                     "), so \"tools\" cannot be given; leave them out"),
        "tools"};
  }
  const ChatTemplate& chat_template = **chosen;
  // The model would never see variables that the template does not read.
  for (const char* name : {"tools", "documents", "reasoning_effort"}) {
    if (given(name) && !chat_template.Reads(name)) {
      return LineError{"unsupported",
                       absl::StrCat("\"", name,
                                    "\" is nothing that the model's chat "
                                    "template knows; leave it out"),
                       name};
    }
  }
  auto messages = ReadMessages(body.messages, chat_template);
  if (auto* error = std::get_if<LineError>(&messages)) {
    return std::move(*error);
  }
  for (const auto& [name, token] : options_.tokenizer->special_tokens()) {
    if (!variables.contains(name)) variables[name] = token;
  }
  variables["messages"] = std::move(std::get<json>(messages));
  variables["add_generation_prompt"] = body.add_generation_prompt;
  auto text = chat_template.Render(variables);
  if (!text.ok()) {
    return Invalid("messages",
                   absl::StrCat("the model's chat template refuses these "
                                "\"messages\": ",
                                text.status().message()));
  }
  if (auto error = CheckLength(*text, "messages")) return error;
  return EncodePrompt(*text, "messages", false, &prompts->emplace_back());
}

std::optional<LineError> RequestParser::SetMaxTokens(const RequestBody& body,
                                                     const Prompt& of,
                                                     Request* request,
                                                     RequestPart* part) const {
  const auto prompt = static_cast<int64_t>(of.tokens.size());
  const int64_t room = options_.max_model_len - prompt;
  const int64_t min = body.max_tokens == 0 ? 0 : 1;
  // Describes the limit of positions.
  const auto limit = [this]() -> std::string {
    if (options_.model == nullptr) return "";
    const int32_t max_positions = options_.model->spec().max_positions;
    return options_.max_model_len < max_positions
               ? absl::StrCat(" (--max-model-len; up to ", max_positions,
                              " is possible)")
               : absl::StrCat(" (it ", options_.model->DescribePositions(),
                              ")");
  };
  if (room < min) {
    return LineError{
        "prompt_too_long",
        absl::StrCat("too long a prompt: it has ", prompt,
                     " tokens, and the model takes ", options_.max_model_len,
                     min > 0 ? " with at least 1 to generate" : "",
                     "; shorten it", limit()),
        of.field};
  }
  if (body.max_tokens && *body.max_tokens > room) {
    return Invalid(
        "max_tokens",
        absl::StrCat("\"max_tokens\" is ", *body.max_tokens,
                     ", too many: the model takes ", options_.max_model_len,
                     " tokens, and the prompt has ", prompt,
                     "; ask for at most ", room, limit()));
  }
  int64_t wanted = options_.default_max_tokens;
  if (generation_.max_length) wanted = *generation_.max_length - prompt;
  if (generation_.max_new_tokens) wanted = *generation_.max_new_tokens;
  if (defaults_.has_max_tokens()) wanted = defaults_.max_tokens();
  if (body.max_tokens) wanted = *body.max_tokens;
  part->max_tokens =
      static_cast<int32_t>(std::clamp<int64_t>(wanted, min, room));
  // The default does not cut an answer if the context ends sooner; and a
  // model's length that includes the prompt is not the user's number.
  request->max_tokens_by_default =
      (request->parts.empty() || request->max_tokens_by_default) &&
      !body.max_tokens && !defaults_.has_max_tokens() && wanted <= room &&
      (generation_.max_new_tokens || !generation_.max_length);
  return std::nullopt;
}

std::optional<LineError> RequestParser::SetStops(RequestBody& body,
                                                 Request* request) const {
  const Tokenizer& tokenizer = *options_.tokenizer;
  for (std::string& stop : body.stop) {
    const std::optional<int32_t> token = tokenizer.TokenToId(stop);
    if (token && tokenizer.IsSpecial(*token)) {
      request->stop_tokens.push_back(*token);
      continue;
    }
    const auto ids = tokenizer.Encode(stop, /*add_special_tokens=*/false);
    for (const int32_t id : ids.ok() ? *ids : std::vector<int32_t>()) {
      const std::string special = tokenizer.IdToToken(id);
      if (!tokenizer.IsSpecial(id) || !absl::StrContains(stop, special)) {
        continue;
      }
      return LineError{
          "unsupported",
          absl::StrCat("\"stop\" has ", QuoteForMessage(stop),
                       ", which is the special token ",
                       QuoteForMessage(special),
                       " among other text; special tokens are no part of an "
                       "answer's text, so it would never be found: give ",
                       QuoteForMessage(special), " alone"),
          "stop"};
    }
    request->stop.push_back(std::move(stop));
  }
  for (const int32_t id : body.stop_token_ids) {
    if (!tokenizer.IsSpecial(id)) {
      return LineError{
          "unsupported",
          absl::StrCat("\"stop_token_ids\" has ", id,
                       ", which is no special token; give its text, ",
                       QuoteForMessage(tokenizer.IdToToken(id)),
                       ", as \"stop\""),
          "stop_token_ids"};
    }
    request->stop_tokens.push_back(id);
  }
  return std::nullopt;
}

void RequestParser::SetSampling(RequestBody& body, Request* request) const {
  SamplingParams& sampling = request->sampling;
  const auto choose = [](auto own, bool has, auto job, auto model,
                         auto built_in) -> decltype(built_in) {
    if (own) return *own;
    if (has) return static_cast<decltype(built_in)>(job);
    return model ? *model : built_in;
  };
  // Sampling is greedy unless the model's config wants otherwise.
  const std::optional<float> model_temperature =
      generation_.do_sample ? generation_.temperature.value_or(1.0f) : 0.0f;
  sampling.temperature =
      choose(body.temperature, defaults_.has_temperature(),
             defaults_.temperature(), model_temperature, 0.0f);
  sampling.top_p = choose(body.top_p, defaults_.has_top_p(), defaults_.top_p(),
                          generation_.top_p, 1.0f);
  sampling.top_k = std::max(0, choose(body.top_k, defaults_.has_top_k(),
                                      defaults_.top_k(), generation_.top_k, 0));
  if (sampling.top_p <= 0) {  // the likeliest token is in any share
    sampling.top_k = 1;
    sampling.top_p = 1;
  }
  sampling.min_p = choose(body.min_p, false, 0.0f, generation_.min_p, 0.0f);
  sampling.repetition_penalty = choose(body.repetition_penalty, false, 1.0f,
                                       generation_.repetition_penalty, 1.0f);
  sampling.presence_penalty = body.presence_penalty;
  sampling.frequency_penalty = body.frequency_penalty;
  sampling.logit_bias = std::move(body.logit_bias);
  sampling.logprobs = body.logprobs;
}

}  // namespace sluice
