#include "common/text/text.h"

#include <gtest/gtest.h>

#include <string>

#include "common/text/utf8.h"

namespace sluice {
namespace {

TEST(TextTest, ClipsOnlyBetweenCharacters) {
  EXPECT_EQ(ClipUtf8("abc", 3), "abc");
  EXPECT_EQ(ClipUtf8("abc", 2), "ab");
  EXPECT_EQ(ClipUtf8("abc", 0), "");
  EXPECT_EQ(ClipUtf8("", 0), "");
  const std::string limit(4095, 'x');
  EXPECT_EQ(ClipUtf8(limit + "\u00E9", 4096), limit);
  EXPECT_EQ(ClipUtf8(limit + "\u00E9", 4097), limit + "\u00E9");
}

TEST(TextTest, ClipsEveryLengthOfEveryWidth) {
  const std::string text = "a\u00E9\u20AC\U0001F600z\U0001F600";
  for (size_t n = 0; n <= text.size(); ++n) {
    const absl::string_view clipped = ClipUtf8(text, n);
    EXPECT_FALSE(FindInvalidUtf8(clipped)) << n;
    EXPECT_LE(clipped.size(), n);
    EXPECT_GT(clipped.size() + 4, n) << "cuts no more than it must";
  }
}

TEST(TextTest, ClipsBytesThatAreNoCharacters) {
  EXPECT_EQ(ClipUtf8("a\x80\x80\x80\x80\x80\x80", 4), "a\x80\x80\x80");
  EXPECT_EQ(ClipUtf8("ab\xC3(cd", 3), "ab\xC3");
  EXPECT_EQ(ClipUtf8("\xFF\xFF\xFF\xFF\xFF", 2), "\xFF\xFF");
}

TEST(TextTest, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(EscapeInvalidUtf8("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(EscapeInvalidUtf8("caf\xE9"), "caf\\xe9");
  EXPECT_EQ(EscapeInvalidUtf8("\xED\xA0\x80/x"), "\\xed\\xa0\\x80/x");
  EXPECT_EQ(EscapeInvalidUtf8("a\nb"), "a\nb");
  std::string all;
  for (int c = 255; c >= 0; --c) all += static_cast<char>(c);
  EXPECT_FALSE(FindInvalidUtf8(EscapeInvalidUtf8(all)));
}

TEST(TextTest, EscapesWhatATerminalObeys) {
  EXPECT_EQ(EscapeForTerminal("caf\u00E9 \u65E5\u672C"),
            "caf\u00E9 \u65E5\u672C");
  EXPECT_EQ(EscapeForTerminal("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(EscapeForTerminal("a\r\nb\tc"), "a\\r\\nb\\tc");
  EXPECT_EQ(EscapeForTerminal(absl::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(EscapeForTerminal("\xC2\x9B"
                              "31m"),
            "\\u009b31m");
  EXPECT_EQ(EscapeForTerminal("\u202Eexe.\u202C\u2066\u2069"),
            "\\u202eexe.\\u202c\\u2066\\u2069");
  EXPECT_EQ(EscapeForTerminal("a\u2028b\xE9"), "a\\u2028b\\xe9");
  // A raw C1 byte is no UTF-8, but some terminals obey it.
  EXPECT_EQ(EscapeForTerminal("\x9B"
                              "31m"),
            "\\x9b31m");
}

TEST(TextTest, LinesStayLinesAndLookLikeNoOther) {
  EXPECT_EQ(EscapeLinesForTerminal("one\ntwo\x1b"), "one\n    two\\x1b");
  EXPECT_EQ(EscapeLinesForTerminal("one"), "one");
}

TEST(TextTest, JsonStaysTheSameValue) {
  EXPECT_EQ(EscapeJsonForTerminal("{\"n\":\"\x7f\xC2\x9B\u202E\u00E9\"}"),
            "{\"n\":\"\\u007f\\u009b\\u202e\u00E9\"}");
}

TEST(TextTest, OfJsonErrorsOnlyWhatHelpsAPersonIsLeft) {
  EXPECT_EQ(JsonErrorText("[json.exception.parse_error.101] parse error at "
                          "line 1, column 5: syntax error while parsing value"),
            "line 1, column 5: syntax error while parsing value");
  EXPECT_EQ(
      JsonErrorText("[json.exception.type_error.302] type must be number"),
      "type must be number");
  EXPECT_EQ(JsonErrorText("[json.exception.x"), "[json.exception.x");
  EXPECT_EQ(JsonErrorText(""), "");
}

}  // namespace
}  // namespace sluice
