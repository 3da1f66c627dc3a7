// Lines through the tokenizers, chat templates and generation defaults of
// models that were really trained.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/jobs/requests/request_parser.h"
#include "coordinator/jobs/results/token_texts.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Model {
  explicit Model(const std::string& name) {
    const std::filesystem::path path =
        std::filesystem::path(TestsDir()) / "models" / name;
    auto opened = ModelDir::Open(path);
    auto loaded = Tokenizer::Load(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (opened.ok()) dir = *std::move(opened);
    if (loaded.ok()) tokenizer = *std::move(loaded);
    auto chat = ChatTemplate::Load(path);
    EXPECT_TRUE(chat.ok() || absl::IsNotFound(chat.status())) << chat.status();
    if (chat.ok()) chat_template = *std::move(chat);
  }

  RequestParser Parser() const {
    return RequestParser({.served_model = "m",
                          .max_model_len = dir->spec().max_positions,
                          .default_max_tokens = 16,
                          .model = dir.get(),
                          .tokenizer = tokenizer.get(),
                          .chat_template = chat_template.get()},
                         {});
  }

  std::unique_ptr<ModelDir> dir;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

TEST(RequestModelsTest, ChatWithTheModelsTemplate) {
  const Model model("llama-kjv");
  const RequestParser::Line line = model.Parser().ParseJson(
      R"({"messages": [{"role": "user", "content": " And God said "}]})", 0);
  ASSERT_FALSE(line.error) << line.error->message;
  const Request& request = line.request;
  EXPECT_EQ(model.tokenizer->Decode(request.prompt, false),
            model.tokenizer->special_tokens().at("bos_token") +
                "<|start_header_id|>user<|end_header_id|>\n\nAnd God said"
                "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  // The template wrote the one token of the text's beginning.
  EXPECT_EQ(request.prompt[0], model.dir->spec().bos_token_id);
  EXPECT_NE(request.prompt[1], model.dir->spec().bos_token_id);
  // generation_config.json samples.
  EXPECT_EQ(request.sampling.temperature, 0.7f);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
}

TEST(RequestModelsTest, CompletionsGetTheBeginningOfText) {
  for (const char* name : {"llama-kjv", "opt-kjv"}) {
    const Model model(name);
    const RequestParser::Line line =
        model.Parser().ParseJson(R"({"prompt": "In the beginning"})", 0);
    ASSERT_FALSE(line.error) << line.error->message;
    EXPECT_EQ(line.request.prompt[0], model.dir->spec().bos_token_id) << name;
    EXPECT_EQ(model.tokenizer->Decode(line.request.prompt, true),
              "In the beginning");
  }
}

TEST(RequestModelsTest, AModelWithoutTemplateRefusesChats) {
  const Model model("opt-kjv");
  const RequestParser::Line line = model.Parser().ParseJson(
      R"({"messages": [{"role": "user", "content": "x"}]})", 0);
  ASSERT_TRUE(line.error);
  EXPECT_THAT(line.error->message, HasSubstr("no chat template"));
  // Its generation_config.json is empty, so sampling is greedy.
  EXPECT_EQ(model.Parser().ParseText("x", 0).request.sampling.temperature, 0);
}

TEST(RequestModelsTest, TextsOfTokensAddUpToTheText) {
  const std::string text = "Jos\xC3\xA9 wept \xF0\x9F\x98\x80, and it was so.";
  for (const char* name : {"llama-kjv", "opt-kjv"}) {
    const Model model(name);
    TokenTexts texts(model.tokenizer.get());
    auto ids = model.tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok());
    std::string bytes;
    for (const int32_t id : *ids) bytes += texts.Get(id).bytes;
    EXPECT_EQ(bytes, text) << name;
  }
}

}  // namespace
}  // namespace sluice
