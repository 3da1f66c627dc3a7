#include "runtime/text/unicode/graphemes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(GraphemesTest, CutsText) {
  const std::vector<std::vector<std::string>> kTexts = {
      {"a", "b", "\r\n", "\n", "\r", "\t"},
      {"e\u0301", "x\u0301\u0308", "\n", "\u0301", "y"},
      {"\U0001F469\u200D\U0001F680", "\U0001F44D\U0001F3FD"},
      {"\U0001F1EB\U0001F1F7", "\U0001F1E9\U0001F1EA", "\U0001F1EB"},
      {"\u1112\u1161\u11AB", "\uD55C", "\u1112"},
      {"\u0E01\u0E33", "\u0BA8\u0BBF", "1\uFE0F\u20E3"},
      {"\u0600a", "\u200B", "a\u200D", "b"},
  };
  for (const auto& parts : kTexts) {
    std::string text;
    for (const std::string& part : parts) text += part;
    std::vector<std::string> found;
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = GraphemeEnd(text, pos);
      found.push_back(text.substr(pos, end - pos));
      pos = end;
    }
    EXPECT_EQ(found, parts);
  }
}

}  // namespace
}  // namespace sluice
