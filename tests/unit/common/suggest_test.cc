#include "common/text/suggest.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(SuggestTest, CountsTypingMistakes) {
  EXPECT_EQ(TypingDistance("", ""), 0u);
  EXPECT_EQ(TypingDistance("run", "run"), 0u);
  EXPECT_EQ(TypingDistance("", "run"), 3u);
  EXPECT_EQ(TypingDistance("runn", "run"), 1u);
  EXPECT_EQ(TypingDistance("rnu", "run"), 1u);
  EXPECT_EQ(TypingDistance("tempreature", "temperature"), 1u);
  EXPECT_EQ(TypingDistance("kitten", "sitting"), 3u);
}

TEST(SuggestTest, FindsWhatWasMeant) {
  const std::vector<std::string> flags = {"--max-tokens", "--max-model-len",
                                          "--temperature", "--top-p", "--seed"};
  EXPECT_EQ(ClosestTo("--max-token", flags), "--max-tokens");
  EXPECT_EQ(ClosestTo("--tempreature", flags), "--temperature");
  EXPECT_EQ(ClosestTo("--top_p", flags), "--top-p");
  EXPECT_EQ(ClosestTo("--max-model", flags), "--max-model-len");
  EXPECT_EQ(ClosestTo("--quantization", flags), "");
  EXPECT_EQ(ClosestTo("", flags), "");
  EXPECT_EQ(ClosestTo(std::string(100000, 'x'), flags), "");
}

TEST(SuggestTest, ShortNamesAllowOneMistake) {
  const std::vector<std::string> commands = {"run", "list", "plan"};
  EXPECT_EQ(ClosestTo("runn", commands), "run");
  EXPECT_EQ(ClosestTo("lsit", commands), "list");
  EXPECT_EQ(ClosestTo("fun", commands), "run");
  EXPECT_EQ(ClosestTo("go", commands), "");
}

}  // namespace
}  // namespace sluice
