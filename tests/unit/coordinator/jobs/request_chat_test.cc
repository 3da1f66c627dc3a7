// Chat requests against the prompts that Hugging Face makes of them; see
// tests/golden/README.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/jobs/requests/request_parser.h"
#include "tests/support/test_paths.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

class RequestChatTest : public testing::Test {
 protected:
  // The prompt's text, or the error's.
  std::string Prompt(const std::string& source, const ordered_json& body) {
    auto parsed = ChatTemplate::Parse(source);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (!parsed.ok()) return "";
    const RequestParser parser({.served_model = "m",
                                .max_model_len = 1 << 20,
                                .tokenizer = &tokenizer_,
                                .chat_template = parsed->get()},
                               {});
    const RequestParser::Line line = parser.ParseJson(body.dump(), 0);
    if (line.error) return line.error->code + ": " + line.error->message;
    return tokenizer_.Decode(line.request.prompt, false);
  }

  FakeTokenizer tokenizer_{FakeTokenizer::kBytes};
};

TEST_F(RequestChatTest, PromptsAreHuggingFaces) {
  std::ifstream file(TestsDir() + "/golden/chat/requests.json");
  const ordered_json rows = ordered_json::parse(file);
  ASSERT_GE(rows.size(), 59u);
  for (const ordered_json& row : rows) {
    EXPECT_EQ(Prompt(row["template"], row["body"]), row["expected"])
        << row["name"] << ": " << row["body"].dump();
  }
}

TEST_F(RequestChatTest, WhatTheTemplateWouldDropIsAnError) {
  const ordered_json tool = ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f"}}])");
  ordered_json body = {
      {"messages",
       ordered_json::parse(R"([{"role": "user", "content": "x"}])")}};
  const std::string plain = "{{ messages[0].content }}";
  EXPECT_EQ(Prompt(plain, body), "x");
  for (const auto& [name, value] :
       {std::pair<const char*, ordered_json>("tools", tool),
        std::pair<const char*, ordered_json>("documents", tool),
        std::pair<const char*, ordered_json>("reasoning_effort", "low")}) {
    ordered_json asking = body;
    asking[name] = value;
    EXPECT_THAT(Prompt(plain, asking),
                testing::AllOf(HasSubstr("unsupported"), HasSubstr(name)));
    EXPECT_EQ(Prompt(plain + "{{ '' if " + name + " }}", asking), "x");
  }
}

TEST_F(RequestChatTest, ToolsThatCannotBeHonoured) {
  const std::string source = "{{ messages[0].content }}{{ tools | tojson }}";
  ordered_json body = ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "x"}],
          "tools": [{"type": "function", "function": {"name": "f"}}]})");
  const auto with = [&](const char* name, ordered_json value) {
    ordered_json asking = body;
    asking[name] = std::move(value);
    return Prompt(source, asking);
  };
  EXPECT_THAT(with("tool_choice", "required"), HasSubstr("unsupported"));
  EXPECT_THAT(with("tool_choice", {{"type", "function"}}),
              HasSubstr("unsupported"));
  EXPECT_THAT(with("parallel_tool_calls", false), HasSubstr("unsupported"));
  EXPECT_THAT(with("tools", "f"), HasSubstr("a list of objects, got \"f\""));
  EXPECT_THAT(with("tools", ordered_json::parse("[1]")),
              HasSubstr("a list of objects, got 1"));
  EXPECT_THAT(
      with("chat_template_kwargs", {{"tools", ordered_json::parse("[{}]")}}),
      HasSubstr("give only one"));
}

TEST_F(RequestChatTest, TheTemplateSeesAllSpecialTokensThatThereAre) {
  const std::string source =
      "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"
      "{{ messages[0].content }}";
  const ordered_json body = ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(Prompt(source, body), "<s></s>Falsex");
}

TEST_F(RequestChatTest, AnObjectOfManyNamesIsReadOnce) {
  // A list that is searched for each name would take minutes.
  std::string line = R"({"messages": [{"role": "user", "content": "x"}],)"
                     R"("chat_template_kwargs": {)";
  for (int i = 0; i < 200'000; ++i) {
    line += "\"" + std::to_string(i) + "\":0,";
  }
  auto parsed = ChatTemplate::Parse("{{ messages[0].content }}");
  ASSERT_TRUE(parsed.ok());
  const RequestParser parser({.served_model = "m",
                              .max_model_len = 1 << 20,
                              .tokenizer = &tokenizer_,
                              .chat_template = parsed->get()},
                             {});
  EXPECT_FALSE(parser.ParseJson(line + "\"x\":0}}", 0).error);
  const RequestParser::Line twice = parser.ParseJson(line + "\"7\":0}}", 0);
  ASSERT_TRUE(twice.error);
  EXPECT_THAT(twice.error->message, HasSubstr("twice"));
}

}  // namespace
}  // namespace sluice
