#include "coordinator/jobs/requests/request_body.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "common/text/suggest.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/foreign_fields.h"
#include "coordinator/jobs/requests/json_line.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr int kChat = 1, kCompletions = 2, kBoth = 3, kEmbeddings = 4;
constexpr int kScore = 8, kRerank = 16;
constexpr int kAll = kBoth | kEmbeddings | kScore | kRerank;

// An endpoint's flag among those of a field, and its name in messages.
struct EndpointName {
  int flag;
  absl::string_view name;
};

EndpointName NameOf(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return {kChat, "chat completions"};
    case Endpoint::kCompletions:
      return {kCompletions, "completions"};
    case Endpoint::kEmbeddings:
      return {kEmbeddings, "embeddings"};
    case Endpoint::kScore:
      return {kScore, "score"};
    case Endpoint::kRerank:
      return {kRerank, "rerank"};
  }
  return {};
}

// The numbers that a field takes.
struct Range {
  double min, max;
  absl::string_view must_be;
  bool open_low = false;
};
constexpr Range kTemperatures = {0, kMaxTemperature, "a number from 0 to 2"};
constexpr Range kTopPs = {0, 1, "a number from 0 to 1"};
constexpr Range kMinPs = {0, 1, "a number from 0 to 1"};
constexpr Range kRepetitionPenalties = {
    0, kMaxRepetitionPenalty, "a number above 0 and at most 10 (1: off)", true};
constexpr Range kAlterationPenalties = {
    -kMaxAlterationPenalty, kMaxAlterationPenalty, "a number from -2 to 2"};
constexpr Range kLengthPenalties = {-kMaxLengthPenalty, kMaxLengthPenalty,
                                    "a number from -10 to 10"};
constexpr Range kBiases = {-kMaxLogitBias, kMaxLogitBias,
                           "an object of numbers from -100 to 100"};

// Each method reads one field, and returns false with error_ set on an error.
class BodyReader {
 public:
  BodyReader(int32_t vocab_size, Endpoint endpoint, RequestBody* body)
      : vocab_size_(vocab_size), endpoint_(endpoint), body_(body) {}

  std::optional<LineError> Read(const json& object);

 private:
  struct Field {
    absl::string_view name;
    int endpoints;
    bool (BodyReader::*read)(const json&);
  };
  static const Field kFields[];

  bool Fail(absl::string_view code, std::string message) {
    error_ =
        LineError{std::string(code), std::move(message), std::string(field_)};
    return false;
  }
  bool Wrong(absl::string_view must_be, const json& value) {
    return Fail("invalid_request",
                absl::StrCat("\"", field_, "\" must be ", must_be, ", got ",
                             DescribeJson(value)));
  }
  bool Unsupported(absl::string_view why) {
    return Fail("unsupported", absl::StrCat("\"", field_, "\" ", why));
  }

  bool Number(const json& v, const Range& range, float* out);
  bool Integer(const json& v, int64_t min, int64_t max,
               absl::string_view must_be, int64_t* out);
  bool Boolean(const json& v, bool* out);

  bool Ignored(const json&) { return true; }
  template <auto kMember>
  bool Value(const json& v) {
    body_->*kMember = v;
    return true;
  }
  template <auto kMember, const Range& kRange>
  bool Number(const json& v) {
    float value = 0;
    if (!Number(v, kRange, &value)) return false;
    body_->*kMember = value;
    return true;
  }
  template <auto kMember>
  bool OwnFlag(const json& v) {
    return Boolean(v, &(this->*kMember));
  }
  template <auto kMember>
  bool Flag(const json& v) {
    bool value = false;
    if (!Boolean(v, &value)) return false;
    body_->*kMember = value;
    return true;
  }
  template <auto kMember>
  bool Logprobs(const json& v, auto* owner) {
    int64_t value = 0;
    if (!Integer(v, 0, kMaxTopLogprobs, "an integer from 0 to 20", &value)) {
      return false;
    }
    owner->*kMember = static_cast<int32_t>(value);
    return true;
  }
  bool TopLogprobs(const json& v) {
    return Logprobs<&BodyReader::top_logprobs_>(v, this);
  }
  bool CompletionLogprobs(const json& v) {
    if (v == false) return true;
    return Logprobs<&RequestBody::logprobs>(v, body_);
  }
  bool Model(const json& v);
  bool MaxTokens(const json& v);
  bool TopK(const json& v);
  bool LogitBias(const json& v);
  bool Seed(const json& v);
  // A text, or a list of texts.
  template <auto kMember>
  bool Texts(const json& v);
  bool Instruction(const json& v);
  bool TopN(const json& v);
  bool TruncatePromptTokens(const json& v);
  bool Dimensions(const json& v);
  bool EncodingFormat(const json& v);
  bool Stop(const json& v);
  bool StopTokenIds(const json& v);
  template <auto kMember>
  bool Choices(const json& v);
  bool LengthPenalty(const json& v) {
    float ignored = 0;
    if (!Number(v, kLengthPenalties, &ignored)) return false;
    // Lengths are raised to it in double precision, as in transformers.
    v.get_to(beams_.length_penalty);
    return true;
  }
  bool Stopping(const json& v);
  bool SetChoices();
  bool SetBeams();
  bool Stream(const json& v);
  bool ResponseFormat(const json& v);
  bool ChatTemplateKwargs(const json& v);
  bool ToolChoice(const json& v);
  bool ReasoningEffort(const json& v);
  template <json BodyReader::*kMember>
  bool Objects(const json& v);
  bool SetTemplateVariables();

  // The endpoint's field most likely meant by `name`; "" if none is.
  std::string FieldLike(const std::string& name) const;

  const int32_t vocab_size_;
  const Endpoint endpoint_;
  RequestBody* const body_;
  absl::string_view field_;
  std::optional<LineError> error_;
  bool chat_logprobs_ = false;
  std::optional<int32_t> top_logprobs_;
  std::optional<int32_t> n_, best_of_;
  bool use_beam_search_ = false;
  BeamParams beams_;
  json chat_template_kwargs_ = json::object();
  json tools_, documents_, reasoning_effort_;  // null: not given
  bool show_tools_ = true;
  bool parallel_tool_calls_ = true;
};

const BodyReader::Field BodyReader::kFields[] = {
    {"add_generation_prompt", kChat,
     &BodyReader::Flag<&RequestBody::add_generation_prompt>},
    {"best_of", kBoth, &BodyReader::Choices<&BodyReader::best_of_>},
    {"chat_template_kwargs", kChat, &BodyReader::ChatTemplateKwargs},
    {"dimensions", kEmbeddings, &BodyReader::Dimensions},
    {"documents", kChat, &BodyReader::Objects<&BodyReader::documents_>},
    {"documents", kScore | kRerank,
     &BodyReader::Texts<&RequestBody::documents>},
    {"early_stopping", kBoth, &BodyReader::Stopping},
    {"echo", kCompletions, &BodyReader::Flag<&RequestBody::echo>},
    {"encoding_format", kEmbeddings, &BodyReader::EncodingFormat},
    {"frequency_penalty", kBoth,
     &BodyReader::Number<&RequestBody::frequency_penalty,
                         kAlterationPenalties>},
    {"ignore_eos", kBoth, &BodyReader::Flag<&RequestBody::ignore_eos>},
    {"input", kEmbeddings, &BodyReader::Value<&RequestBody::prompt>},
    {"instruction", kScore | kRerank, &BodyReader::Instruction},
    {"length_penalty", kBoth, &BodyReader::LengthPenalty},
    {"logit_bias", kBoth, &BodyReader::LogitBias},
    {"logprobs", kChat, &BodyReader::OwnFlag<&BodyReader::chat_logprobs_>},
    {"logprobs", kCompletions, &BodyReader::CompletionLogprobs},
    {"max_completion_tokens", kBoth, &BodyReader::MaxTokens},
    {"max_tokens", kBoth, &BodyReader::MaxTokens},
    {"messages", kChat, &BodyReader::Value<&RequestBody::messages>},
    {"metadata", kAll, &BodyReader::Ignored},
    {"min_p", kBoth, &BodyReader::Number<&RequestBody::min_p, kMinPs>},
    {"model", kAll, &BodyReader::Model},
    {"n", kBoth, &BodyReader::Choices<&BodyReader::n_>},
    {"parallel_tool_calls", kChat,
     &BodyReader::OwnFlag<&BodyReader::parallel_tool_calls_>},
    {"presence_penalty", kBoth,
     &BodyReader::Number<&RequestBody::presence_penalty, kAlterationPenalties>},
    {"prompt", kCompletions, &BodyReader::Value<&RequestBody::prompt>},
    {"queries", kScore, &BodyReader::Texts<&RequestBody::queries>},
    {"query", kRerank, &BodyReader::Texts<&RequestBody::queries>},
    {"reasoning_effort", kChat, &BodyReader::ReasoningEffort},
    {"repetition_penalty", kBoth,
     &BodyReader::Number<&RequestBody::repetition_penalty,
                         kRepetitionPenalties>},
    {"response_format", kBoth, &BodyReader::ResponseFormat},
    {"return_documents", kRerank,
     &BodyReader::Flag<&RequestBody::return_documents>},
    {"seed", kBoth, &BodyReader::Seed},
    {"service_tier", kAll, &BodyReader::Ignored},
    {"stop", kBoth, &BodyReader::Stop},
    {"stop_token_ids", kBoth, &BodyReader::StopTokenIds},
    {"store", kAll, &BodyReader::Ignored},
    {"stream", kBoth, &BodyReader::Stream},
    {"temperature", kBoth,
     &BodyReader::Number<&RequestBody::temperature, kTemperatures>},
    {"text_1", kScore, &BodyReader::Texts<&RequestBody::queries>},
    {"text_2", kScore, &BodyReader::Texts<&RequestBody::documents>},
    {"tool_choice", kChat, &BodyReader::ToolChoice},
    {"tools", kChat, &BodyReader::Objects<&BodyReader::tools_>},
    {"top_k", kBoth, &BodyReader::TopK},
    {"top_logprobs", kChat, &BodyReader::TopLogprobs},
    {"top_n", kRerank, &BodyReader::TopN},
    {"top_p", kBoth, &BodyReader::Number<&RequestBody::top_p, kTopPs>},
    {"truncate_prompt_tokens", kCompletions | kEmbeddings,
     &BodyReader::TruncatePromptTokens},
    {"use_beam_search", kBoth,
     &BodyReader::OwnFlag<&BodyReader::use_beam_search_>},
    {"user", kAll, &BodyReader::Ignored},
};

std::string BodyReader::FieldLike(const std::string& name) const {
  std::vector<std::string> names;
  for (const Field& field : kFields) {
    if (field.endpoints & NameOf(endpoint_).flag) {
      names.emplace_back(field.name);
    }
  }
  return ClosestTo(name, names);
}

std::optional<LineError> BodyReader::Read(const json& object) {
  const auto [endpoint, endpoint_name] = NameOf(endpoint_);
  for (const auto& [name, value] : object.items()) {
    const Field* known = nullptr;
    bool elsewhere = false;
    for (const Field& field : kFields) {
      if (field.name != name) continue;
      if (field.endpoints & endpoint) known = &field;
      elsewhere = true;
    }
    field_ = name;
    const bool empty = value.is_structured() && value.empty();
    if (known == nullptr && (value.is_null() || empty)) continue;
    if (known == nullptr) {
      if (const auto asks = ForeignFieldAsks(name, endpoint_, value)) {
        if (asks->empty()) continue;
        Unsupported(*asks);
        return error_;
      }
      const std::string meant = elsewhere ? "" : FieldLike(name);
      Fail("unknown_field",
           absl::StrCat(QuoteForMessage(name),
                        elsewhere
                            ? absl::StrCat(" is not a field of ", endpoint_name)
                            : std::string(" is not a field that Sluice knows"),
                        meant.empty()
                            ? "; remove it"
                            : absl::StrCat("; did you mean \"", meant, "\"?")));
      if (name.size() > 64) error_->param.clear();
      return error_;
    }
    if (value.is_null()) continue;
    if (!(this->*known->read)(value)) return error_;
  }
  if (top_logprobs_.value_or(0) > 0 && !chat_logprobs_) {
    field_ = "top_logprobs";
    Fail("invalid_request", "\"top_logprobs\" needs \"logprobs\": true");
    return error_;
  }
  if (chat_logprobs_) body_->logprobs = top_logprobs_.value_or(0);
  if (!SetTemplateVariables() || !SetChoices() || !SetBeams()) {
    return error_;
  }
  if (body_->max_tokens == 0 && !body_->echo) {
    field_ = "max_tokens";
    Unsupported(
        "of 0 (scoring without generating) is not supported without \"echo\" "
        "(of completions): there would be nothing to answer; ask for at least "
        "1");
    return error_;
  }
  return std::nullopt;
}

bool BodyReader::Number(const json& v, const Range& range, float* out) {
  if (!v.is_number()) return Wrong(range.must_be, v);
  const double value = v.get<double>();
  // The check is of the float, so that no value rounds to one out of range.
  const auto rounded = static_cast<float>(value);
  if (!(value >= range.min && value <= range.max) ||
      (range.open_low && rounded <= range.min)) {
    return Wrong(range.must_be, v);
  }
  *out = rounded;
  return true;
}

bool BodyReader::Integer(const json& v, int64_t min, int64_t max,
                         absl::string_view must_be, int64_t* out) {
  if (!v.is_number_integer()) return Wrong(must_be, v);
  if (v.is_number_unsigned() &&
      v.get<uint64_t>() > static_cast<uint64_t>(max)) {
    return Wrong(must_be, v);
  }
  *out = v.get<int64_t>();
  return *out >= min && *out <= max ? true : Wrong(must_be, v);
}

bool BodyReader::Boolean(const json& v, bool* out) {
  if (!v.is_boolean()) return Wrong("true or false", v);
  *out = v.get<bool>();
  return true;
}

bool BodyReader::Model(const json& v) {
  if (!v.is_string()) return Wrong("a string", v);
  body_->model = v.get<std::string>();
  return true;
}

bool BodyReader::MaxTokens(const json& v) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  int64_t value = 0;
  if (!Integer(v, 0, kMax, "an integer of at least 1, or 0 with \"echo\"",
               &value)) {
    return false;
  }
  if (body_->max_tokens && *body_->max_tokens != value) {
    return Fail(
        "invalid_request",
        absl::StrCat("\"max_tokens\" and \"max_completion_tokens\" "
                     "differ (",
                     *body_->max_tokens, " and ", value, "); give only one"));
  }
  body_->max_tokens = value;
  return true;
}

bool BodyReader::TopK(const json& v) {
  int64_t value = 0;
  if (!Integer(v, -1, std::numeric_limits<int32_t>::max(),
               "an integer of at least 1, or 0 or -1 for off", &value)) {
    return false;
  }
  body_->top_k = static_cast<int32_t>(std::max<int64_t>(value, 0));
  return true;
}

bool BodyReader::LogitBias(const json& v) {
  if (!v.is_object()) return Wrong("an object {\"token id\": bias}", v);
  if (v.size() > kMaxLogitBiases) {
    return Fail("invalid_request",
                absl::StrCat("\"logit_bias\" has ", v.size(),
                             " entries; at most ", kMaxLogitBiases));
  }
  for (const auto& [key, value] : v.items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || absl::StrCat(id) != key || id < 0 ||
        id >= vocab_size_) {
      return Fail(
          "invalid_request",
          absl::StrCat("\"logit_bias\" has the key ", QuoteForMessage(key),
                       ", which is no token id from 0 to ", vocab_size_ - 1));
    }
    float bias = 0;
    if (!Number(value, kBiases, &bias)) return false;
    body_->logit_bias.emplace_back(id, bias);
  }
  return true;
}

template <auto kMember>
bool BodyReader::Texts(const json& v) {
  constexpr absl::string_view kMustBe = "a string, or a list of strings";
  std::vector<std::string>& texts = body_->*kMember;
  if (!texts.empty()) {
    return Fail("invalid_request",
                absl::StrCat("\"", field_,
                             "\" is there under another name, too; give only "
                             "one"));
  }
  if (v.is_string()) {
    texts.push_back(v.get<std::string>());
    return true;
  }
  if (!v.is_array() || v.empty()) return Wrong(kMustBe, v);
  for (const json& text : v) {
    if (!text.is_string()) return Wrong(kMustBe, text);
    texts.push_back(text.get<std::string>());
  }
  return true;
}

bool BodyReader::Instruction(const json& v) {
  if (!v.is_string()) return Wrong("a string", v);
  body_->instruction = v.get<std::string>();
  return true;
}

bool BodyReader::TopN(const json& v) {
  int64_t value = 0;
  if (!Integer(v, 0, std::numeric_limits<int32_t>::max(),
               "an integer of at least 1, or 0 for all", &value)) {
    return false;
  }
  body_->top_n = static_cast<int32_t>(value);
  return true;
}

bool BodyReader::TruncatePromptTokens(const json& v) {
  constexpr absl::string_view kMustBe =
      "an integer of at least 1, or -1 for what the model takes";
  int64_t value = 0;
  if (!Integer(v, -1, std::numeric_limits<int32_t>::max(), kMustBe, &value)) {
    return false;
  }
  if (value == 0) return Wrong(kMustBe, v);
  body_->truncate_prompt_tokens = static_cast<int32_t>(value);
  return true;
}

bool BodyReader::Dimensions(const json& v) {
  int64_t value = 0;
  if (!Integer(v, 1, std::numeric_limits<int32_t>::max(),
               "an integer of at least 1", &value)) {
    return false;
  }
  body_->dimensions = static_cast<int32_t>(value);
  return true;
}

bool BodyReader::EncodingFormat(const json& v) {
  if (v != "float" && v != "base64") {
    return Wrong("\"float\" or \"base64\"", v);
  }
  body_->base64 = v == "base64";
  return true;
}

bool BodyReader::Seed(const json& v) {
  if (!v.is_number_integer()) {
    return Wrong("an integer of 64 bits; a negative one is none", v);
  }
  if (v.is_number_unsigned() || v.get<int64_t>() == 0) {
    body_->seed = v.get<uint64_t>();
  }
  return true;
}

bool BodyReader::Stop(const json& v) {
  constexpr absl::string_view kMustBe =
      "a non-empty string, or a list of up to 16 of them, each up to 1024 "
      "bytes";
  if (v.is_string()) {
    body_->stop.push_back(v.get<std::string>());
  } else if (v.is_array() && v.size() <= kMaxStopStrings) {
    for (const json& item : v) {
      if (!item.is_string()) return Wrong(kMustBe, item);
      body_->stop.push_back(item.get<std::string>());
    }
  } else {
    return Wrong(kMustBe, v);
  }
  for (const std::string& stop : body_->stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes) return Wrong(kMustBe, v);
  }
  return true;
}

bool BodyReader::StopTokenIds(const json& v) {
  const std::string must_be = absl::StrCat("a list of up to ", kMaxStopTokens,
                                           " token ids below ", vocab_size_);
  if (!v.is_array() || v.size() > kMaxStopTokens) return Wrong(must_be, v);
  for (const json& item : v) {
    int64_t id = 0;
    if (!Integer(item, 0, vocab_size_ - 1, must_be, &id)) return false;
    body_->stop_token_ids.push_back(static_cast<int32_t>(id));
  }
  return true;
}

template <auto kMember>
bool BodyReader::Choices(const json& v) {
  int64_t value = 0;
  if (!Integer(v, 1, kMaxChoices,
               absl::StrCat("an integer from 1 to ", kMaxChoices), &value)) {
    return false;
  }
  this->*kMember = static_cast<int32_t>(value);
  return true;
}

bool BodyReader::SetChoices() {
  body_->choices = n_.value_or(1);
  body_->candidates = best_of_.value_or(body_->choices);
  field_ = best_of_ ? "best_of" : "n";
  if (body_->candidates < body_->choices) {
    return Fail("invalid_request",
                absl::StrCat("\"best_of\" is ", body_->candidates,
                             ", fewer than the ", body_->choices,
                             " of \"n\"; generate at least as many answers "
                             "as are to be given"));
  }
  if (body_->candidates > 1 && body_->echo) {
    return Unsupported(
        "of more than 1 is not supported with \"echo\"; ask for the prompt's "
        "text or scores in a line of its own");
  }
  return true;
}

bool BodyReader::Stopping(const json& v) {
  if (v == "never") {
    beams_.early_stopping = EarlyStopping::kNever;
    return true;
  }
  if (!v.is_boolean()) return Wrong("true, false or \"never\"", v);
  beams_.early_stopping = v == true ? EarlyStopping::kYes : EarlyStopping::kNo;
  return true;
}

bool BodyReader::SetBeams() {
  if (!use_beam_search_) {
    field_ = beams_.length_penalty != 1 ? "length_penalty" : "early_stopping";
    if (beams_.length_penalty == 1 &&
        beams_.early_stopping == EarlyStopping::kNo) {
      return true;
    }
    return Fail("invalid_request",
                absl::StrCat("\"", field_,
                             "\" is of a beam search; ask for one by "
                             "\"use_beam_search\": true and \"n\""));
  }
  body_->beams = beams_;
  const std::pair<absl::string_view, bool> others[] = {
      {"temperature", body_->temperature.value_or(0) > 0},
      {"top_p", body_->top_p.value_or(1) < 1},
      {"top_k", body_->top_k.value_or(0) > 0},
      {"min_p", body_->min_p.value_or(0) > 0},
      {"repetition_penalty", body_->repetition_penalty.value_or(1) != 1},
      {"presence_penalty", body_->presence_penalty != 0},
      {"frequency_penalty", body_->frequency_penalty != 0},
      {"logit_bias", !body_->logit_bias.empty()},
      {"logprobs", body_->logprobs >= 0},
      {"echo", body_->echo}};
  for (const auto& [name, given] : others) {
    if (!given) continue;
    field_ = name;
    return Unsupported(
        "does not go with \"use_beam_search\", which finds the likeliest "
        "answers as they are; leave one of them out");
  }
  return true;
}

bool BodyReader::Stream(const json& v) {
  bool stream = false;
  if (!Boolean(v, &stream)) return false;
  return stream ? Unsupported("has no meaning in a batch; leave it out") : true;
}

bool BodyReader::ResponseFormat(const json& v) {
  if (!v.is_object()) return Wrong("an object", v);
  if (v == json{{"type", "text"}}) return true;
  return Unsupported("is supported only as {\"type\": \"text\"}");
}

bool BodyReader::ChatTemplateKwargs(const json& v) {
  if (!v.is_object()) return Wrong("an object", v);
  for (const char* reserved :
       {"messages", "add_generation_prompt", "bos_token", "eos_token"}) {
    if (v.contains(reserved)) {
      return Fail("invalid_request",
                  absl::StrCat("\"chat_template_kwargs\" must not set \"",
                               reserved, "\""));
    }
  }
  chat_template_kwargs_ = v;
  return true;
}

// An empty list counts as absent.
template <json BodyReader::*kMember>
bool BodyReader::Objects(const json& v) {
  if (!v.is_array()) return Wrong("a list of objects", v);
  for (const json& item : v) {
    if (!item.is_object()) return Wrong("a list of objects", item);
  }
  if (!v.empty()) this->*kMember = v;
  return true;
}

bool BodyReader::ToolChoice(const json& v) {
  if (v == "auto" || v == "none") {
    show_tools_ = v == "auto";
    return true;
  }
  return Unsupported(
      "is supported only as \"auto\" or \"none\": nothing makes the model call "
      "a tool, it is only shown them");
}

bool BodyReader::ReasoningEffort(const json& v) {
  if (!v.is_string()) return Wrong("a string", v);
  reasoning_effort_ = v;
  return true;
}

bool BodyReader::SetTemplateVariables() {
  if (!show_tools_) tools_ = nullptr;
  if (!parallel_tool_calls_ && !tools_.is_null()) {
    field_ = "parallel_tool_calls";
    return Unsupported(
        "of false is not supported with \"tools\": how many calls the model "
        "makes is its own choice");
  }
  body_->template_variables = std::move(chat_template_kwargs_);
  for (auto [name, value] :
       {std::pair("tools", &tools_), std::pair("documents", &documents_),
        std::pair("reasoning_effort", &reasoning_effort_)}) {
    if (value->is_null()) continue;
    field_ = name;
    if (body_->template_variables.contains(name)) {
      return Fail("invalid_request",
                  absl::StrCat("\"", name,
                               "\" is in \"chat_template_kwargs\", too; give "
                               "only one"));
    }
    body_->template_variables[name] = std::move(*value);
  }
  return true;
}

}  // namespace

std::optional<LineError> ReadRequestBody(const json& object, Endpoint endpoint,
                                         int32_t vocab_size,
                                         RequestBody* body) {
  return BodyReader(vocab_size, endpoint, body).Read(object);
}

}  // namespace sluice
