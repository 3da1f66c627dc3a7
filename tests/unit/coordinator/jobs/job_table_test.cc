// Tests of jobs that are made of tables.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/content_hash.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class JobTableTest : public testing::Test, public TestJobs {
 protected:
  JobTableTest() {
    EXPECT_TRUE(Open().ok());
    spec.set_format(v1::INPUT_FORMAT_CSV);
    spec.mutable_table()->set_prompt("Is {text} good?");
  }

  // The prompts of all requests of a table, each behind its custom_id.
  std::vector<std::string> PromptsOf(const std::string& text) {
    const auto job = Submit(text, spec);
    EXPECT_TRUE(job.ok()) << job.status();
    std::vector<std::string> prompts;
    const auto requests = manager->TakeRequests(100);
    for (const Request& request : *requests) {
      prompts.push_back(absl::StrCat(request.custom_id, "|",
                                     tokenizer.Decode(request.prompt, true)));
    }
    return prompts;
  }
  std::string Refusal(const std::string& text) {
    const absl::Status status = Submit(text, spec).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
    return std::string(status.message());
  }

  v1::JobSpec spec;
};

TEST_F(JobTableTest, PromptsAreMadeOfRows) {
  EXPECT_THAT(
      PromptsOf("id,text\n1,\"a, b\"\n\n2,\"two\nlines\"\n"),
      testing::ElementsAre("row-1|Is a, b good?", "row-2|Is two\nlines good?"));
  spec.mutable_table()->set_prompt("{{{text}}} {id}{text}");
  spec.mutable_table()->set_id_column("id");
  spec.mutable_table()->set_delimiter(";");
  EXPECT_THAT(PromptsOf("\xEF\xBB\xBFtext;id\r\nx;n-1\r\n"),
              testing::ElementsAre("n-1|{x} n-1x"));
  spec.mutable_table()->Clear();
  EXPECT_THAT(PromptsOf("custom_id,prompt,\nk,Say {x},unused"),
              testing::ElementsAre("k|Say {x}"));
}

TEST_F(JobTableTest, BadRowsGetErrorsWithTheirLines) {
  options.max_line_bytes = 100;
  Reopen();
  spec.mutable_table()->set_id_column("id");
  const std::string input =
      absl::StrCat("id,text\n",                        // 1
                   "a,good\n",                         // 2
                   "b\n",                              // 3
                   "c,\"two\nlines\",more\n",          // 4, 5
                   "d,\xFF\n",                         // 6
                   "e,\"quoted\" badly\n",             // 7
                   "a,again\n",                        // 8
                   ",no id\n",                         // 9
                   "f,", std::string(101, 'x'), "\n",  // 10
                   "g,", std::string(95, 'x'), "\n",   // 11
                   "h,\"\n\"\n",                       // 12, 13
                   "last,one");                        // 14
  const auto job = Submit(input, spec);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->input_hash(), HexHash(input));
  EXPECT_EQ(AnswerAll(), 3);
  EXPECT_EQ(WaitForEnd(job->id()).state(), v1::JOB_STATE_COMPLETED);
  const std::vector<json> lines = Results(job->id());
  const struct {
    const char* code;
    int line;
    const char* message;
  } expected[] = {{nullptr, 2, ""},
                  {"invalid_row", 3, "has 1 field, and the header 2"},
                  {"invalid_row", 4, "has 3 fields"},
                  {"invalid_utf8", 6, "field 2 is not valid UTF-8"},
                  {"invalid_row", 7, "closing quote"},
                  {"duplicate_custom_id", 8, "was used on line 2 already"},
                  {"invalid_request", 9, "column \"id\""},
                  {"line_too_long", 10, "the row is longer than 100 bytes"},
                  {"line_too_long", 11, "the prompt of this row"},
                  {nullptr, 12, ""},
                  {nullptr, 14, ""}};
  ASSERT_EQ(lines.size(), std::size(expected));
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& error = lines[i]["error"];
    if (expected[i].code == nullptr) {
      EXPECT_TRUE(error.is_null()) << error;
      continue;
    }
    EXPECT_EQ(error["code"], expected[i].code) << error;
    EXPECT_EQ(error["line"], expected[i].line) << error;
    const auto message = error["message"].get<std::string>();
    EXPECT_THAT(message,
                StartsWith(absl::StrCat("line ", expected[i].line, ": ")));
    EXPECT_THAT(message, HasSubstr(expected[i].message));
  }
}

TEST_F(JobTableTest, AnEmptyPromptIsAnError) {
  spec.mutable_table()->set_prompt("{text}");
  const auto job = Submit("a,text\n1,\n", spec);
  ASSERT_TRUE(job.ok()) << job.status();
  const std::vector<json> lines = Results(job->id());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["error"]["code"], "empty_line");
  EXPECT_EQ(lines[0]["custom_id"], "row-1");
  EXPECT_THAT(lines[0]["error"]["message"].get<std::string>(),
              HasSubstr("line 2: the prompt is empty"));
}

TEST_F(JobTableTest, ALaterFailureNamesTheLineToo) {
  const auto job = Submit("text\n\"a\nb\"\nc\n", spec);
  ASSERT_TRUE(job.ok()) << job.status();
  Reopen();  // the line comes from the store
  auto requests = manager->TakeRequests(10);
  ASSERT_EQ(requests->size(), 2u);
  for (Request& request : *requests) {
    Generation failed;
    failed.status = absl::InternalError("no luck");
    manager->Complete(std::move(request), std::move(failed));
  }
  WaitForEnd(job->id());
  const std::vector<json> lines = Results(job->id());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["error"]["line"], 2);
  EXPECT_EQ(lines[1]["error"]["line"], 4);
}

TEST_F(JobTableTest, WhatIsNoTableIsNoJob) {
  EXPECT_THAT(Refusal("id,label\n1,2\n"),
              HasSubstr("line 1: the header has no column \"text\"; it has "
                        "\"id\", \"label\"; write {{ for a brace"));
  EXPECT_THAT(Refusal("text,a,text\nx,y,z\n"),
              HasSubstr("columns 1 and 3 of the header are both named"));
  EXPECT_THAT(Refusal("id;text\n1;x\n"), HasSubstr("if \";\" stands between"));
  EXPECT_THAT(Refusal("text\n"), HasSubstr("no rows behind its header"));
  EXPECT_THAT(Refusal(""), HasSubstr("no rows behind its header"));
  EXPECT_THAT(Refusal("text\nx\n\"y\nz\n"), HasSubstr("line 3: "));
  EXPECT_THAT(Refusal("te\xFFxt\nx\n"), HasSubstr("not valid UTF-8 at byte 3"));
  EXPECT_THAT(Refusal("\"text\"x\nx\n"), HasSubstr("behind a closing quote"));
  EXPECT_THAT(Refusal(std::string(20000, ',')), HasSubstr("20001 columns"));
  spec.mutable_table()->set_id_column("key");
  EXPECT_THAT(Refusal("text\nx\n"), HasSubstr("no column \"key\""));
  spec.clear_table();
  EXPECT_THAT(Refusal("text\nx\n"),
              HasSubstr("no column \"prompt\"; it has \"text\"; say what"));
}

TEST_F(JobTableTest, SpecsOfTablesAreChecked) {
  for (const auto& [prompt, message] :
       {std::pair("no column", "names no column"),
        {"{text", "byte 1: a { that"},
        {"x }", "byte 3: a } alone"},
        {"{}", "{} names no column"},
        {"{a{b}}", "byte 1: a { that"}}) {
    spec.mutable_table()->set_prompt(prompt);
    EXPECT_THAT(Refusal("text\nx\n"), HasSubstr(message)) << prompt;
  }
  spec.mutable_table()->set_prompt(std::string(70000, 'x') + "{text}");
  EXPECT_THAT(Refusal("text\nx\n"), HasSubstr("more than 65536 bytes"));
  spec.mutable_table()->set_prompt("{text}");
  for (const char* delimiter : {"\"", "\n", ";;", "\xC3\xA4", "\x01"}) {
    spec.mutable_table()->set_delimiter(delimiter);
    EXPECT_THAT(Refusal("text\nx\n"), HasSubstr("is not one ASCII character"));
  }
  spec.mutable_table()->set_delimiter(",");
  spec.set_format(v1::INPUT_FORMAT_TEXT);
  EXPECT_THAT(Refusal("text\nx\n"), HasSubstr("spec.table"));
}

}  // namespace
}  // namespace sluice
