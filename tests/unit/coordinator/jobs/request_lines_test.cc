#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/requests/json_line.h"
#include "coordinator/jobs/requests/line_splitter.h"

namespace sluice {
namespace {

using testing::ElementsAre;

constexpr char kTooLong[] = "<too long>";

// The lines of an input that arrives in pieces of `piece` bytes.
std::vector<std::string> Split(const std::string& input, size_t piece,
                               int64_t limit = 8) {
  std::vector<std::string> lines;
  LineSplitter splitter(limit, [&](absl::string_view line, bool too_long) {
    lines.emplace_back(too_long ? kTooLong : std::string(line));
    return absl::OkStatus();
  });
  for (size_t i = 0; i < input.size(); i += piece) {
    EXPECT_TRUE(splitter.Append(input.substr(i, piece)).ok());
  }
  EXPECT_TRUE(splitter.Finish().ok());
  return lines;
}

TEST(LineSplitterTest, AnyCutGivesTheSameLines) {
  const std::string kMark = "\xEF\xBB\xBF";
  const struct {
    std::string input;
    std::vector<std::string> lines;
  } cases[] = {
      {"", {}},
      {"\n", {}},
      {"\n\na\n\r\n", {"", "", "a"}},
      {"a", {"a"}},
      {"a\nb\n", {"a", "b"}},
      {"a\r\n\r\nb\r", {"a", "", "b"}},
      {"a\n\n", {"a"}},
      {"a\n\n123456789\n\n", {"a", "", kTooLong}},
      // Only kEmptyLines of many empty lines are held back.
      {std::string(LineSplitter::kEmptyLines, '\n'), {}},
      {std::string(LineSplitter::kEmptyLines + 1, '\n'),
       std::vector<std::string>(LineSplitter::kEmptyLines + 1)},
      {"a\r\r\n", {"a\r"}},
      {kMark, {}},
      {kMark + "\n", {}},
      {kMark + "a\n" + kMark + "b", {"a", kMark + "b"}},
      {"12345678\n", {"12345678"}},
      {"12345678\r\n", {"12345678"}},
      {kMark + "12345678\r\n", {"12345678"}},
      {"123456789\nb", {kTooLong, "b"}},
      {"b\n" + std::string(100, 'x') + "\nc\n", {"b", kTooLong, "c"}},
      {std::string(100, 'x'), {kTooLong}},
      {kMark + "123456789", {kTooLong}},
  };
  for (const auto& test : cases) {
    for (const size_t piece : {1, 2, 3, 7, 1000}) {
      EXPECT_EQ(Split(test.input, piece), test.lines)
          << testing::PrintToString(test.input) << " by " << piece;
    }
  }
}

TEST(LineSplitterTest, AnErrorEndsIt) {
  int lines = 0;
  LineSplitter splitter(8, [&](absl::string_view, bool) {
    return ++lines == 2 ? absl::ResourceExhaustedError("enough")
                        : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsResourceExhausted(splitter.Append("a\nb\nc\n")));
  EXPECT_EQ(lines, 2);
}

TEST(JobIdsTest, AreParsedStrictly) {
  EXPECT_EQ(FormatJobId(JobId(17)), "job_17");
  EXPECT_EQ(ParseJobId("job_17").value(), JobId(17));
  for (const char* bad :
       {"", "17", "job_", "job_0", "job_017", "job_-1", "job_+1", "job_1 ",
        " job_1", "JOB_1", "job_1x", "job_99999999999999999999"}) {
    EXPECT_TRUE(absl::IsNotFound(ParseJobId(bad).status())) << bad;
  }
}

TEST(JobIdsTest, PageTokensAreCheckedWhole) {
  const std::string token = FormatPageToken(JobId(123));
  EXPECT_EQ(ParsePageToken(token).value(), JobId(123));
  for (const std::string& bad : {std::string("x"), token + "=", token.substr(1),
                                 std::string("MTIz"), std::string("\xFF")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePageToken(bad).status())) << bad;
  }
}

// Objects grow after their inner values were read.
TEST(JsonLineTest, NamesOfNestedObjectsKeepTheirValuesAndOrder) {
  constexpr int kLevels = 60;
  std::string line = R"([1,"two",{"three":[3.5,null,true]}])";
  for (int level = 0; level < kLevels; ++level) {
    std::string object = absl::StrCat("{\"z", level, "\":", line);
    for (int i = 0; i < level; ++i) {
      absl::StrAppend(&object, ",\"name ", i, "\":\"value ", i, "\"");
    }
    line = absl::StrCat(object, "}");
  }
  const auto value = ParseJsonLine(line);
  const auto* json = std::get_if<nlohmann::ordered_json>(&value);
  ASSERT_NE(json, nullptr);
  EXPECT_EQ(json->dump(), line);
}

TEST(MessageTextTest, QuotesAnything) {
  EXPECT_EQ(QuoteForMessage("plain"), "\"plain\"");
  EXPECT_EQ(QuoteForMessage("a\"b\\c\n"), "\"a\\\"b\\\\c\\x0a\"");
  EXPECT_EQ(QuoteForMessage("\xFFz"), "\"\xEF\xBF\xBDz\"");
  EXPECT_EQ(QuoteForMessage("abcdef", 3), "\"abc...\"");
  // A cut never splits a character.
  EXPECT_EQ(QuoteForMessage("ab\xC3\xA9zz", 3), "\"ab...\"");
  EXPECT_EQ(CountCharacters("a\xC3\xA9\xF0\x9F\x98\x80"), 3u);
}

}  // namespace
}  // namespace sluice
