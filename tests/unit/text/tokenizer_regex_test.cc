// Patterns in Oniguruma's syntax. Expectations were taken from tokenizers
// 0.23.3: pre_tokenizers.Split(Regex(pattern), "isolated").

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/text/tokenizer/patterns/regex.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> Matches(absl::string_view pattern,
                                 absl::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  if (!regex.ok()) return {};
  std::vector<TextRange> ranges;
  const absl::Status status = (*regex)->FindAll(text, &ranges);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> found;
  for (const TextRange& range : ranges) {
    found.emplace_back(text.substr(range.begin, range.end - range.begin));
  }
  return found;
}

TEST(RegexTest, WhiteSpace) {
  EXPECT_THAT(Matches("\\s", " a\u0085b\u00A0c\u180Ed\u200Be\u3000"),
              ElementsAre(" ", "\u0085", "\u00A0", "\u3000"));
  EXPECT_THAT(Matches("[^\\S\\n]+", " \t\n "), ElementsAre(" \t", " "));
  EXPECT_THAT(Matches("\\S+", "a b"), ElementsAre("a", "b"));
}

TEST(RegexTest, ClassesDifferFromPerl) {
  EXPECT_THAT(Matches("\\h", "xyzFg9"), ElementsAre("F", "9"));
  EXPECT_THAT(Matches("\\v", "a\n\vb"), ElementsAre("\v"));
  EXPECT_THAT(Matches("\\w+", "a\u0301\u203F \u00B2-\u00BD"),
              ElementsAre("a\u0301\u203F", "\u00B2", "\u00BD"));
  EXPECT_THAT(Matches("[\\w]+", "a\u00B2b"), ElementsAre("a", "b"));
  EXPECT_THAT(Matches("[\\W\\d]+", "ab 12-c"), ElementsAre(" 12-"));
  EXPECT_THAT(Matches("\\d+", "1\u0663x"), ElementsAre("1\u0663"));
  EXPECT_THAT(Matches("\\bfoo\\b", "foo food \u00E9foo foo\u0301 foo"),
              ElementsAre("foo", "foo"));
  EXPECT_THAT(Matches("o\\B", "foo"), ElementsAre("o"));
}

TEST(RegexTest, Properties) {
  EXPECT_THAT(Matches("\\p{Han}+", "a\u4E2D\u30FC\u3005\u3001"),
              ElementsAre("\u4E2D", "\u3005"));
  EXPECT_THAT(Matches("\\p{L}+", "x\U0002EBF0\u1C89y"),
              ElementsAre("x\U0002EBF0\u1C89y"));  // Unicode 15.1, 16
  EXPECT_THAT(Matches("\\p{^L}+|\\P{N}", "a1b"), ElementsAre("a", "1", "b"));
  EXPECT_THAT(Matches("[[:alpha:]]+", "ab1"), ElementsAre("ab"));
  EXPECT_THAT(Matches("[[:^alpha:]]+", "ab1 c"), ElementsAre("1 "));
  EXPECT_THAT(Matches("[[:punct:]]", "a$-"), ElementsAre("$", "-"));
  EXPECT_THAT(Matches("\\p{Punct}", "a$-"), ElementsAre("-"));
  EXPECT_THAT(Matches("\\p{Lowercase_Letter}", "aB"), ElementsAre("a"));
}

TEST(RegexTest, Sets) {
  EXPECT_THAT(Matches("[a[bc]]+", "abcd"), ElementsAre("abc"));
  EXPECT_THAT(Matches("[^(\\s|[.,])]+", "b)(.,x y"),
              ElementsAre("b", "x", "y"));
  EXPECT_THAT(Matches("[a-z&&[^aeiou]]+", "hello"), ElementsAre("h", "ll"));
  EXPECT_THAT(Matches("[^a-z&&[^aeiou]]+", "he1lo"), ElementsAre("e1", "o"));
  EXPECT_THAT(Matches("[]a]", "b]a"), ElementsAre("]", "a"));
  EXPECT_THAT(Matches("[\\w-]+", "a-b c"), ElementsAre("a-b", "c"));
  EXPECT_THAT(Matches("[!-/:-@\\[-`]", "a[!^"), ElementsAre("[", "!", "^"));
  EXPECT_THAT(Matches("[^[^a]]", "ab"), ElementsAre("a"));
}

TEST(RegexTest, Repeats) {
  // A repeat of a repeat, not a possessive one.
  EXPECT_THAT(Matches("a{1,2}+", "aaaa b"), ElementsAre("aaaa"));
  EXPECT_THAT(Matches("\\p{N}{1,3}+", "12345"), ElementsAre("12345"));
  EXPECT_THAT(Matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{2}?", "aaa"), ElementsAre("aa", ""));
  EXPECT_THAT(Matches("a{1,2}?", "aa"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a++a", "aaa"), IsEmpty());
  EXPECT_THAT(Matches("a{x}", "a{x}"), ElementsAre("a{x}"));
}

TEST(RegexTest, OptionsHoldUpToTheEndOfTheGroup) {
  EXPECT_THAT(Matches("(?i:'S|'t)", "it's IT'T"), ElementsAre("'s", "'T"));
  EXPECT_THAT(Matches("(?i:'s)", "it'\u017F"), ElementsAre("'\u017F"));
  EXPECT_THAT(Matches("a(?i)b|c", "ab aC c"), ElementsAre("ab", "aC"));
  EXPECT_THAT(Matches("a.b", "a\nb"), IsEmpty());
  EXPECT_THAT(Matches("(?m:a.b)", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(Matches("(?x) a b # c\n", "ab"), ElementsAre("ab"));
  EXPECT_THAT(Matches("a(?#b)c", "ac"), ElementsAre("ac"));
}

TEST(RegexTest, LinesAndEmptyMatches) {
  EXPECT_THAT(Matches("^b", "aab\nb"), ElementsAre("b"));
  EXPECT_THAT(Matches("\\s+$", "a \nb "), ElementsAre(" ", " "));
  EXPECT_THAT(Matches("x*", "xxa"), ElementsAre("xx", ""));
  EXPECT_THAT(Matches("", "a\u00E9"), ElementsAre("", "", ""));
  EXPECT_THAT(Matches("(?<=a)b", "abb"), ElementsAre("b"));
  EXPECT_THAT(Matches("\\s+(?!\\S)|\\s+", "a   b "),
              ElementsAre("  ", " ", " "));
}

TEST(RegexTest, Numbers) {
  EXPECT_THAT(Matches("\\x{41}\\u0042\\x43", "ABC"), ElementsAre("ABC"));
  EXPECT_THAT(Matches("[\\x00-\\x1f]", "a\x01"), ElementsAre("\x01"));
  EXPECT_THAT(Matches("(.)\\1", "abba"), ElementsAre("bb"));
}

TEST(RegexTest, Literal) {
  const auto regex = Regex::Literal("a.");
  ASSERT_TRUE(regex.ok());
  std::vector<TextRange> ranges;
  ASSERT_TRUE((*regex)->FindAll("a.aba.a.", &ranges).ok());
  EXPECT_EQ(ranges.size(), 3u);
  ASSERT_TRUE((*regex)->FindAll("", &ranges).ok());
  EXPECT_TRUE(ranges.empty());
}

TEST(RegexTest, Errors) {
  const struct {
    std::string pattern;
    absl::StatusCode code;
  } kCases[] = {
      {"(", absl::StatusCode::kInvalidArgument},
      {")", absl::StatusCode::kInvalidArgument},
      {"[a", absl::StatusCode::kInvalidArgument},
      {"[b-a]", absl::StatusCode::kInvalidArgument},
      {"a\\", absl::StatusCode::kInvalidArgument},
      {"[\\", absl::StatusCode::kInvalidArgument},
      {"*", absl::StatusCode::kInvalidArgument},
      {"\\p{L", absl::StatusCode::kInvalidArgument},
      {"\\x{110000}", absl::StatusCode::kInvalidArgument},
      {"\\x{d800}", absl::StatusCode::kInvalidArgument},
      {"(?<name", absl::StatusCode::kInvalidArgument},
      {"\\k<", absl::StatusCode::kInvalidArgument},
      {"\xFF", absl::StatusCode::kInvalidArgument},
      {std::string(1000, '('), absl::StatusCode::kInvalidArgument},
      {std::string(1000, '['), absl::StatusCode::kInvalidArgument},
      {"\\xE9", absl::StatusCode::kUnimplemented},
      {"\\p{Nonsense}", absl::StatusCode::kUnimplemented},
      {"(?(1)a|b)", absl::StatusCode::kUnimplemented},
      {"(*FAIL)", absl::StatusCode::kUnimplemented},
      {"\\M-a", absl::StatusCode::kUnimplemented},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(Regex::Compile(test.pattern).status().code(), test.code)
        << test.pattern << ": " << Regex::Compile(test.pattern).status();
  }
}

}  // namespace
}  // namespace sluice
