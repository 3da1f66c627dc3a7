#include "coordinator/jobs/requests/request_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/requests/request_codec.h"
#include "coordinator/jobs/results/result_format.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr char kTemplate[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

class RequestParserTest : public testing::Test {
 protected:
  RequestParserTest() {
    auto parsed = ChatTemplate::Parse(kTemplate);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (parsed.ok()) template_ = *std::move(parsed);
  }

  RequestParser Parser(const v1::RequestDefaults& defaults = {}) const {
    return RequestParser({.served_model = "test-model",
                          .max_model_len = 100,
                          .default_max_tokens = 16,
                          .model = nullptr,
                          .tokenizer = &tokenizer_,
                          .chat_template = template_.get()},
                         defaults);
  }

  // The request of a good line.
  Request Good(const std::string& line,
               const v1::RequestDefaults& defaults = {}) const {
    RequestParser::Line parsed = Parser(defaults).ParseJson(line, 0);
    EXPECT_FALSE(parsed.error) << line << ": " << parsed.error->message;
    return parsed.request;
  }

  LineError Bad(const std::string& line) const {
    RequestParser::Line parsed = Parser().ParseJson(line, 0);
    EXPECT_TRUE(parsed.error) << line;
    return parsed.error.value_or(LineError{});
  }

  std::string PromptText(const Request& request) const {
    return tokenizer_.Decode(request.prompt, false);
  }

  FakeTokenizer tokenizer_{FakeTokenizer::kBytes};
  std::unique_ptr<ChatTemplate> template_;
};

// A completion in batch form with these fields after the prompt.
std::string Completion(const std::string& fields) {
  return R"({"custom_id":"a","method":"POST","url":"/v1/completions",)"
         R"("body":{"prompt":"hi",)" +
         fields + "}}";
}

std::string Chat(const std::string& fields) {
  return R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions",)"
         R"("body":{)" +
         fields + "}}";
}

TEST_F(RequestParserTest, ReadsACompletion) {
  const Request request = Good(Completion(
      R"("model":"test-model","max_tokens":7,"temperature":0.5,"top_p":0.9,)"
      R"("top_k":40,"min_p":0.1,"repetition_penalty":1.5,)"
      R"("presence_penalty":-1,"frequency_penalty":2,)"
      R"("logit_bias":{"5":-100,"17":1.5},"seed":9,"stop":["x","yz"],)"
      R"("logprobs":3,"n":1,"best_of":1,"stream":false,"ignore_eos":true,)"
      R"("user":"u","metadata":{"k":"v"},"suffix":null)"));
  EXPECT_EQ(request.custom_id, "a");
  EXPECT_EQ(request.endpoint, Endpoint::kCompletions);
  EXPECT_EQ(PromptText(request), "<s>hi");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, -1);
  EXPECT_EQ(request.sampling.frequency_penalty, 2);
  EXPECT_THAT(request.sampling.logit_bias,
              testing::UnorderedElementsAre(Pair(5, -100), Pair(17, 1.5f)));
  EXPECT_THAT(request.stop, ElementsAre("x", "yz"));
  EXPECT_EQ(request.sampling.logprobs, 3);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.echo);
}

TEST_F(RequestParserTest, ReadsAChat) {
  const Request request =
      Good(Chat(R"("messages":[{"role":"system","content":"S"},)"
                R"({"role":"user","content":[{"type":"text","text":"a"},)"
                R"({"type":"text","text":"b"}],"name":"bob"}],)"
                R"("max_completion_tokens":3,"logprobs":true,"top_logprobs":2,)"
                R"("stop":"\n","response_format":{"type":"text"})"));
  EXPECT_EQ(request.endpoint, Endpoint::kChatCompletions);
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.sampling.logprobs, 2);
  // The template's own <s>, as text; none is added.
  EXPECT_EQ(PromptText(request), "<s>[system]S[user]a\nb[assistant]");
  EXPECT_EQ(request.prompt[0], '<' + 3);
}

TEST_F(RequestParserTest, ShortFormsAndGeneratedIds) {
  RequestParser::Line line = Parser().ParseJson(R"({"prompt":"x"})", 41);
  ASSERT_FALSE(line.error);
  EXPECT_EQ(line.request.custom_id, "line-42");
  EXPECT_EQ(line.request.max_tokens, 16);
  EXPECT_EQ(line.request.sampling.temperature, 0);

  line = Parser().ParseJson(
      R"({"messages":[{"role":"user","content":"q"}],"custom_id":"mine",)"
      R"("max_tokens":2})",
      0);
  ASSERT_FALSE(line.error);
  EXPECT_EQ(line.request.custom_id, "mine");
  EXPECT_EQ(line.request.endpoint, Endpoint::kChatCompletions);
}

TEST_F(RequestParserTest, PromptForms) {
  EXPECT_THAT(Good(R"({"prompt":[5,6,258]})").prompt, ElementsAre(5, 6, 258));
  EXPECT_THAT(Good(R"({"prompt":[[5,6]]})").prompt, ElementsAre(5, 6));
  EXPECT_EQ(PromptText(Good(R"({"prompt":["one"]})")), "<s>one");
  // The start token alone is enough to generate from.
  EXPECT_THAT(Good(R"({"prompt":""})").prompt, ElementsAre(1));
  EXPECT_EQ(Good(R"({"prompt":"hey","echo":true})").prompt_text, "hey");
  EXPECT_EQ(Good(R"({"prompt":[107,108],"echo":true})").prompt_text, "hi");
}

TEST_F(RequestParserTest, TextLines) {
  const RequestParser parser = Parser();
  RequestParser::Line line = parser.ParseText("{\"prompt\": \"raw", 2);
  ASSERT_FALSE(line.error);
  EXPECT_EQ(line.custom_id, "line-3");
  EXPECT_EQ(PromptText(line.request), "<s>{\"prompt\": \"raw");
  EXPECT_EQ(parser.ParseText(" \t", 0).error->code, "empty_line");
  EXPECT_EQ(parser.ParseText("a\xFFz", 0).error->code, "invalid_utf8");
  EXPECT_THAT(parser.ParseText("a\xFFz", 0).error->message,
              HasSubstr("at byte 2"));
  EXPECT_THAT(parser.ParseText(std::string("ab\0", 3), 0).error->message,
              HasSubstr("NUL byte at byte 3"));
}

TEST_F(RequestParserTest, DefaultsOfTheJob) {
  v1::RequestDefaults defaults;
  defaults.set_max_tokens(5);
  defaults.set_temperature(0.25f);
  defaults.set_top_p(0.5f);
  defaults.set_top_k(-1);
  defaults.set_ignore_eos(true);
  const Request request = Good(R"({"prompt":"x"})", defaults);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0.25f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_TRUE(request.ignore_eos);
  const Request own =
      Good(R"({"prompt":"x","temperature":0,"top_p":1,"ignore_eos":false,)"
           R"("max_tokens":9})",
           defaults);
  EXPECT_EQ(own.sampling.temperature, 0);
  EXPECT_EQ(own.sampling.top_p, 1);
  EXPECT_FALSE(own.ignore_eos);
  EXPECT_EQ(own.max_tokens, 9);
}

TEST_F(RequestParserTest, SeedsDifferByLineAndRepeatByJob) {
  v1::RequestDefaults seven;
  seven.set_seed(7);
  const auto seed = [&](const v1::RequestDefaults& defaults, int64_t index) {
    return Parser(defaults)
        .ParseJson(R"({"prompt":"x"})", index)
        .request.sampling.seed;
  };
  // Outputs of the published splitmix64 for seed 0.
  EXPECT_EQ(seed({}, 0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(seed({}, 1), 0x6E789E6AA1B965F4u);
  EXPECT_NE(seed(seven, 0), seed({}, 0));
  EXPECT_EQ(seed(seven, 3), seed(seven, 3));
  EXPECT_NE(seed(seven, 3), seed(seven, 4));
}

// A seed that all lines have must not make all answers of one noise.
TEST_F(RequestParserTest, ASharedSeedDiffersByPromptAndRepeats) {
  v1::RequestDefaults seven;
  seven.set_seed(7);
  const auto key = [&](absl::string_view fields, int64_t index = 0) {
    const RequestParser::Line line =
        Parser(seven).ParseJson(absl::StrCat("{", fields, "}"), index);
    EXPECT_FALSE(line.error) << fields << line.error->message;
    return line.request.sampling.seed;
  };
  const uint64_t ab = key(R"("prompt":"ab","seed":12)");
  EXPECT_EQ(key(R"("prompt":"ab","seed":12,"max_tokens":3)", 9), ab);
  EXPECT_EQ(key(R"("prompt":[1,100,101],"seed":12)"), ab);  // the same tokens
  std::set<uint64_t> keys = {ab};
  for (const char* other :
       {R"("prompt":"ab","seed":13)", R"("prompt":"ab","seed":0)",
        R"("prompt":"ab","seed":18446744073709551615)",
        R"("prompt":"ba","seed":12)", R"("prompt":"a","seed":12)",
        R"("prompt":"abb","seed":12)", R"("prompt":"ac","seed":13)",
        R"("prompt":"ab")"}) {
    EXPECT_TRUE(keys.insert(key(other)).second) << other;
  }
  // A negative one is none, which clients say so.
  for (const char* none : {"-1", "-9223372036854775808", "null"}) {
    EXPECT_EQ(key(absl::StrCat(R"("prompt":"ab","seed":)", none), 5),
              key(R"("prompt":"ab")", 5));
  }
  EXPECT_EQ(key(R"("prompt":"ab","seed":-0)"),
            key(R"("prompt":"ab","seed":0)"));
}

// What files made for vLLM or OpenAI carry, though it asks for nothing.
TEST_F(RequestParserTest, ValuesThatChangeNothingPass) {
  const std::string everywhere =
      R"("n":1,"best_of":1,"presence_penalty":0.0,"frequency_penalty":0,)"
      R"("repetition_penalty":1.0,"top_p":1,"top_k":-1,"min_p":0.0,)"
      R"("seed":null,"stop":[],"stop_token_ids":[],"bad_words":[],)"
      R"("include_stop_str_in_output":false,"ignore_eos":false,)"
      R"("min_tokens":0,"prompt_logprobs":null,"skip_special_tokens":true,)"
      R"("spaces_between_special_tokens":true,"truncate_prompt_tokens":null,)"
      R"("guided_decoding":null,"guided_json":"","use_beam_search":false,)"
      R"("length_penalty":1.0,"early_stopping":false,"logit_bias":{},)"
      R"("allowed_token_ids":null,"logits_processors":[],"detokenize":true,)"
      R"("structured_outputs":{"json":null,"choice":[],"strict":false},)"
      R"("priority":0,"request_id":"abc","return_token_ids":false,)"
      R"("stream":false,"stream_options":{"include_usage":true},"tools":[],)"
      R"("tool_choice":"none","parallel_tool_calls":true,"user":"",)"
      R"("response_format":{"type":"text"},"top_logprobs":0,"logprobs":false,)"
      R"("prompt_cache_key":"k","safety_identifier":"s","service_tier":"auto",)"
      R"("echo":false,"add_generation_prompt":true,"documents":[],)"
      R"("chat_template_kwargs":{},"max_completion_tokens":5,"max_tokens":5,)"
      R"("vllm_xargs":{},"output_kind":0,"unheard_of":[])";
  EXPECT_EQ(Good(Completion(everywhere)).max_tokens, 5);
  EXPECT_EQ(Good(Chat(R"("messages":[{"role":"user","content":"x"}],)"
                      R"("modalities":["text"],"verbosity":"medium",)" +
                      everywhere))
                .sampling.logprobs,
            -1);
}

TEST_F(RequestParserTest, ATopPOf0IsTheLikeliestToken) {
  for (const char* zero : {"0", "0.0", "1e-60"}) {
    const Request request = Good(Completion(
        absl::StrCat(R"("temperature":1,"top_k":40,"top_p":)", zero)));
    EXPECT_EQ(request.sampling.top_k, 1);
    EXPECT_EQ(request.sampling.top_p, 1);
  }
  v1::RequestDefaults defaults;
  defaults.set_top_p(0);
  EXPECT_EQ(Good(R"({"prompt":"x"})", defaults).sampling.top_k, 1);
}

TEST_F(RequestParserTest, UrlsWithAndWithoutVersionAndSlashes) {
  for (const char* url : {"/v1/completions", "/v1/completions/", "/completions",
                          "completions", "v1/completions//"}) {
    EXPECT_EQ(Good(absl::StrCat(R"({"custom_id":"a","method":"POST","url":")",
                                url, R"(","body":{"prompt":"x"}})"))
                  .endpoint,
              Endpoint::kCompletions)
        << url;
  }
  for (const char* url :
       {"/v1/chat/completions", "/chat/completions", "/chat/completions/"}) {
    EXPECT_EQ(
        Good(absl::StrCat(
                 R"({"custom_id":"a","method":"POST","url":")", url,
                 R"(","body":{"messages":[{"role":"user","content":"x"}]}})"))
            .endpoint,
        Endpoint::kChatCompletions)
        << url;
  }
  for (const char* url :
       {"/v2/completions", "", "/", "/v1", "/v1/v1/completions",
        "/v1/completionsx", "/v1/chat"}) {
    EXPECT_EQ(Bad(absl::StrCat(R"({"custom_id":"a","method":"POST","url":")",
                               url, R"(","body":{"prompt":"x"}})"))
                  .code,
              "unknown_endpoint")
        << url;
  }
}

// Special tokens are no part of a text, so they are ends by their ids.
TEST_F(RequestParserTest, StopStringsThatAreSpecialTokens) {
  const Request request =
      Good(Completion(R"("stop":["</s>","a","</","<s>","s>"])"));
  EXPECT_THAT(request.stop, ElementsAre("a", "</", "s>"));
  EXPECT_THAT(request.stop_tokens, ElementsAre(2, 1));
  EXPECT_THAT(Good(Completion(R"("stop_token_ids":[2])")).stop_tokens,
              ElementsAre(2));
}

TEST_F(RequestParserTest, OfATextThatIsFarTooLongTheBeginningIsEnough) {
  // The cut may fall within a character.
  for (const std::string character : {"x", "\u00e9", "\u20ac", "\U0001f600"}) {
    std::string text;
    while (text.size() < 100'000) text += character;
    const LineError error = Bad(absl::StrCat(R"({"prompt":")", text, "\"}"));
    EXPECT_EQ(error.code, "prompt_too_long");
    EXPECT_EQ(error.param, "prompt");
    EXPECT_THAT(error.message, HasSubstr("it has more than 160"));
    EXPECT_THAT(error.message, HasSubstr("the model takes 100;"));
  }
  // A text that is not cut is counted whole.
  EXPECT_THAT(Bad(absl::StrCat(R"({"prompt":")", std::string(3000, 'x'), "\"}"))
                  .message,
              HasSubstr("it has 3001 tokens"));
}

TEST_F(RequestParserTest, LengthLimits) {
  const auto prompt = [](int bytes, const std::string& more = "") {
    return absl::StrCat(R"({"prompt":")", std::string(bytes, 'x'), "\"", more,
                        "}");
  };
  // 100 positions, one of them for <s>.
  EXPECT_EQ(Good(prompt(98)).max_tokens, 1);  // the default shrinks
  EXPECT_EQ(Good(prompt(89)).max_tokens, 10);
  EXPECT_EQ(Good(prompt(89, ",\"max_tokens\":10")).max_tokens, 10);
  LineError error = Bad(prompt(89, ",\"max_tokens\":11"));
  EXPECT_EQ(error.code, "invalid_request");
  EXPECT_EQ(error.param, "max_tokens");
  EXPECT_THAT(error.message,
              HasSubstr("\"max_tokens\" is 11, too many: the model takes 100 "
                        "tokens, and the prompt has 90; ask for at most 10"));
  error = Bad(prompt(99));
  EXPECT_EQ(error.code, "prompt_too_long");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_THAT(error.message, HasSubstr("it has 100 tokens"));
}

struct BadLine {
  std::string line;
  std::string code;
  std::string param;
  std::string message;  // a part of it
};

TEST_F(RequestParserTest, EveryBadLineSaysWhatIsWrong) {
  const std::string kMessages = R"("messages":[{"role":"user","content":"x"}])";
  const std::vector<BadLine> cases = {
      // Lines.
      {"", "empty_line", "", "remove it"},
      {" \t ", "empty_line", "", "empty"},
      {"hello", "invalid_json", "", "not valid JSON at byte 1"},
      {R"({"prompt":"x")", "invalid_json", "", "byte 14"},
      {R"({"prompt":"x"} {"prompt":"y"})", "invalid_json", "", "byte 16"},
      {R"({"prompt":"x","seed":NaN})", "invalid_json", "", "byte 22"},
      {R"({"prompt":"x","temperature":1e999})", "invalid_json", "",
       "out of range"},
      {R"({"prompt":"a","prompt":"b"})", "invalid_json", "", "twice"},
      {R"({"prompt":"\ud800"})", "invalid_json", "", "surrogate"},
      {"{\"prompt\":\"a\x01\"}", "invalid_json", "", "control character"},
      {std::string("{\"prompt\":\"x\"}\0", 15), "invalid_json", "",
       "NUL byte at byte 15"},
      {std::string("{\"prompt\":\"x\0y\"}", 16), "invalid_json", "",
       "NUL byte at byte 13"},
      {"{\"prompt\":\"\xC3\x28\"}", "invalid_utf8", "", "at byte 12"},
      {"{\"prompt\":\"\xED\xA0\x80\"}", "invalid_utf8", "", "at byte 12"},
      {std::string(65, '[') + std::string(65, ']'), "invalid_json", "",
       "64 levels"},
      {std::string(100'000, '['), "invalid_json", "", "64 levels"},
      {"[1,2]", "invalid_request", "", "JSON object"},
      {"\"text\"", "invalid_request", "", "JSON object"},
      {"null", "invalid_request", "", "JSON object"},
      // The envelope.
      {"{}", "missing_field", "prompt", "\"prompt\" or \"messages\""},
      {R"({"max_tokens":3})", "missing_field", "prompt", "missing"},
      {R"({"prompt":"x",)" + kMessages + "}", "invalid_request", "messages",
       "only one"},
      {R"({"custom_id":7,"prompt":"x"})", "invalid_request", "custom_id",
       "must be a string, got 7"},
      {R"({"custom_id":"","prompt":"x"})", "invalid_request", "custom_id",
       "1 to 512 bytes"},
      {R"({"method":"POST","url":"/v1/completions","body":{"prompt":"x"}})",
       "missing_field", "custom_id", "missing"},
      {R"({"custom_id":"a","url":"/v1/completions","body":{"prompt":"x"}})",
       "missing_field", "method", "POST"},
      {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})",
       "invalid_request", "method", "got \"GET\""},
      {R"({"custom_id":"a","method":"POST","body":{"prompt":"x"}})",
       "missing_field", "url", "/v1/completions"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/audio/speech","body":{}})",
       "unknown_endpoint", "url", "got \"/v1/audio/speech\""},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions"})",
       "missing_field", "body", "missing"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":3})",
       "invalid_request", "body", "must be an object"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions",)"
       R"("body":{"prompt":"x"},"extra":1})",
       "unknown_field", "extra", "into the body"},
      // Fields.
      {Completion(R"("model":"gpt-4")"), "unknown_model", "model",
       "\"gpt-4\", but the model here is called \"test-model\""},
      {Completion(R"("model":"gpt-4")"), "unknown_model", "model",
       "or start with --served-model-name \"gpt-4\""},
      {Completion(R"("model":3)"), "invalid_request", "model", "a string"},
      {Completion(R"("max_tokens":0)"), "unsupported", "max_tokens", "scoring"},
      {Completion(R"("max_tokens":-1)"), "invalid_request", "max_tokens",
       "got -1"},
      {Completion(R"("max_tokens":"9")"), "invalid_request", "max_tokens",
       "integer of at least 1, or 0 with \"echo\", got \"9\""},
      {Completion(R"("max_tokens":1.5)"), "invalid_request", "max_tokens",
       "1.5"},
      {Completion(R"("max_tokens":99999999999)"), "invalid_request",
       "max_tokens", "integer"},
      {Completion(R"("temperature":2.1)"), "invalid_request", "temperature",
       "from 0 to 2, got 2.1"},
      {Completion(R"("temperature":-0.1)"), "invalid_request", "temperature",
       "from 0 to 2"},
      {Completion(R"("temperature":true)"), "invalid_request", "temperature",
       "got true"},
      {Completion(R"("top_p":-0.1)"), "invalid_request", "top_p", "from 0"},
      {Completion(R"("top_p":1.01)"), "invalid_request", "top_p", "0 to 1"},
      {Completion(R"("top_k":-2)"), "invalid_request", "top_k", "-1 for off"},
      {Completion(R"("min_p":1.5)"), "invalid_request", "min_p", "0 to 1"},
      {Completion(R"("repetition_penalty":0)"), "invalid_request",
       "repetition_penalty", "above 0"},
      {Completion(R"("presence_penalty":3)"), "invalid_request",
       "presence_penalty", "-2 to 2"},
      {Completion(R"("frequency_penalty":-2.5)"), "invalid_request",
       "frequency_penalty", "-2 to 2"},
      {Completion(R"("logit_bias":[1])"), "invalid_request", "logit_bias",
       "an object"},
      {Completion(R"("logit_bias":{"259":1})"), "invalid_request", "logit_bias",
       "\"259\", which is no token id from 0 to 258"},
      {Completion(R"("logit_bias":{" 5":1})"), "invalid_request", "logit_bias",
       "\" 5\""},
      {Completion(R"("logit_bias":{"5":101})"), "invalid_request", "logit_bias",
       "-100 to 100"},
      {Completion(R"("seed":1.5)"), "invalid_request", "seed", "64 bits"},
      {Completion(R"("seed":18446744073709551616)"), "invalid_request", "seed",
       "64 bits"},
      {Completion(R"("stop":"")"), "invalid_request", "stop", "non-empty"},
      {Completion(R"("stop":["a",1])"), "invalid_request", "stop", "got 1"},
      {Completion(R"("stop":["1","2","3","4","5","6","7","8","9","a","b",)"
                  R"("c","d","e","f","g","h"])"),
       "invalid_request", "stop", "up to 16"},
      {Completion(R"("logprobs":21)"), "invalid_request", "logprobs",
       "0 to 20"},
      {Completion(R"("logprobs":true)"), "invalid_request", "logprobs",
       "0 to 20"},
      {Completion(R"("echo":1)"), "invalid_request", "echo", "true or false"},
      {Completion(R"("max_tokens":0,"logprobs":1)"), "unsupported",
       "max_tokens", "scoring"},
      {Completion(R"("max_tokens":0,"echo":false)"), "unsupported",
       "max_tokens", "scoring"},
      {Completion(R"("max_tokens":0,"echo":true,"logprobs":21)"),
       "invalid_request", "logprobs", "0 to 20"},
      {Completion(R"("n":0)"), "invalid_request", "n",
       "an integer from 1 to 128, got 0"},
      {Completion(R"("n":129)"), "invalid_request", "n", "from 1 to 128"},
      {Completion(R"("n":1.5)"), "invalid_request", "n", "from 1 to 128"},
      {Completion(R"("best_of":true)"), "invalid_request", "best_of",
       "from 1 to 128"},
      {Completion(R"("n":3,"best_of":2)"), "invalid_request", "best_of",
       "\"best_of\" is 2, fewer than the 3 of \"n\""},
      {Completion(R"("n":2,"echo":true)"), "unsupported", "n", "\"echo\""},
      {Completion(R"("use_beam_search":1)"), "invalid_request",
       "use_beam_search", "true or false"},
      {Completion(R"("length_penalty":2)"), "invalid_request", "length_penalty",
       "ask for one by \"use_beam_search\""},
      {Completion(R"("early_stopping":"never")"), "invalid_request",
       "early_stopping", "ask for one by \"use_beam_search\""},
      {Completion(R"("early_stopping":"always","use_beam_search":true)"),
       "invalid_request", "early_stopping", "true, false or \"never\""},
      {Completion(R"("length_penalty":1e9,"use_beam_search":true)"),
       "invalid_request", "length_penalty", "a number from -10 to 10"},
      {Completion(R"("beam_width":4)"), "unsupported", "beam_width",
       "as many beams as \"n\""},
      {Completion(R"("num_beams":4)"), "unsupported", "num_beams",
       "as many beams as \"n\""},
      {Completion(R"("n":2,"use_beam_search":true,"temperature":0.5)"),
       "unsupported", "temperature", "does not go with \"use_beam_search\""},
      {Completion(R"("n":2,"use_beam_search":true,"logprobs":1)"),
       "unsupported", "logprobs", "does not go with \"use_beam_search\""},
      {Completion(R"("use_beam_search":true,"logit_bias":{"5":1})"),
       "unsupported", "logit_bias", "does not go with \"use_beam_search\""},
      {Completion(R"("use_beam_search":true,"presence_penalty":1)"),
       "unsupported", "presence_penalty",
       "does not go with \"use_beam_search\""},
      {Completion(R"("n":2,"use_beam_search":true,"stop":"x")"), "unsupported",
       "stop", "ends answers at tokens only"},
      {Completion(R"("best_of":2,"echo":true,"logprobs":1)"), "unsupported",
       "best_of", "in a line of its own"},
      {Completion(R"("stream":true)"), "unsupported", "stream", "batch"},
      {Completion(R"("suffix":"end")"), "unsupported", "suffix",
       "fill-in-the-middle"},
      {Completion(R"("messages":[{}])"), "unknown_field", "messages",
       "is not a field of completions"},
      {Completion(R"("temprature":1)"), "unknown_field", "temprature",
       "\"temprature\" is not a field that Sluice knows; did you mean "
       "\"temperature\"?"},
      {R"({"prompt":{"a":1}})", "invalid_request", "prompt", "an object"},
      {R"({"prompt":7})", "invalid_request", "prompt", "must be a string"},
      {R"({"prompt":[]})", "invalid_request", "prompt", "empty"},
      {R"({"prompt":[1,259]})", "invalid_request", "prompt",
       "the token id 259; ids go from 0 to 258"},
      {R"({"prompt":[1,-1]})", "invalid_request", "prompt", "-1"},
      {R"({"prompt":[1,99999999999]})", "invalid_request", "prompt",
       "99999999999"},
      {R"({"prompt":[1,"a"]})", "invalid_request", "prompt", "a list with"},
      {R"({"prompt":null})", "missing_field", "prompt", "missing"},
      // Chats.
      {Chat(R"("max_tokens":3)"), "missing_field", "messages", "missing"},
      {Chat(R"("messages":"hi")"), "invalid_request", "messages", "a list"},
      {Chat(R"("messages":[])"), "invalid_request", "messages", "empty list"},
      {Chat(R"("messages":["hi"])"), "invalid_request", "messages[0]",
       "an object"},
      {Chat(R"("messages":[{"content":"x"}])"), "missing_field", "messages[0]",
       "has no \"role\""},
      {Chat(R"("messages":[{"role":"user"}])"), "missing_field", "messages[0]",
       "has no \"content\""},
      {Chat(R"("messages":[{"role":"bard","content":"x"}])"), "invalid_request",
       "messages[0].role", "got \"bard\""},
      {Chat(R"("messages":[{"role":"user","content":3}])"), "invalid_request",
       "messages[0].content", "a string or a list"},
      {Chat(R"("messages":[{"role":"user","content":[)"
            R"({"type":"image_url","image_url":{}}]}])"),
       "unsupported", "messages[0].content[0].type", "image_url"},
      {Chat(R"("messages":[{"role":"user","content":[{"text":"x"}]}])"),
       "missing_field", "messages[0].content[0]", "has no \"type\""},
      {Chat(R"("messages":[{"role":"user","content":null}])"),
       "invalid_request", "messages[0].content", "got null"},
      {Chat(R"("messages":[{"role":"assistant","content":null}])"),
       "missing_field", "messages[0]", "has no \"content\""},
      {Chat(R"("messages":[{"role":"user","content":"x","tool_calls":[{}]}])"),
       "unknown_field", "messages[0]", "tool_calls"},
      {Chat(R"("messages":[{"role":"user","content":"x","refusal":"no"}])"),
       "unknown_field", "messages[0]", "refusal"},
      {Chat(R"("messages":[{"role":"assistant","content":"x",)"
            R"("tool_calls":{}}])"),
       "invalid_request", "messages[0].tool_calls", "a list of calls"},
      {Chat(R"("messages":[{"role":"assistant","content":"x",)"
            R"("tool_calls":[1]}])"),
       "invalid_request", "messages[0].tool_calls[0]", "an object"},
      {Chat(R"("messages":[{"role":"assistant","content":"x",)"
            R"("tool_calls":[{"id":"1"}]}])"),
       "missing_field", "messages[0].tool_calls[0]", "function"},
      {Chat(R"("messages":[{"role":"assistant","content":"x",)"
            R"("tool_calls":[{"function":{"arguments":"{"}}]}])"),
       "invalid_request", "messages[0].tool_calls[0].function.arguments",
       "not valid JSON"},
      {Chat(R"("messages":[{"role":"assistant","content":"x",)"
            R"("tool_calls":[{"function":{"arguments":3}}]}])"),
       "invalid_request", "messages[0].tool_calls[0].function.arguments",
       "got 3"},
      {Chat(R"("messages":[{"role":"tool","content":"x","tool_call_id":1}])"),
       "invalid_request", "messages[0].tool_call_id", "a string"},
      {Chat(kMessages + R"(,"top_logprobs":3)"), "invalid_request",
       "top_logprobs", "needs"},
      {Chat(kMessages + R"(,"logprobs":3)"), "invalid_request", "logprobs",
       "true or false"},
      {Chat(kMessages + R"(,"max_tokens":1,"max_completion_tokens":2)"),
       "invalid_request", "max_completion_tokens", "differ"},
      {Chat(kMessages + R"(,"prompt":"x")"), "unknown_field", "prompt",
       "not a field of chat"},
      {Chat(kMessages + R"(,"tools":[{}])"), "unsupported", "tools",
       "chat template"},
      {Chat(kMessages + R"(,"modalities":["text","audio"])"), "unsupported",
       "modalities", "text only"},
      {Completion(R"("min_tokens":2)"), "unsupported", "min_tokens",
       "\"min_tokens\" is not supported, unless it is 0; instead, "
       "\"logit_bias\""},
      {Chat(kMessages + R"(,"guided_choice":["a","b"])"), "unsupported",
       "guided_choice", "\"top_logprobs\""},
      {Chat(kMessages + R"(,"structured_outputs":{"choice":["a"]})"),
       "unsupported", "structured_outputs", "\"logit_bias\""},
      {Chat(kMessages + R"(,"echo":true)"), "unsupported", "echo",
       "/v1/completions"},
      {Completion(R"("top_logprobs":3)"), "unsupported", "top_logprobs",
       "\"logprobs\": N"},
      {Completion(R"("stop_token_ids":[300])"), "invalid_request",
       "stop_token_ids", "below 259, got 300"},
      {Completion(R"("stop_token_ids":[100])"), "unsupported", "stop_token_ids",
       "no special token; give its text"},
      {Completion(R"("tools":[{}])"), "unknown_field", "tools",
       "is not a field of completions"},
      {Chat(kMessages + R"(,"response_format":{"type":"json_object"})"),
       "unsupported", "response_format", "text"},
      {Chat(kMessages + R"(,"chat_template_kwargs":{"bos_token":"x"})"),
       "invalid_request", "chat_template_kwargs", "bos_token"},
  };
  for (const BadLine& bad : cases) {
    const LineError error = Bad(bad.line);
    const std::string shown = bad.line.substr(0, 120);
    EXPECT_EQ(error.code, bad.code) << shown << "\n" << error.message;
    EXPECT_EQ(error.param, bad.param) << shown << "\n" << error.message;
    EXPECT_THAT(error.message, HasSubstr(bad.message)) << shown;
    EXPECT_LT(error.message.size(), 400u) << shown;
  }
}

TEST_F(RequestParserTest, ManyValuesAreRefusedBeforeTheyFillMemory) {
  std::string line = R"({"prompt":[0)";
  for (int i = 0; i < (1 << 20); ++i) line += ",0";
  line += "]}";
  EXPECT_EQ(Bad(line).code, "invalid_json");
  EXPECT_THAT(Bad(line).message, HasSubstr("values in one line"));
}

TEST_F(RequestParserTest, BadLinesKeepTheirCustomId) {
  const RequestParser::Line line = Parser().ParseJson(
      R"({"custom_id":"mine","prompt":"x","temperature":9})", 0);
  EXPECT_TRUE(line.error);
  EXPECT_EQ(line.custom_id, "mine");
  EXPECT_EQ(Parser().ParseJson("nonsense", 0).custom_id, "");
}

TEST_F(RequestParserTest, ChatNeedsATemplate) {
  template_.reset();
  const LineError error =
      Bad(R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(error.code, "unsupported");
  EXPECT_THAT(error.message, HasSubstr("no chat template"));
}

TEST_F(RequestParserTest, ATemplateThatCannotBeUsedStopsOnlyChats) {
  const RequestParser parser(
      {.served_model = "test-model",
       .max_model_len = 100,
       .tokenizer = &tokenizer_,
       .no_chat_template = "the model's chat template is broken"},
      {});
  EXPECT_FALSE(parser.ParseJson(R"({"prompt":"x"})", 0).error);
  const RequestParser::Line line =
      parser.ParseJson(R"({"messages":[{"role":"user","content":"x"}]})", 0);
  ASSERT_TRUE(line.error);
  EXPECT_EQ(line.error->code, "unsupported");
  EXPECT_THAT(line.error->message, HasSubstr("template is broken, so"));
}

TEST_F(RequestParserTest, ATemplateForToolsThatCannotBeUsedStopsOnlyTools) {
  const TempDir dir;
  std::filesystem::create_directory(dir.path() / "additional_chat_templates");
  std::ofstream(dir.path() / "chat_template.jinja")
      << "{{ messages[0].content }}";
  std::ofstream(dir.path() / "additional_chat_templates" / "tool_use.jinja")
      << "{% if %}";
  auto loaded = ChatTemplate::Load(dir.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  template_ = *std::move(loaded);
  Good(R"({"messages":[{"role":"user","content":"x"}]})");
  const LineError error =
      Bad(R"({"messages":[{"role":"user","content":"x"}],"tools":[)"
          R"({"type":"function","function":{"name":"f"}}]})");
  EXPECT_EQ(error.code, "unsupported");
  EXPECT_EQ(error.param, "tools");
  EXPECT_THAT(error.message, HasSubstr("tool_use.jinja"));
}

TEST_F(RequestParserTest, TheTemplatesOwnRefusalIsTold) {
  auto refusing = ChatTemplate::Parse("{{ raise_exception('roles!') }}");
  ASSERT_TRUE(refusing.ok()) << refusing.status();
  template_ = *std::move(refusing);
  const LineError error =
      Bad(R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(error.param, "messages");
  EXPECT_THAT(error.message, HasSubstr("roles!"));
}

TEST_F(RequestParserTest, ScoringNeedsNoRoomForAnAnswer) {
  const auto line = [](size_t bytes, const std::string& more) {
    return "{\"prompt\":\"" + std::string(bytes, 'a') +
           "\",\"echo\":true,\"logprobs\":3" + more + "}";
  };
  const Request scored = Good(line(99, ",\"max_tokens\":0"));  // and BOS
  EXPECT_EQ(scored.prompt.size(), 100u);
  EXPECT_EQ(scored.max_tokens, 0);
  EXPECT_TRUE(scored.scores_prompt());
  EXPECT_EQ(scored.sampling.logprobs, 3);
  EXPECT_EQ(scored.prompt_text, std::string(99, 'a'));
  const LineError error = Bad(line(100, ",\"max_tokens\":0"));
  EXPECT_EQ(error.code, "prompt_too_long");
  EXPECT_THAT(error.message, HasSubstr("101 tokens, and the model takes 100;"));
  EXPECT_EQ(Bad(line(99, "")).code, "prompt_too_long");
  EXPECT_EQ(Good(line(98, "")).max_tokens, 1);  // scored and generated
  // Chat has no echo, and without it there is nothing to answer.
  EXPECT_EQ(Bad(Chat(R"("messages":[{"role":"user","content":"x"}],)"
                     R"("max_tokens":0,"logprobs":true)"))
                .code,
            "unsupported");
  EXPECT_EQ(Bad(Chat(R"("messages":[{"role":"user","content":"x"}],)"
                     R"("echo":true)"))
                .code,
            "unsupported");
}

// Lines are outside input: whatever they hold, they give a request that fits
// the model, or an error that can be written as a line.
TEST_F(RequestParserTest, AnyBytesGiveARequestOrAnError) {
  const std::string seeds[] = {
      Completion(R"("max_tokens":7,"logit_bias":{"5":-1},"stop":["x"])"),
      Completion(R"("seed":1,"temperature":0.5,"logprobs":2,"echo":false)"),
      Completion(R"("max_tokens":0,"logprobs":5,"echo":true)"),
      Chat(R"("messages":[{"role":"user","content":[{"type":"text",)"
           R"("text":"\u00e9"}]}],"logprobs":true,"top_logprobs":1)"),
      R"({"prompt":[[1,2,3]],"top_k":-1})",
  };
  const RequestParser parser = Parser();
  std::mt19937 random(7);
  int good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string line = seeds[random() % 5];
    for (int changes = random() % 4; changes > 0; --changes) {
      const size_t at = random() % line.size();
      switch (random() % 4) {
        case 0:
          line[at] = static_cast<char>(random());
          break;
        case 1:
          line.erase(at, random() % 8);
          break;
        case 2:
          line.insert(at, 1, R"({}[]",:-0.e1"\)"[random() % 15]);
          break;
        default:
          line.insert(at, line.substr(random() % line.size(), random() % 20));
      }
      if (line.empty()) line = " ";
    }
    for (const bool text : {false, true}) {
      const RequestParser::Line parsed =
          text ? parser.ParseText(line, 0) : parser.ParseJson(line, 0);
      if (parsed.error) {
        ASSERT_FALSE(parsed.error->code.empty());
        const std::string error =
            FormatError(JobId(1), 0, parsed.custom_id, *parsed.error, kRefused);
        ASSERT_TRUE(nlohmann::json::accept(error)) << error;
        continue;
      }
      ++good;
      ASSERT_GE(parsed.request.prompt.size(), 1u) << line;
      ASSERT_GE(parsed.request.max_tokens, parsed.request.echo ? 0 : 1) << line;
      ASSERT_LE(parsed.request.prompt.size() + parsed.request.max_tokens, 100u)
          << line;
      Request back;
      ASSERT_TRUE(
          DecodeRequestParams(EncodeRequestParams(parsed.request), &back).ok())
          << line;
    }
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace sluice
