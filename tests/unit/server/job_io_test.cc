#include "server/cli/jobs/job_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class JobIoTest : public testing::Test {
 protected:
  std::string Put(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return (dir_ / name).string();
  }
  // Returns "" if it may be a file of requests.
  std::string Kind(const std::string& name, const std::string& text,
                   v1::InputFormat format = v1::INPUT_FORMAT_JSONL) const {
    v1::JobSpec spec;
    spec.set_format(format);
    const absl::Status status = InputFile::CheckKind(Put(name, text), spec);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
};

v1::Result ErrorLine(const std::string& code, const std::string& message) {
  v1::Result result;
  result.set_is_error(true);
  result.set_line(R"({"custom_id":null,"response":null,"error":{"code":")" +
                  code + R"(","message":")" + message + R"("}})");
  return result;
}

TEST_F(JobIoTest, SaysWhatAnInputIsThatHoldsNoRequests) {
  EXPECT_THAT(Kind("a.jsonl.gz", "\x1f\x8b\x08 and more"),
              HasSubstr("a.jsonl.gz: its gzip data is damaged"));
  EXPECT_THAT(Kind("a.gz", "\x1f\x8b\x08", v1::INPUT_FORMAT_TEXT),
              HasSubstr("the file was cut"));
  EXPECT_THAT(Kind("a.zst", "\x28\xb5\x2f\xfd more"), HasSubstr("zstd"));
  EXPECT_THAT(Kind("a.xz", "\xfd\x37zXZ more"), HasSubstr("xz"));
  EXPECT_THAT(Kind("a.parquet", "PAR1 more"), HasSubstr("Parquet"));
  EXPECT_THAT(Kind("a.xlsx", "PK\x03\x04 more"), HasSubstr("ZIP"));
  EXPECT_THAT(Kind("a", "\xff\xfe{ "), HasSubstr("UTF-16"));
  EXPECT_THAT(Kind("a.dat", "id,prompt\n1,\"Hello\"\n"),
              HasSubstr("--input-format csv"));
  EXPECT_THAT(Kind("a.csv", "id,text\n", v1::INPUT_FORMAT_CSV),
              HasSubstr("a.csv: line 1: the header has no column \"prompt\""));
  EXPECT_THAT(Kind("a.csv", "\"id", v1::INPUT_FORMAT_CSV),
              HasSubstr("line 1: a field begins with a quote"));
  EXPECT_THAT(Kind("a.csv", "PK\x03\x04 more", v1::INPUT_FORMAT_CSV),
              HasSubstr("ZIP"));
  EXPECT_THAT(Kind("a.json", "[\n {\"prompt\":\"x\"},\n {}]\n"),
              HasSubstr("jq -c '.[]'"));
  EXPECT_THAT(Kind("b.json", R"([{"prompt":"x"}])"), HasSubstr("jq"));
  EXPECT_THAT(Kind("a.md", "Tell me a story\nAnd another\n"),
              HasSubstr("--input-format text"));
}

TEST_F(JobIoTest, LetsRequestsPass) {
  EXPECT_EQ(Kind("a", "{\"prompt\":\"x\"}\n"), "");
  EXPECT_EQ(Kind("b", "\xef\xbb\xbf\n  {\"prompt\":\"x\"}\n"), "");
  EXPECT_EQ(Kind("c", "not JSON, but one of many\n{\"prompt\":\"x\"}\n"), "");
  // However long the lines before are.
  EXPECT_EQ(Kind("g", std::string(3 << 20, 'x') + "\n {\"prompt\":\"x\"}\n"),
            "");
  std::string lines;
  while (lines.size() < 200000) lines += "junk, as are others\n";
  EXPECT_THAT(Kind("h", lines), HasSubstr("--input-format text"));
  EXPECT_EQ(Kind("i", lines + "{}"), "");
  EXPECT_EQ(Kind("d", "[\"a list\"]\n"), "");  // a line with an error
  EXPECT_EQ(Kind("e", ""), "");
  EXPECT_EQ(Kind("f", "Tell me, please\n", v1::INPUT_FORMAT_TEXT), "");
  for (const char* table : {"prompt,id", "\"prompt\"\r\n\"x", ""}) {
    EXPECT_EQ(Kind("t", table, v1::INPUT_FORMAT_CSV), "") << table;
  }
  // A header that is longer than what is looked at is read later.
  EXPECT_EQ(Kind("w", std::string(100000, 'x'), v1::INPUT_FORMAT_CSV), "");
  EXPECT_TRUE(InputFile::CheckKind("/dev/null", v1::JobSpec()).ok());
}

// The format and the delimiter of a job's spec, or its error.
std::string FormatOf(const std::string& input, const std::string& format,
                     const TableFlags& table = {}) {
  JobFlags flags;
  flags.input = input;
  flags.format = format;
  flags.table = table;
  const auto spec = flags.ToSpec();
  if (!spec.ok()) return std::string(spec.status().message());
  return v1::InputFormat_Name(spec->format()).substr(13) +
         spec->table().delimiter();
}

TEST(JobFlagsTest, TheNameSaysTheFormatUnlessAFlagDoes) {
  const TableFlags prompt = {.prompt = "{a}"};
  EXPECT_EQ(FormatOf("a.jsonl", "auto"), "JSONL");
  EXPECT_EQ(FormatOf("a.TXT.gz", "auto"), "TEXT");
  EXPECT_EQ(FormatOf("a.csv.zst", "auto"), "CSV");
  EXPECT_EQ(FormatOf("a.tsv", "auto"), "CSV\t");
  EXPECT_EQ(FormatOf("-", "auto"), "JSONL");
  EXPECT_EQ(FormatOf("-", "auto", prompt), "CSV");
  EXPECT_EQ(FormatOf("-", "tsv", prompt), "CSV\t");
  EXPECT_EQ(FormatOf("a.csv", "jsonl"), "JSONL");
  EXPECT_EQ(FormatOf("a.tsv", "auto", {.delimiter = ";"}), "CSV;");
  EXPECT_EQ(FormatOf("a.csv", "auto", {.delimiter = "\\t"}), "CSV\t");
  EXPECT_THAT(FormatOf("a", "xml"), HasSubstr("none of auto, jsonl, text"));
  EXPECT_THAT(FormatOf("a.jsonl", "auto", prompt), HasSubstr("are for tables"));
  EXPECT_THAT(FormatOf("a.txt", "auto", {.id_column = "k"}),
              HasSubstr("taken for text"));
  EXPECT_THAT(FormatOf("a.csv", "auto", {.prompt = "none"}),
              HasSubstr("names no column"));
}

TEST_F(JobIoTest, CountsErrorsByCode) {
  ErrorCounts errors;
  errors.Add(ErrorLine("too_long", "line 3: too long a prompt"));
  errors.Add(ErrorLine("invalid_json", "line 4: no JSON"));
  errors.Add(ErrorLine("too_long", "line 9: too long a prompt"));
  v1::Result answer;
  answer.set_line("{}");
  errors.Add(answer);
  EXPECT_EQ(errors.total(), 3);
  EXPECT_EQ(errors.Text(),
            "1 invalid_json, 2 too_long; the first: line 3: too long a prompt");
  v1::Job job;
  job.mutable_counts()->set_total(3);
  job.mutable_counts()->set_failed(3);
  const absl::Status status = CheckAnySucceeded(job, errors);
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(errors.Text()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 of 3"));
  job.mutable_counts()->set_completed(1);
  EXPECT_TRUE(CheckAnySucceeded(job, errors).ok());
}

TEST(JobTextTest, ACancelledJobIsNeitherDoneNorFailed) {
  v1::Job job;
  job.set_id("job_3");
  job.set_state(v1::JOB_STATE_CANCELLED);
  job.mutable_counts()->set_total(10);
  job.mutable_counts()->set_completed(3);
  job.mutable_counts()->set_failed(7);
  job.mutable_counts()->set_cancelled(5);
  const absl::Status status = CheckAnySucceeded(job, {});
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_EQ(status.message(),
            "job_3 was cancelled: 3 of 10 requests have answers");
  EXPECT_THAT(JobToText(job), HasSubstr("10 total, 3 completed, 2 failed, 5 "
                                        "cancelled, 0 running"));
  job.set_state(v1::JOB_STATE_COMPLETED);
  job.mutable_counts()->set_cancelled(0);
  EXPECT_THAT(JobToText(job), HasSubstr("3 completed, 7 failed, 0 running"));
}

TEST_F(JobIoTest, ResultsTakeTheirFilesPlacesTogether) {
  const std::string output = Put("out", "old answers\n");
  const std::string errors = Put("err", "old errors\n");
  auto files = ResultFiles::Plan({.output = output, .errors = errors});
  ASSERT_TRUE(files.ok()) << files.status();
  v1::Result answer;
  answer.set_line(R"({"custom_id":"a"})");
  ASSERT_TRUE((*files)->Write(answer).ok());
  ASSERT_TRUE((*files)->Write(ErrorLine("bad", "line 2: bad")).ok());
  const auto get = [](const std::string& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(get(output), "old answers\n");
  EXPECT_EQ(get(errors), "old errors\n");
  ASSERT_TRUE((*files)->Commit().ok());
  EXPECT_EQ(get(output), "{\"custom_id\":\"a\"}\n");
  EXPECT_THAT(get(errors), HasSubstr("line 2: bad"));
  EXPECT_EQ((*files)->lines(), 2);
  EXPECT_TRUE(absl::IsInvalidArgument(
      ResultFiles::Plan({.output = output, .errors = output}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ResultFiles::Plan({.output = output, .inputs = {{output, "--input"}}})
          .status()));
  EXPECT_TRUE(ResultFiles::Plan({.output = "-", .errors = "-"}).ok());
}

TEST(JobTextTest, SaysWhatTheDefaultOfMaxTokensDoes) {
  v1::Job job;
  job.set_id("job_1");
  job.set_state(v1::JOB_STATE_IN_PROGRESS);
  job.mutable_counts()->set_total(7);
  EXPECT_THAT(JobToText(job), Not(HasSubstr("max_tokens")));
  job.set_requests_by_default(3);
  job.set_default_max_tokens(128);
  EXPECT_THAT(JobToText(job),
              HasSubstr("\n  3 of 7 requests do not say max_tokens: they end "
                        "after at most 128 tokens (--max-tokens says"));
  job.set_state(v1::JOB_STATE_COMPLETED);
  EXPECT_THAT(JobToText(job), Not(HasSubstr("max_tokens")));
  job.set_answers_cut_by_default(2);
  EXPECT_THAT(JobToText(job),
              HasSubstr("\n  2 answers were cut at max_tokens 128, the "
                        "default; --max-tokens allows more"));
  EXPECT_THAT(JobToJson(job), AllOf(HasSubstr("\"requests_by_default\":3"),
                                    HasSubstr("\"answers_cut_by_default\":2")));
}

TEST(JobTextTest, SaysThatAJobHasNoPlanYetAndWhyItsRequestsBeganAnew) {
  v1::Job job;
  job.set_state(v1::JOB_STATE_IN_PROGRESS);
  EXPECT_THAT(JobToText(job), HasSubstr("\n  plan       not planned yet"));
  job.set_processed_tokens(5);  // by the workers' own choice
  EXPECT_THAT(JobToText(job), Not(HasSubstr("plan  ")));
  job.set_replays(3);
  EXPECT_THAT(JobToText(job), HasSubstr("3 sequences started again after a "
                                        "failure or a new plan"));
}

}  // namespace
}  // namespace sluice
