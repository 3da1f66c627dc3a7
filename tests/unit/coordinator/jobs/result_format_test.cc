#include "coordinator/jobs/results/result_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "coordinator/jobs/results/embedding_format.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using json = nlohmann::json;

class ResultFormatTest : public testing::Test {
 protected:
  json Answer(const Request& request, const Generation& generation) {
    const std::string line =
        FormatAnswer({{request, generation}}, "test-model",
                     absl::FromUnixSeconds(1234), &tokens_);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    return json::parse(line);
  }

  Request MakeRequest(Endpoint endpoint) const {
    Request request;
    request.job = JobId(3);
    request.index = 7;
    request.custom_id = "mine";
    request.endpoint = endpoint;
    request.prompt.assign(5, 3);
    return request;
  }

  FakeTokenizer tokenizer_{FakeTokenizer::kBytes};
  TokenTexts tokens_{&tokenizer_};
};

TEST_F(ResultFormatTest, Completion) {
  Generation generation;
  generation.text = "a \"b\"\n";
  generation.generated = 4;
  generation.finish_reason = FinishReason::kLength;
  EXPECT_EQ(Answer(MakeRequest(Endpoint::kCompletions), generation),
            json::parse(R"({
    "id": "batch_req_3_7", "custom_id": "mine", "error": null,
    "response": {"status_code": 200, "request_id": "req_3_7", "body": {
      "id": "cmpl-3_7", "object": "text_completion", "created": 1234,
      "model": "test-model",
      "choices": [{"index": 0, "text": "a \"b\"\n", "logprobs": null,
                   "finish_reason": "length"}],
      "usage": {"prompt_tokens": 5, "completion_tokens": 4,
                "total_tokens": 9}}}})"));
}

TEST_F(ResultFormatTest, Chat) {
  Generation generation;
  generation.text = "yes";
  generation.generated = 2;
  EXPECT_EQ(Answer(MakeRequest(Endpoint::kChatCompletions), generation),
            json::parse(R"({
    "id": "batch_req_3_7", "custom_id": "mine", "error": null,
    "response": {"status_code": 200, "request_id": "req_3_7", "body": {
      "id": "chatcmpl-3_7", "object": "chat.completion", "created": 1234,
      "model": "test-model",
      "choices": [{"index": 0,
                   "message": {"role": "assistant", "content": "yes"},
                   "logprobs": null, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 5, "completion_tokens": 2,
                "total_tokens": 7}}}})"));
}

TEST_F(ResultFormatTest, AChoiceForEachPromptOfALine) {
  FinishedLine line(2);
  line[0].request = line[1].request = MakeRequest(Endpoint::kCompletions);
  line[1].request.part = 1;
  line[1].request.prompt = {4};
  line[0].generation.text = "one";
  line[0].generation.generated = 3;
  line[1].generation.text = "two";
  line[1].generation.generated = 4;
  line[1].generation.finish_reason = FinishReason::kLength;
  line[1].request.max_tokens_by_default = true;
  const json body = json::parse(
      FormatAnswer(line, "m", absl::UnixEpoch(), &tokens_))["response"]["body"];
  EXPECT_EQ(body["choices"], json::parse(R"([
    {"index": 0, "text": "one", "logprobs": null, "finish_reason": "stop"},
    {"index": 1, "text": "two", "logprobs": null,
     "finish_reason": "length"}])"));
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens": 6,
    "completion_tokens": 7, "total_tokens": 13})"));
  const StoredResult result =
      FormatResult(line, "m", absl::UnixEpoch(), 1 << 20, &tokens_);
  EXPECT_EQ(result.prompt_tokens, 6);
  EXPECT_EQ(result.generation_tokens, 7);
  EXPECT_EQ(result.outcome, "length");
  EXPECT_TRUE(result.cut_by_default);
}

TEST_F(ResultFormatTest, OfSeveralCandidatesTheBestAreGiven) {
  FinishedLine line(6);  // three of each of two prompts
  for (int32_t i = 0; i < 6; ++i) {
    FinishedRequest& part = line[i];
    part.request = MakeRequest(Endpoint::kCompletions);
    part.request.part = i;
    part.request.num_parts = 6;
    part.request.choices = 2;
    part.request.candidates = 3;
    part.request.sampling.logprobs = 0;
    part.request.hides_logprobs = true;
    part.generation.text = std::string(1, static_cast<char>('a' + i));
    part.generation.cached_tokens = i == 0 ? 4 : i == 1 ? 2 : 6;
  }
  // By the mean of each, not the sum.
  const std::vector<std::vector<float>> logprobs = {
      {-1, -1, -1, -1}, {-2}, {-1}, {-INFINITY}, {-3, -1}, {-2}};
  for (size_t i = 0; i < line.size(); ++i) {
    for (const float logprob : logprobs[i]) {
      line[i].generation.logprobs.emplace_back().logprob = logprob;
      ++line[i].generation.generated;
    }
  }
  line[1].generation.finish_reason = FinishReason::kLength;  // is not given
  const json body =
      json::parse(FormatAnswer(line, "m", absl::UnixEpoch(), &tokens_,
                               /*prompt_details=*/true))["response"]["body"];
  EXPECT_EQ(body["choices"], json::parse(R"([
    {"index": 0, "text": "a", "logprobs": null, "finish_reason": "stop"},
    {"index": 1, "text": "c", "logprobs": null, "finish_reason": "stop"},
    {"index": 2, "text": "e", "logprobs": null, "finish_reason": "stop"},
    {"index": 3, "text": "f", "logprobs": null, "finish_reason": "stop"}])"));
  // Each prompt once, and all that was generated.
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens": 10,
    "completion_tokens": 10, "total_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 8}})"));
  const StoredResult result =
      FormatResult(line, "m", absl::UnixEpoch(), 1 << 20, &tokens_);
  EXPECT_EQ(result.prompt_tokens, 10);
  EXPECT_EQ(result.generation_tokens, 10);
  EXPECT_EQ(result.cached_tokens, 8);
  EXPECT_EQ(result.outcome, "stop");
  line[4].generation.status = absl::InternalError("broken");
  const StoredResult failed =
      FormatResult(line, "m", absl::UnixEpoch(), 1 << 20, &tokens_);
  EXPECT_EQ(json::parse(failed.line)["error"]["param"], "prompt[1]");
  // The answers of a beam search come in their order.
  for (FinishedRequest& part : line) part.request.beams = BeamParams{};
  const json beams = json::parse(FormatAnswer(
      line, "m", absl::UnixEpoch(), &tokens_, false))["response"]["body"];
  std::string texts;
  for (const json& choice : beams["choices"]) texts += choice["text"];
  EXPECT_EQ(texts, "abde");
  EXPECT_EQ(beams["usage"]["completion_tokens"],
            body["usage"]["completion_tokens"]);
}

TEST_F(ResultFormatTest, Embeddings) {
  FinishedLine line(2);
  line[0].request = line[1].request = MakeRequest(Endpoint::kEmbeddings);
  line[0].request.pooling = line[1].request.pooling = Pooling::kMean;
  line[0].request.embedding.normalize = false;
  line[1].request.embedding.normalize = false;
  line[1].request.part = 1;
  line[0].generation.pooled = {0.1f, -2, 1e-30f};
  line[1].generation.pooled = {1, 2, 3};
  EXPECT_EQ(FormatAnswer(line, "m", absl::UnixEpoch(), &tokens_),
            R"({"id":"batch_req_3_7","custom_id":"mine","response":)"
            R"({"status_code":200,"request_id":"req_3_7","body":)"
            R"({"object":"list","data":[{"object":"embedding","index":0,)"
            R"("embedding":[0.1,-2,1e-30]},{"object":"embedding","index":1,)"
            R"("embedding":[1,2,3]}],"model":"m","usage":)"
            R"({"prompt_tokens":10,"total_tokens":10}}},"error":null})");
  const StoredResult small =
      FormatResult(line, "m", absl::UnixEpoch(), 100, &tokens_);
  EXPECT_EQ(small.outcome, "result_too_large");
  EXPECT_NE(small.line.find("fewer inputs in a line"), std::string::npos);
  line.resize(1);
  line[0].request.embedding = {true, 2, true};
  line[0].generation.pooled = {3, -4, 5};
  const json body = json::parse(
      FormatAnswer(line, "m", absl::UnixEpoch(), &tokens_))["response"]["body"];
  // struct.pack("<2f", 0.6, -0.8)
  EXPECT_EQ(body["data"][0]["embedding"], "mpkZP83MTL8=");
}

TEST(EmbeddingOfTest, IsCutFirstAndNormalizedThen) {
  using testing::ElementsAre;
  EXPECT_THAT(EmbeddingOf({3, 4, 12}, {true, 0, false}),
              ElementsAre(3 / 13.0f, 4 / 13.0f, 12 / 13.0f));
  EXPECT_THAT(EmbeddingOf({3, 4, 12}, {true, 2, false}),
              ElementsAre(0.6f, 0.8f));
  EXPECT_THAT(EmbeddingOf({3, 4, 12}, {false, 2, false}), ElementsAre(3, 4));
  EXPECT_THAT(EmbeddingOf({0, 0}, {true, 0, false}), ElementsAre(0, 0));
  // Squares of these are beyond float32.
  EXPECT_THAT(EmbeddingOf({3e30f, 4e30f}, {true, 0, false}),
              ElementsAre(testing::FloatEq(0.6f), testing::FloatEq(0.8f)));
}

Generation WithLogprobs() {
  Generation generation;
  generation.text = "h\xC3\xA9";
  generation.tokens = {'h' + 3, 0xC3 + 3, 0xA9 + 3};
  generation.generated = 3;
  SampledToken token;
  token.token = 'h' + 3;
  token.logprob = -0.5f;
  token.top = {{'h' + 3, -0.5f}, {'i' + 3, -1.5f}};
  generation.logprobs.push_back(token);
  token.token = 0xC3 + 3;
  token.logprob = -std::numeric_limits<float>::infinity();
  token.top = {{'x' + 3, -0.25f}};
  generation.logprobs.push_back(token);
  token.token = 0xA9 + 3;
  token.logprob = -2;
  token.top = {};
  generation.logprobs.push_back(token);
  return generation;
}

TEST_F(ResultFormatTest, ChatLogprobs) {
  Request request = MakeRequest(Endpoint::kChatCompletions);
  request.sampling.logprobs = 0;
  const json line = Answer(request, WithLogprobs());
  EXPECT_EQ(line["response"]["body"]["choices"][0]["logprobs"], json::parse(R"({
    "content": [
      {"token": "h", "logprob": -0.5, "bytes": [104], "top_logprobs": [
        {"token": "h", "logprob": -0.5, "bytes": [104]},
        {"token": "i", "logprob": -1.5, "bytes": [105]}]},
      {"token": "�", "logprob": -9999.0, "bytes": [195], "top_logprobs": [
        {"token": "x", "logprob": -0.25, "bytes": [120]}]},
      {"token": "�", "logprob": -2.0, "bytes": [169], "top_logprobs": []}],
    "refusal": null})"));
}

TEST_F(ResultFormatTest, CompletionLogprobsAndEcho) {
  Request request = MakeRequest(Endpoint::kCompletions);
  request.sampling.logprobs = 0;
  request.echo = true;
  request.prompt_text = "\xC3\xA9!";
  request.prompt.clear();
  const json line = Answer(request, WithLogprobs());
  const json& choice = line["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "\xC3\xA9!h\xC3\xA9");
  EXPECT_EQ(choice["logprobs"], json::parse(R"({
    "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9"],
    "token_logprobs": [-0.5, -9999.0, -2.0],
    "top_logprobs": [{"h": -0.5, "i": -1.5},
                     {"x": -0.25, "bytes:\\xc3": -9999.0},
                     {"bytes:\\xa9": -2.0}],
    "text_offset": [2, 3, 3]})"));
}

// The token that ended the answer counts, and is no part of the text.
TEST_F(ResultFormatTest, LogprobOfTheEnd) {
  Generation generation = WithLogprobs();
  SampledToken end;
  end.token = 2;
  end.logprob = -0.25f;
  end.top = {{2, -0.25f}, {'i' + 3, -1.5f}};
  generation.logprobs.push_back(end);
  generation.generated = 4;
  Request request = MakeRequest(Endpoint::kCompletions);
  request.sampling.logprobs = 2;
  request.echo = true;
  request.prompt_text = "\xC3\xA9!";
  request.prompt.clear();
  const json choice =
      Answer(request, generation)["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "\xC3\xA9!h\xC3\xA9");
  EXPECT_EQ(choice["logprobs"]["tokens"][3], "</s>");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][3], -0.25);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][3],
            json::parse(R"({"</s>": -0.25, "i": -1.5})"));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json::parse("[2,3,3,4]"));

  request.endpoint = Endpoint::kChatCompletions;
  const json content = Answer(
      request,
      generation)["response"]["body"]["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4);
  EXPECT_EQ(content[3]["token"], "</s>");
  EXPECT_EQ(content[3]["top_logprobs"].size(), 2);
}

TEST_F(ResultFormatTest, ScoredPrompt) {
  Request request;
  request.endpoint = Endpoint::kCompletions;
  request.prompt = {1, 'h' + 3, 0xC3 + 3, 0xA9 + 3, '!' + 3};
  request.prompt_text = "h\xC3\xA9!";
  request.echo = true;
  request.sampling.logprobs = 2;
  Generation generation;
  generation.finish_reason = FinishReason::kLength;
  TokenScores& scores = generation.prompt_scores;
  scores.begin = 1;
  scores.logprobs = {-0.1f, -1e-7f, -std::numeric_limits<float>::infinity(),
                     -3};
  scores.num_top = 2;
  // The alternatives have the token itself, two that are no text, and padding.
  scores.top = {{'h' + 3, -0.1f}, {'i' + 3, -2.5f},  {0xC3 + 3, -1e-7f},
                {0xC4 + 3, -20},  {'x' + 3, -0.25f}, {-1, 0},
                {'y' + 3, -0.5f}, {'z' + 3, -1}};
  const json line = Answer(request, generation);
  const json& body = line["response"]["body"];
  EXPECT_EQ(body["choices"][0], json::parse(R"({
    "index": 0, "text": "h\u00e9!", "finish_reason": "length",
    "logprobs": {
      "tokens": ["<s>", "h", "bytes:\\xc3", "bytes:\\xa9", "!"],
      "token_logprobs": [null, -0.1, -1e-07, -9999.0, -3.0],
      "top_logprobs": [null, {"h": -0.1, "i": -2.5},
                       {"bytes:\\xc3": -1e-07, "bytes:\\xc4": -20.0},
                       {"x": -0.25, "bytes:\\xa9": -9999.0},
                       {"y": -0.5, "z": -1.0, "!": -3.0}],
      "text_offset": [0, 0, 1, 1, 2]}})"));
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens": 5,
    "completion_tokens": 0, "total_tokens": 5})"));
  EXPECT_TRUE(
      body["choices"][0]["logprobs"]["token_logprobs"][4].is_number_float());

  // The generated tokens follow the prompt's.
  request.prompt = {1, 'h' + 3};
  request.prompt_text = "h";
  generation.prompt_scores.logprobs = {-1};
  generation.prompt_scores.top.resize(2);
  SampledToken token;
  token.token = 'i' + 3;
  token.logprob = -0.5f;
  generation.tokens = {token.token};
  generation.logprobs = {token};
  generation.text = "i";
  generation.generated = 1;
  const json both = Answer(request, generation);
  const json& choice = both["response"]["body"]["choices"][0];
  EXPECT_EQ(choice["text"], "hi");
  EXPECT_EQ(choice["logprobs"]["tokens"], json::parse(R"(["<s>","h","i"])"));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"],
            json::parse("[null,-1.0,-0.5]"));
  EXPECT_EQ(choice["logprobs"]["text_offset"], json::parse("[0,0,1]"));
}

// The tokens' texts differ from the prompt's, as the tokenizer normalized it,
// or special tokens occur in it.
TEST_F(ResultFormatTest, OffsetsOfAPromptThatIsNotItsTokens) {
  const auto offsets = [&](std::vector<int32_t> prompt, std::string text) {
    Request request = MakeRequest(Endpoint::kCompletions);
    request.sampling.logprobs = 0;
    request.echo = true;
    request.prompt_text = std::move(text);
    Generation generation;
    generation.prompt_scores.logprobs.resize(prompt.size() - 1);
    request.prompt = std::move(prompt);
    return Answer(request, generation)["response"]["body"]["choices"][0]
                                      ["logprobs"]["text_offset"]
                                          .dump();
  };
  EXPECT_EQ(offsets({1, 'a' + 3, 'b' + 3}, "AB"), "[0,0,1]");
  EXPECT_EQ(offsets({1, 'a' + 3, 'b' + 3}, "\xC3\x84\xC3\x96"), "[0,0,1]");
  EXPECT_EQ(offsets({1, ' ' + 3, 'b' + 3}, "b"), "[0,0,0]");
  EXPECT_EQ(offsets({1, 'a' + 3, 2, 'b' + 3}, "a</s>b"), "[0,0,1,5]");
  EXPECT_EQ(offsets({'a' + 3, 'b' + 3, 'c' + 3}, "a"), "[0,1,1]");
  EXPECT_EQ(offsets({'a' + 3, 'b' + 3}, ""), "[0,0]");
}

TEST_F(ResultFormatTest, BytesThatAreNoTextBecomeReplacements) {
  Generation generation;
  generation.text = "a\xFF";
  Request request = MakeRequest(Endpoint::kCompletions);
  request.custom_id = "";
  const json line = Answer(request, generation);
  EXPECT_EQ(line["response"]["body"]["choices"][0]["text"], "a\xEF\xBF\xBD");
  EXPECT_TRUE(line["custom_id"].is_null());
}

TEST_F(ResultFormatTest, Errors) {
  const LineError broken = {"invalid_json", "broken", ""};
  // Both of OpenAI's readers, and vLLM's, find the error.
  EXPECT_EQ(json::parse(FormatError(JobId(3), 7, "", broken, kRefused)),
            json::parse(R"({"id": "batch_req_3_7", "custom_id": null,
              "response": {"status_code": 400, "request_id": "req_3_7",
                "body": {"error": {"message": "line 8: broken",
                  "type": "invalid_request_error", "param": null,
                  "code": "invalid_json"}}},
              "error": {"code": "invalid_json", "message": "line 8: broken",
                        "param": null, "line": 8}})"));
  const json failed =
      json::parse(FormatError(JobId(3), 7, "x", broken, kFailed));
  EXPECT_EQ(failed["response"]["status_code"], 500);
  EXPECT_EQ(failed["response"]["body"]["error"]["type"], "server_error");
  EXPECT_TRUE(json::parse(FormatError(JobId(3), 7, "x", broken, 0))["response"]
                  .is_null());
  const LineError cancelled = ErrorOfStatus(absl::CancelledError("x"));
  EXPECT_EQ(cancelled.code, "batch_cancelled");
  const LineError internal = ErrorOfStatus(absl::InternalError("not numbers"));
  EXPECT_EQ(internal.code, "internal");
  EXPECT_EQ(internal.message, "not numbers");
}

// Python's splitlines(), httpx and Node's readline know more ends of lines.
TEST_F(ResultFormatTest, NothingEndsALine) {
  const std::string ends = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e\r\n";
  Generation generation = WithLogprobs();
  generation.text = ends;
  Request request = MakeRequest(Endpoint::kCompletions);
  request.custom_id = request.prompt_text = ends;
  request.echo = true;
  std::vector<std::string> lines = {
      FormatError(JobId(1), 0, ends, {"code", ends, ends}, kRefused),
      FormatAnswer({{request, generation}}, ends, absl::UnixEpoch(), &tokens_)};
  request.endpoint = Endpoint::kChatCompletions;
  lines.push_back(
      FormatAnswer({{request, generation}}, ends, absl::UnixEpoch(), &tokens_));
  for (const std::string& line : lines) {
    for (const char* end : {"\u2028", "\u2029", "\u0085", "\x0b", "\x0c",
                            "\x1c", "\x1d", "\x1e", "\r", "\n"}) {
      EXPECT_EQ(line.find(end), std::string::npos) << line;
    }
    EXPECT_EQ(json::parse(line)["custom_id"], ends);
  }
}

// A tokenizer of which tokens have no text or the same one.
class SparseTokenizer : public FakeTokenizer {
 public:
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 50) text += id < 40 ? "same" : "other";
    }
    return text;
  }
};

TEST_F(ResultFormatTest, NoTokensMelt) {
  const SparseTokenizer tokenizer;
  TokenTexts tokens(&tokenizer);
  Request request = MakeRequest(Endpoint::kCompletions);
  request.sampling.logprobs = 5;
  Generation generation;
  generation.tokens = {8, 60};
  generation.generated = 2;
  generation.logprobs.resize(2);
  generation.logprobs[0].token = 8;
  generation.logprobs[0].logprob = -3;
  generation.logprobs[0].top = {{7, -1}, {45, -2}, {8, -3}, {60, -4}, {46, -5}};
  generation.logprobs[1].token = 60;
  generation.logprobs[1].logprob = -9;
  generation.logprobs[1].top = {{61, -1}, {62, -2}};
  const json line = json::parse(
      FormatAnswer({{request, generation}}, "m", absl::UnixEpoch(), &tokens));
  const json& logprobs = line["response"]["body"]["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::parse(R"(["same", ""])"));
  // A token's own text is its own entry, even where others are likelier.
  EXPECT_EQ(logprobs["top_logprobs"], json::parse(R"([
    {"token_id:7": -1.0, "other": -2.0, "same": -3.0, "": -4.0,
     "token_id:46": -5.0},
    {"token_id:61": -1.0, "token_id:62": -2.0, "": -9.0}])"));
}

// A tokenizer with GPT-2's tokens: a byte that is no character alone.
class ByteLevelTokenizer : public FakeTokenizer {
 public:
  std::string IdToToken(int32_t) const override {
    return "\xC4\xA0\xC3\xA2";  // "Ġâ": a space and 0xE2
  }
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) text += " \xEF\xBF\xBD";
    return text;
  }
};

TEST(TokenTextsTest, BytesOfByteLevelTokens) {
  const ByteLevelTokenizer tokenizer;
  TokenTexts texts(&tokenizer);
  EXPECT_EQ(texts.Get(9).text, " \xEF\xBF\xBD");
  EXPECT_EQ(texts.Get(9).bytes, " \xE2");
  EXPECT_EQ(texts.Get(9).quoted, "\"bytes: \\\\xe2\"");
}

// A tokenizer that decodes like SentencePiece: it drops a text's first space.
class SpaceDroppingTokenizer : public FakeTokenizer {
 public:
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) text += " the";
    return text.substr(1);
  }
};

TEST(TokenTextsTest, KeepsTheLeadingSpace) {
  const SpaceDroppingTokenizer tokenizer;
  TokenTexts texts(&tokenizer);
  EXPECT_EQ(texts.Get(9).text, " the");
}

}  // namespace
}  // namespace sluice
