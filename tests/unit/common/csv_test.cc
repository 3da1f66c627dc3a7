#include "common/text/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Row {
  std::vector<std::string> fields;
  int64_t line = 0;
  size_t num_fields = 0;
  bool too_long = false, misquoted = false;
  bool operator==(const Row&) const = default;
};

// Cuts `text` into rows in pieces of `piece` bytes.
std::vector<Row> Split(absl::string_view text, char delimiter, size_t piece,
                       int64_t max_row_bytes, absl::Status* status) {
  std::vector<Row> rows;
  CsvSplitter splitter(delimiter, max_row_bytes, [&](const CsvRow& row) {
    Row& copy = rows.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) copy.fields.emplace_back(row[i]);
    copy.line = row.line();
    copy.num_fields = row.num_fields();
    copy.too_long = row.too_long();
    copy.misquoted = row.misquoted();
    return absl::OkStatus();
  });
  *status = absl::OkStatus();
  for (size_t at = 0; at < text.size() && status->ok(); at += piece) {
    *status = splitter.Append(text.substr(at, piece));
  }
  if (status->ok()) *status = splitter.Finish();
  return rows;
}

// The rows of a table, which must not depend on how it is cut.
std::vector<Row> Rows(absl::string_view text, char delimiter = ',',
                      int64_t max_row_bytes = 1000) {
  absl::Status status;
  std::vector<Row> rows =
      Split(text, delimiter, text.size() + 1, max_row_bytes, &status);
  EXPECT_TRUE(status.ok()) << status;
  for (const size_t piece : {1, 2, 3, 5}) {
    EXPECT_EQ(Split(text, delimiter, piece, max_row_bytes, &status), rows)
        << "in pieces of " << piece;
  }
  return rows;
}

std::vector<std::vector<std::string>> Fields(absl::string_view text,
                                             char delimiter = ',') {
  std::vector<std::vector<std::string>> fields;
  for (Row& row : Rows(text, delimiter)) fields.push_back(row.fields);
  return fields;
}

TEST(CsvTest, FieldsAndQuotes) {
  EXPECT_THAT(Fields("a,b\n1,2\n"),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("1", "2")));
  EXPECT_THAT(Fields("a,b\r\n1,2\r\n"),
              ElementsAre(ElementsAre("a", "b"), ElementsAre("1", "2")));
  EXPECT_THAT(Fields("\"a,b\",\"c\"\"d\",\"\"\n"),
              ElementsAre(ElementsAre("a,b", "c\"d", "")));
  EXPECT_THAT(Fields("\"two\nlines\",\"and\r\nmore\"\r\nx,y"),
              ElementsAre(ElementsAre("two\nlines", "and\r\nmore"),
                          ElementsAre("x", "y")));
  EXPECT_THAT(Fields(",,\n,"),
              ElementsAre(ElementsAre("", "", ""), ElementsAre("", "")));
  // A quote in the middle, a return that ends nothing, and spaces stay.
  EXPECT_THAT(Fields("5\" pipe, x ,a\rb\n"),
              ElementsAre(ElementsAre("5\" pipe", " x ", "a\rb")));
  EXPECT_THAT(Fields("a\tb,c\td\n", '\t'),
              ElementsAre(ElementsAre("a", "b,c", "d")));
  EXPECT_THAT(Fields("\"\"\"\""), ElementsAre(ElementsAre("\"")));
}

TEST(CsvTest, MarksAndEmptyLinesAreSkipped) {
  EXPECT_THAT(Fields("\xEF\xBB\xBF\"a\",b\n"),
              ElementsAre(ElementsAre("a", "b")));
  // A part of a mark is text.
  EXPECT_THAT(Fields("\xEF\xBB,b\n"),
              ElementsAre(ElementsAre("\xEF\xBB", "b")));
  EXPECT_THAT(Fields("\xEF\xBB"), ElementsAre(ElementsAre("\xEF\xBB")));
  EXPECT_THAT(Fields(""), ElementsAre());
  EXPECT_THAT(Fields("\n\r\na\n\n\r\nb\n\n"),
              ElementsAre(ElementsAre("a"), ElementsAre("b")));
  // A quoted field is no empty line.
  EXPECT_THAT(Fields("\"\"\n"), ElementsAre(ElementsAre("")));
}

TEST(CsvTest, RowsKnowTheirLines) {
  const std::vector<Row> rows = Rows("h\n\n\"1\n2\n\",x\nlast");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].line, 1);
  EXPECT_EQ(rows[1].line, 3);
  EXPECT_EQ(rows[2].line, 6);
}

TEST(CsvTest, TextBehindAClosingQuoteIsMarked) {
  const std::vector<Row> rows = Rows("\"a\"b,c\n\"x\" ,y\n\"d\"\re,f\ng,h\n");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[0].misquoted);
  EXPECT_TRUE(rows[1].misquoted);
  EXPECT_TRUE(rows[2].misquoted);
  EXPECT_FALSE(rows[3].misquoted);
  EXPECT_THAT(rows[3].fields, ElementsAre("g", "h"));
}

TEST(CsvTest, AnOpenQuoteIsAnErrorWithItsLine) {
  absl::Status status;
  const std::vector<Row> rows =
      Split("a\nb\n\"c\nd\ne\n", ',', 100, 1000, &status);
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 3: "));
}

TEST(CsvTest, WhatIsTooLongIsNotKept) {
  const std::string text = "a,b\n" + std::string(60, 'x') + "," +
                           std::string(60, 'y') + "\n\"" +
                           std::string(101, '\n') + "\",z\nc,d\n";
  const std::vector<Row> rows = Rows(text, ',', 100);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[1].too_long && rows[2].too_long);
  EXPECT_TRUE(rows[1].fields.empty());
  EXPECT_EQ(rows[1].num_fields, 2u);
  EXPECT_FALSE(rows[3].too_long);
  EXPECT_EQ(rows[3].line, 105);
  EXPECT_THAT(rows[3].fields, ElementsAre("c", "d"));
  // Nor are more fields than a row may have.
  const std::vector<Row> wide = Rows(std::string(20000, ',') + "end\nx\n");
  ASSERT_EQ(wide.size(), 2u);
  EXPECT_EQ(wide[0].num_fields, 20001u);
  EXPECT_EQ(wide[0].fields.size(), kMaxCsvFields);
  EXPECT_THAT(wide[1].fields, ElementsAre("x"));
}

TEST(CsvTest, AnErrorOfTheConsumerEndsTheSplitting) {
  int rows = 0;
  CsvSplitter splitter(',', 100, [&](const CsvRow&) {
    ++rows;
    return absl::CancelledError("enough");
  });
  EXPECT_TRUE(absl::IsCancelled(splitter.Append("a\nb\nc\n")));
  EXPECT_EQ(rows, 1);
}

TEST(CsvTest, WhatIsWrittenReadsTheSame) {
  const std::vector<std::string> fields = {
      "plain", "", "a,b", "a;b", "q\"q", "\"", "l\nl", "r\r", " ", "\t"};
  for (const char delimiter : {',', ';', '\t'}) {
    std::string text;
    for (const std::string& field : fields) {
      AppendCsvField(field, delimiter, &text);
      text += delimiter;
    }
    text += "end\n";
    std::vector<std::string> expected = fields;
    expected.emplace_back("end");
    EXPECT_THAT(Fields(text, delimiter), ElementsAre(expected)) << text;
  }
  std::string text;
  AppendCsvField("a;b", ',', &text);
  EXPECT_EQ(text, "a;b");  // no quotes without need
}

}  // namespace
}  // namespace sluice
