// Lines of several prompts, and of texts to be embedded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "coordinator/jobs/requests/request_parser.h"
#include "tests/support/fake_tokenizer.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RequestPromptsTest : public testing::Test {
 protected:
  RequestParser::Line Parse(const std::string& line,
                            const v1::RequestDefaults& defaults = {}) const {
    return RequestParser({.served_model = "test-model",
                          .max_model_len = 100,
                          .default_max_tokens = 16,
                          .model = nullptr,
                          .tokenizer = &tokenizer_,
                          .chat_template = nullptr},
                         defaults)
        .ParseJson(line, 0);
  }
  Request Good(const std::string& line,
               const v1::RequestDefaults& defaults = {}) const {
    RequestParser::Line parsed = Parse(line, defaults);
    EXPECT_FALSE(parsed.error) << line << ": " << parsed.error->message;
    return parsed.request;
  }
  std::string PromptText(const Request& request) const {
    return tokenizer_.Decode(request.prompt, false);
  }

  static std::string Completion(const std::string& fields) {
    return R"({"custom_id":"a","method":"POST","url":"/v1/completions",)"
           R"("body":{"prompt":"hi",)" +
           fields + "}}";
  }

  static std::string Embedding(const std::string& fields) {
    return R"({"custom_id":"a","method":"POST","url":"/v1/embeddings",)"
           R"("body":{)" +
           fields + "}}";
  }

  FakeTokenizer tokenizer_{FakeTokenizer::kBytes};
};

TEST_F(RequestPromptsTest, SeveralPromptsInALine) {
  const Request line =
      Good(R"({"prompt":["one",[5,6],"three"],"echo":true,"seed":7})");
  EXPECT_EQ(line.prompt.size(), 4u + 2 + 6);
  EXPECT_EQ(MaxTokensOfLine(line), 3 * 16);
  const auto requests = SplitLine(line);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  const char* const alone[] = {R"({"prompt":"one","seed":7})",
                               R"({"prompt":[5,6],"seed":7})",
                               R"({"prompt":"three","seed":7})"};
  for (int32_t i = 0; i < 3; ++i) {
    const Request& request = (*requests)[i];
    const Request expected = Good(alone[i]);
    EXPECT_EQ(request.part, i);
    EXPECT_EQ(request.num_parts, 3);
    EXPECT_EQ(request.prompt, expected.prompt);
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_EQ(request.sampling.seed, expected.sampling.seed);
    EXPECT_TRUE(request.parts.empty());
  }
  EXPECT_EQ((*requests)[2].prompt_text, "three");
  // Each has room by its own length.
  const auto some =
      SplitLine(Good(R"({"prompt":["a",")" + std::string(95, 'x') + "\"]}"));
  EXPECT_EQ((*some)[0].max_tokens, 16);
  EXPECT_EQ((*some)[1].max_tokens, 4);
}

TEST_F(RequestPromptsTest, PromptsOfALineWithoutASeedGetSeedsOfTheirOwn) {
  v1::RequestDefaults defaults;
  defaults.set_seed(3);
  const auto line = SplitLine(Good(R"({"prompt":["a","a","a"]})", defaults));
  std::set<uint64_t> seeds;
  for (const Request& request : *line) seeds.insert(request.sampling.seed);
  EXPECT_EQ(seeds.size(), 3u);
  // The first one's is that of a line with one prompt.
  EXPECT_EQ((*line)[0].sampling.seed,
            Good(R"({"prompt":"a"})", defaults).sampling.seed);
}

TEST_F(RequestPromptsTest, ChoicesArePartsWithSeedsThatFollow) {
  const Request line = Good(
      R"({"prompt":["one",[5,6]],"n":2,"best_of":3,"seed":18446744073709551614})");
  EXPECT_EQ(line.prompt.size(), 4u + 2);
  EXPECT_EQ(MaxTokensOfLine(line), 6 * 16);
  EXPECT_TRUE(line.hides_logprobs);
  const auto requests = SplitLine(line);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 6u);
  for (int32_t i = 0; i < 6; ++i) {
    const Request& request = (*requests)[i];
    const char* const seeds[] = {"18446744073709551614", "18446744073709551615",
                                 "0"};
    const Request expected =
        Good(std::string(R"({"prompt":)") + (i < 3 ? "\"one\"" : "[5,6]") +
             ",\"seed\":" + seeds[i % 3] + "}");
    EXPECT_EQ(request.part, i);
    EXPECT_EQ(request.prompt, expected.prompt);
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_EQ(request.sampling.seed, expected.sampling.seed);
    EXPECT_EQ(request.sampling.logprobs, 0);
    EXPECT_EQ(request.counts_prompt(), i % 3 == 0);
  }
  const Request shown =
      Good(R"({"prompt":"one","n":1,"best_of":2,"logprobs":0})");
  EXPECT_TRUE(shown.shows_logprobs());
  // Without a seed, each part has one of its own, the first that of the line.
  std::set<uint64_t> seeds;
  const auto without = SplitLine(Good(R"({"prompt":["a","b"],"n":2})"));
  for (const Request& request : *without) seeds.insert(request.sampling.seed);
  EXPECT_EQ(seeds.size(), 4u);
  EXPECT_EQ((*without)[0].sampling.seed,
            Good(R"({"prompt":"a"})").sampling.seed);
}

TEST_F(RequestPromptsTest, BeamsAreOneRequestOfEachPrompt) {
  const Request line = Good(
      R"({"prompt":["one",[5,6]],"n":2,"best_of":3,"use_beam_search":true,)"
      R"("length_penalty":0.5,"early_stopping":"never","stop":["</s>"]})");
  EXPECT_EQ(line.parts.size(), 6u);
  EXPECT_EQ(MaxTokensOfLine(line), 6 * 16);
  const auto requests = SplitLine(line);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_THAT((*requests)[1].prompt, ElementsAre(5, 6));
  for (int32_t i = 0; i < 2; ++i) {
    const Request& request = (*requests)[i];
    EXPECT_EQ(request.part, 3 * i);
    EXPECT_EQ(request.num_parts, 6);
    EXPECT_EQ(request.choices, 2);
    EXPECT_EQ(request.candidates, 3);
    ASSERT_TRUE(request.beams.has_value());
    EXPECT_EQ(request.beams->length_penalty, 0.5F);
    EXPECT_EQ(request.beams->early_stopping, EarlyStopping::kNever);
    EXPECT_EQ(request.sampling.temperature, 0);
    EXPECT_EQ(request.sampling.logprobs, -1);
    EXPECT_EQ(request.stop_tokens.size(), 1u);
  }
  // A job's temperature is for what is sampled.
  v1::RequestDefaults defaults;
  defaults.set_temperature(0.7);
  const Request one =
      Good(R"({"prompt":"a","use_beam_search":true})", defaults);
  EXPECT_FALSE(one.beams.has_value());
  EXPECT_EQ(one.sampling.temperature, 0);
  EXPECT_EQ(Good(R"({"prompt":"a","n":2,"use_beam_search":true,)"
                 R"("temperature":0,"early_stopping":true})",
                 defaults)
                .beams->early_stopping,
            EarlyStopping::kYes);
}

TEST_F(RequestPromptsTest, ReadsEmbeddings) {
  Request request = Good(Embedding(R"("input":"hey")"));
  EXPECT_EQ(request.endpoint, Endpoint::kEmbeddings);
  EXPECT_EQ(PromptText(request), "<s>hey");
  EXPECT_EQ(request.max_tokens, 0);
  // Without files that say anything else.
  EXPECT_EQ(request.pooling, Pooling::kLastToken);
  EXPECT_TRUE(request.embedding.normalize);
  EXPECT_EQ(request.embedding.dimensions, 0);
  EXPECT_FALSE(request.embedding.base64);
  request = Good(Embedding(
      R"("input":[[5,6],"b"],"dimensions":3,"encoding_format":"base64",)"
      R"("user":"u","model":"test-model")"));
  EXPECT_EQ(request.embedding.dimensions, 3);
  EXPECT_TRUE(request.embedding.base64);
  const auto parts = SplitLine(request);
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_THAT((*parts)[0].prompt, ElementsAre(5, 6));
  EXPECT_EQ((*parts)[1].pooling, Pooling::kLastToken);
  EXPECT_EQ(Good(Embedding(R"("input":")" + std::string(99, 'x') + "\""))
                .prompt.size(),
            100u);  // all positions
}

TEST_F(RequestPromptsTest, TruncationKeepsTheLastTokens) {
  const std::string b200(200, 'b');
  EXPECT_EQ(PromptText(Good(
                Embedding(R"("input":"hello","truncate_prompt_tokens":3)"))),
            "llo");
  EXPECT_EQ(
      PromptText(Good(Embedding(R"("input":"hi","truncate_prompt_tokens":3)"))),
      "<s>hi");
  const auto parts = SplitLine(Good(
      Embedding(R"("input":["hello",[5,6,7]],"truncate_prompt_tokens":2)")));
  EXPECT_EQ(PromptText((*parts)[0]), "lo");
  EXPECT_THAT((*parts)[1].prompt, ElementsAre(6, 7));
  // -1 keeps what fits, of a completion beside what it is to generate.
  EXPECT_EQ(
      Good(Embedding(R"("truncate_prompt_tokens":-1,"input":")" + b200 + "\""))
          .prompt.size(),
      100u);
  const auto completion = [&](const std::string& fields,
                              const v1::RequestDefaults& defaults = {}) {
    const Request request =
        Good(R"({"prompt":")" + b200 + "\"," + fields + "}", defaults);
    return std::pair(request.prompt.size(), request.max_tokens);
  };
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":-1,"max_tokens":30)"),
            std::pair(size_t{70}, 30));
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":-1)"),
            std::pair(size_t{99}, 1));
  v1::RequestDefaults defaults;
  defaults.set_max_tokens(40);
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":-1)", defaults),
            std::pair(size_t{60}, 40));
  EXPECT_EQ(completion(R"("truncate_prompt_tokens":10,"max_tokens":90)"),
            std::pair(size_t{10}, 90));
  // What is echoed is what was kept.
  const Request echoed =
      Good(R"({"prompt":"hello","truncate_prompt_tokens":2,"echo":true})");
  EXPECT_EQ(echoed.prompt_text, "lo");
}

struct RefusedLine {
  std::string line;
  std::string code;
  std::string param;
  std::string message;  // a part of it
};

TEST_F(RequestPromptsTest, EveryRefusedLineSaysWhatIsWrong) {
  const std::vector<RefusedLine> cases = {
      {R"({"prompt":["a",{}]})", "invalid_request", "prompt[1]",
       "\"prompt[1]\" must be a string"},
      {R"({"prompt":[[1],[]]})", "invalid_request", "prompt[1]", "empty"},
      {R"({"prompt":[[1],[2,259]]})", "invalid_request", "prompt[1]",
       "the token id 259"},
      {R"({"prompt":["a",[[1]]]})", "invalid_request", "prompt[1]",
       "a list with"},
      {R"({"prompt":["a",")" + std::string(100, 'x') + R"("]})",
       "prompt_too_long", "prompt[1]", "it has 101 tokens"},
      {R"({"prompt":[)" +
           absl::StrJoin(std::vector<int>(2049), ",",
                         [](std::string* out, int) { out->append("\"a\""); }) +
           "]}",
       "invalid_request", "prompt",
       "a list of 2049; a line takes at most 2048"},
      // Choices.
      {R"({"n":128,"prompt":[)" +
           absl::StrJoin(std::vector<int>(17), ",",
                         [](std::string* out, int) { out->append("\"a\""); }) +
           "]}",
       "invalid_request", "n", "a line takes at most 2048 answers"},
      // Embeddings.
      {Embedding(R"("input":"a","n":2)"), "unknown_field", "n",
       "is not a field of embeddings"},
      {Embedding(R"("user":"u")"), "missing_field", "input",
       "\"input\" is missing; embeddings need it"},
      {Embedding(R"("input":7)"), "invalid_request", "input",
       "\"input\" must be a string"},
      {Embedding(R"("input":["a",null])"), "invalid_request", "input[1]",
       "must be a string"},
      {Embedding(R"("input":"a","prompt":"b")"), "unknown_field", "prompt",
       "is not a field of embeddings"},
      {Embedding(R"("input":"a","max_tokens":1)"), "unknown_field",
       "max_tokens", "is not a field of embeddings"},
      {Embedding(R"("input":"a","dimension":1)"), "unknown_field", "dimension",
       "did you mean \"dimensions\"?"},
      {Embedding(R"("input":"a","dimensions":0)"), "invalid_request",
       "dimensions", "at least 1"},
      {Embedding(R"("input":"a","encoding_format":"bytes")"), "invalid_request",
       "encoding_format", "\"float\" or \"base64\""},
      {Embedding(R"("input":"a","truncate_prompt_tokens":0)"),
       "invalid_request", "truncate_prompt_tokens",
       "an integer of at least 1, or -1"},
      {Embedding(R"("input":"a","truncate_prompt_tokens":-2)"),
       "invalid_request", "truncate_prompt_tokens", "or -1"},
      {Embedding(R"("input":"a","truncate_prompt_tokens":"5")"),
       "invalid_request", "truncate_prompt_tokens", "an integer"},
      {Embedding(R"("input":"a","truncate_prompt_tokens":101)"),
       "invalid_request", "truncate_prompt_tokens",
       "is 101, but the model takes 100 tokens; give at most as many, or -1"},
      {Completion(R"("truncate_prompt_tokens":101)"), "invalid_request",
       "truncate_prompt_tokens", "the model takes 100"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions",)"
       R"("body":{"messages":[],"truncate_prompt_tokens":5}})",
       "unsupported", "truncate_prompt_tokens", "shorten the prompt"},
      {Embedding(R"("input":"a","normalize":false)"), "unsupported",
       "normalize", "the model's files say"},
      {Embedding(R"("input":")" + std::string(100, 'x') + "\""),
       "prompt_too_long", "input",
       "\"input\" has 101 tokens, and the model takes 100; shorten it"},
      {Completion(R"("input":"a")"), "unknown_field", "input",
       "is not a field of completions"},
  };
  for (const RefusedLine& bad : cases) {
    const RequestParser::Line parsed = Parse(bad.line);
    ASSERT_TRUE(parsed.error) << bad.line;
    EXPECT_EQ(parsed.error->code, bad.code) << bad.line;
    EXPECT_EQ(parsed.error->param, bad.param) << bad.line;
    EXPECT_THAT(parsed.error->message, HasSubstr(bad.message)) << bad.line;
  }
}

}  // namespace
}  // namespace sluice
