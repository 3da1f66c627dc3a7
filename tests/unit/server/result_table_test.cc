#include "server/cli/jobs/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/content_hash.h"
#include "common/host/stop_signals.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::Result ResultOf(int64_t index, const std::string& line) {
  v1::Result result;
  result.set_index(index);
  result.set_line(line);
  return result;
}

v1::Result AnswerOf(int64_t index, const std::string& choices) {
  return ResultOf(index,
                  absl::StrCat(R"({"id":"x","custom_id":"row-)", index + 1,
                               R"(","response":{"status_code":200,"body":{)"
                               R"("choices":[)",
                               choices, R"(]}},"error":null})"));
}

class ResultTableTest : public testing::Test {
 protected:
  std::unique_ptr<InputRows> Open(const std::string& text,
                                  const std::string& hash = "",
                                  char delimiter = ',') {
    const std::string path = (dir_.path() / "in.csv").string();
    std::ofstream(path, std::ios::binary) << text;
    auto rows = InputRows::Open(path, delimiter, hash, &signals_);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return *std::move(rows);
  }

  TempDir dir_;
  StopSignals signals_{StopSignals::Options()};
};

TEST_F(ResultTableTest, FormatsComeFromNamesOrAreSaid) {
  const auto format = [](const char* say, const char* path) {
    return OutputFormatOf(say, path).value();
  };
  EXPECT_EQ(format("auto", "a/b.CSV"), OutputFormat::kCsv);
  EXPECT_EQ(format("auto", "b.tsv"), OutputFormat::kTsv);
  EXPECT_EQ(format("auto", "b.jsonl"), OutputFormat::kJsonl);
  EXPECT_EQ(format("auto", "-"), OutputFormat::kJsonl);
  EXPECT_EQ(format("csv", "-"), OutputFormat::kCsv);
  EXPECT_EQ(format("tsv", "b.csv"), OutputFormat::kTsv);
  EXPECT_EQ(format("jsonl", "b.csv"), OutputFormat::kJsonl);
  EXPECT_THAT(std::string(OutputFormatOf("xml", "-").status().message()),
              HasSubstr("\"xml\" is none of auto, jsonl, csv, tsv"));
}

TEST_F(ResultTableTest, WithoutRowsTheCustomIdComesFirst) {
  const ResultTable table(',');
  EXPECT_EQ(table.Header(), "custom_id,answer,finish_reason,error\n");
  EXPECT_EQ(
      table.Row(AnswerOf(0, R"({"text":"a, \"b\"","finish_reason":"stop"})"))
          .value(),
      "row-1,\"a, \"\"b\"\"\",stop,\n");
  EXPECT_EQ(
      table
          .Row(AnswerOf(
              1, R"({"message":{"role":"assistant","content":"two\nlines"},)"
                 R"("finish_reason":"length"})"))
          .value(),
      "row-2,\"two\nlines\",length,\n");
  EXPECT_EQ(table
                .Row(ResultOf(2, R"({"custom_id":"k","response":null,"error":)"
                                 R"({"code":"bad","message":"line 3: no"}})"))
                .value(),
            "k,,,bad: line 3: no\n");
  // Several choices, and what is no completion, are JSON.
  EXPECT_EQ(table
                .Row(AnswerOf(3, R"({"text":"x","finish_reason":"stop"},)"
                                 R"({"text":"y","finish_reason":"length"})"))
                .value(),
            "row-4,\"[\"\"x\"\",\"\"y\"\"]\",\"[\"\"stop\"\",\"\"length\"\"]\","
            "\n");
  EXPECT_EQ(ResultTable('\t')
                .Row(ResultOf(4, R"({"custom_id":null,"response":{"body":)"
                                 R"({"data":[1]}},"error":null})"))
                .value(),
            "\t\"{\"\"data\"\":[1]}\"\t\t\n");
}

TEST_F(ResultTableTest, RowsStandBeforeTheirAnswers) {
  const std::string text =
      "id,answer,sluice_answer,error\r\n1,\"a\nb\",x,y\r\n\r\n2\r\n3,c,d,e,"
      "f\r\n"
      "4,\xFF,,\r\n";
  auto rows = Open(text, HexHash(text));
  const ResultTable table(',', rows.get());
  EXPECT_EQ(table.Header(),
            "id,answer,sluice_answer,error,sluice_sluice_answer,finish_reason,"
            "sluice_error\n");
  const std::string answer = R"({"text":"t","finish_reason":"stop"})";
  EXPECT_EQ(table.Row(AnswerOf(0, answer)).value(), "1,\"a\nb\",x,y,t,stop,\n");
  EXPECT_EQ(table.Row(AnswerOf(1, answer)).value(), "2,,,,t,stop,\n");
  EXPECT_EQ(table.Row(AnswerOf(2, answer)).value(), "3,c,d,e,t,stop,\n");
  EXPECT_EQ(table.Row(AnswerOf(3, answer)).value(),
            "4,\xEF\xBF\xBD,,,t,stop,\n");
  EXPECT_TRUE(rows->Check().ok());
}

TEST_F(ResultTableTest, RowsMayBeginLater) {
  std::string text = "n\n";
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, i, "\n");
  auto rows = Open(text, HexHash(text));
  for (const int64_t i : {0, 1, 1, 70000, 70001, 99999}) {
    const auto fields = rows->Get(i);
    ASSERT_TRUE(fields.ok()) << fields.status();
    EXPECT_THAT(*fields, ElementsAre(absl::StrCat(i)));
  }
  EXPECT_TRUE(rows->Check().ok());
}

TEST_F(ResultTableTest, AnotherFileIsRefused) {
  const std::string text = "n\n1\n2\n";
  auto rows = Open("n\n1\n3\n", HexHash(text));
  EXPECT_TRUE(rows->Get(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(rows->Check())) << rows->Check();
  rows = Open("n\n1\n", HexHash(text));
  const absl::Status status = rows->Get(1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("in.csv is not the file that the job was made of"));
  EXPECT_TRUE(Open(text, "")->Check().ok());  // of an early version's job
}

TEST_F(ResultTableTest, AFileThatCannotBeReadIsNamed) {
  const auto rows = InputRows::Open("/nowhere/in.csv", ',', "", &signals_);
  EXPECT_TRUE(absl::IsInvalidArgument(rows.status())) << rows.status();
  EXPECT_THAT(std::string(rows.status().message()), HasSubstr("/nowhere/in"));
}

}  // namespace
}  // namespace sluice
