#include "coordinator/jobs/requests/foreign_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

constexpr int kChat = 1, kCompletions = 2, kBoth = 3, kEmbeddings = 4,
              kScores = 8;
constexpr int kAll = kBoth | kEmbeddings | kScores;

constexpr char kAny[] = "any";  // no value changes an answer
constexpr char kBeams[] =
    "\"use_beam_search\": true searches with as many beams as \"n\", or "
    "\"best_of\", says";
constexpr char kForms[] =
    "answers are not constrained: to choose among a few tokens, raise these by "
    "\"logit_bias\" with \"max_tokens\" 1, or compare their \"top_logprobs\"; "
    "else ask for the form in the prompt";
constexpr char kMinimum[] =
    "instead, \"logit_bias\" of -100 keeps end-of-sequence tokens away, and "
    "\"ignore_eos\" does not end at them";
constexpr char kTexts[] =
    "texts have neither; \"logprobs\" show all tokens, that of the end too";
constexpr char kBias[] = "\"logit_bias\" from -100 to 100 does that for tokens";
constexpr char kTextOnly[] = "there is text only";
constexpr char kToolsOnly[] = "\"tools\" and \"tool_choice\" are there instead";

struct Field {
  absl::string_view name;
  int endpoints;
  absl::string_view neutral;  // JSON of the values that ask for nothing; kAny
  absl::string_view hint;     // what to do instead; "": nothing does it
};

constexpr Field kFields[] = {
    {"add_generation_prompt", kCompletions, "[true]", ""},
    {"add_special_tokens", kChat, "[false]",
     "the chat template writes special tokens"},
    {"add_special_tokens", kCompletions | kEmbeddings, "[true]",
     "nothing is added to a list of token ids"},
    {"allowed_token_ids", kBoth, "[]", kBias},
    {"audio", kBoth, "[]", kTextOnly},
    {"bad_words", kBoth, "[]", kBias},
    {"beam_width", kBoth, "[1]", kBeams},
    {"cache_salt", kAll, kAny, ""},
    {"chat_template", kChat, "[]", "the model's own is used"},
    {"continue_final_message", kChat, "[false]",
     "give /v1/completions the text to go on from"},
    {"detokenize", kBoth, "[true]", "answers are texts"},
    {"ebnf", kBoth, "[]", kForms},
    {"echo", kChat, "[false]", "/v1/completions has it"},
    {"extra_args", kAll, "[]", ""},
    {"extra_body", kAll, "[]", "put its fields beside the others"},
    {"flat_logprobs", kBoth, kAny, ""},
    {"function_call", kBoth, R"(["none","auto"])", kToolsOnly},
    {"functions", kBoth, "[]", kToolsOnly},
    {"guided_choice", kBoth, "[]", kForms},
    {"guided_decoding", kBoth, "[]", kForms},
    {"guided_decoding_backend", kBoth, kAny, ""},
    {"guided_grammar", kBoth, "[]", kForms},
    {"guided_json", kBoth, "[]", kForms},
    {"guided_regex", kBoth, "[]", kForms},
    {"guided_whitespace_pattern", kBoth, kAny, ""},
    {"include_reasoning", kBoth, "[true]",
     "an answer's text is all that the model wrote"},
    {"include_stop_str_in_output", kBoth, "[false]",
     "append the stop string where finish_reason is \"stop\""},
    {"json_schema", kBoth, "[]", kForms},
    {"kv_transfer_params", kBoth, "[]", ""},
    {"logits_processors", kBoth, "[]", kBias},
    {"lora_path", kBoth, "[]", "merge the adapter into the model's weights"},
    {"lora_request", kBoth, "[]", "merge the adapter into the model's weights"},
    {"min_new_tokens", kBoth, "[0]", kMinimum},
    {"min_tokens", kBoth, "[0]", kMinimum},
    {"mm_processor_kwargs", kAll, "[]", kTextOnly},
    {"modalities", kBoth, R"([["text"]])", kTextOnly},
    {"no_stop_trim", kBoth, "[false]", kTexts},
    {"normalize", kEmbeddings, "[]",
     "the model's files say whether its embeddings are"},
    {"num_beams", kBoth, "[1]", kBeams},
    {"output_kind", kBoth, kAny, ""},
    {"parallel_tool_calls", kCompletions, "[true]", ""},
    {"prediction", kBoth, kAny, ""},
    {"priority", kAll, "[0]", "the lines of a job have the job's priority"},
    {"prompt_cache_key", kBoth, kAny, ""},
    {"prompt_cache_retention", kBoth, kAny, ""},
    {"prompt_embeds", kBoth, "[]", "give \"prompt\""},
    {"prompt_logprobs", kBoth, "[]",
     "\"echo\" with \"logprobs\" of /v1/completions shows them"},
    {"regex", kBoth, "[]", kForms},
    {"repetition_detection", kBoth, "[]", ""},
    {"request_id", kAll, kAny, ""},
    {"return_hidden_states", kBoth, "[false]", ""},
    {"return_token_ids", kBoth, "[false]", "\"logprobs\" show the tokens"},
    {"return_tokens_as_token_ids", kBoth, "[false]",
     "\"logprobs\" show their texts"},
    {"safety_identifier", kAll, kAny, ""},
    {"separate_reasoning", kBoth, "[true]",
     "an answer's text is all that the model wrote"},
    {"skip_clone", kBoth, kAny, ""},
    {"skip_reading_prefix_cache", kBoth, kAny, ""},
    {"skip_special_tokens", kBoth, "[true]", kTexts},
    {"spaces_between_special_tokens", kBoth, kAny, ""},
    {"stop_regex", kBoth, "[]", "\"stop\" takes up to 16 strings"},
    {"stream_options", kBoth, kAny, ""},
    {"stream_reasoning", kBoth, kAny, ""},
    {"structural_tag", kBoth, "[]", kForms},
    {"structured_outputs", kBoth, "[]", kForms},
    {"suffix", kCompletions, "[]",
     "write prompt and suffix as the model's fill-in-the-middle form"},
    {"thinking_token_budget", kBoth, "[]", "\"max_tokens\" bounds the answer"},
    {"tool_choice", kCompletions, R"(["none","auto"])", ""},
    {"top_logprobs", kCompletions, "[0]", "say it as \"logprobs\": N"},
    {"truncate_prompt_tokens", kChat | kScores, "[]", "shorten the prompt"},
    {"typical_p", kBoth, "[1]", "\"top_p\" and \"min_p\" are there instead"},
    {"use_activation", kScores, "[true]",
     "scores are probabilities, or cosines of embeddings"},
    {"use_activation", kEmbeddings, "[]",
     "the model's files say whether its embeddings are normalized"},
    {"verbosity", kBoth, R"(["medium"])", "ask for it in the prompt"},
    {"vllm_xargs", kBoth, "[]", ""},
    {"web_search_options", kBoth, "[]", ""},
};

// Whether a value is null, empty, or an object of such values and false.
bool IsNothing(const json& value) {
  if (value.is_null()) return true;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (value.is_array()) return value.empty();
  return value.is_object() &&
         std::all_of(value.begin(), value.end(), [](const json& member) {
           return member == false || IsNothing(member);
         });
}

}  // namespace

std::optional<std::string> ForeignFieldAsks(absl::string_view name,
                                            Endpoint endpoint,
                                            const json& value) {
  const int wanted = endpoint == Endpoint::kChatCompletions ? kChat
                     : endpoint == Endpoint::kCompletions   ? kCompletions
                     : endpoint == Endpoint::kEmbeddings    ? kEmbeddings
                                                            : kScores;
  const auto* const field =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) {
        return f.name == name && (f.endpoints & wanted) != 0;
      });
  if (field == std::end(kFields)) return std::nullopt;
  if (field->neutral == kAny || IsNothing(value)) return "";
  const json neutral = json::parse(field->neutral);
  if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) {
    return "";
  }
  return absl::StrCat(
      "is not supported",
      neutral.empty() ? ""
                      : absl::StrCat(", unless it is ", neutral.front().dump()),
      field->hint.empty() ? "" : "; ", field->hint);
}

}  // namespace sluice
