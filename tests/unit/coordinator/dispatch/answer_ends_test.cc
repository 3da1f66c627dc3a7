#include "coordinator/dispatch/answer_ends.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/fake_tokenizer.h"

namespace sluice {
namespace {

// A tokenizer whose configuration names this eos_token; "": none.
class NamingTokenizer : public FakeTokenizer {
 public:
  explicit NamingTokenizer(const std::string& eos) : FakeTokenizer(kBytes) {
    if (!eos.empty()) names_ = {{"bos_token", "<s>"}, {"eos_token", eos}};
  }
  const std::map<std::string, std::string>& special_tokens() const override {
    return names_;
  }

 private:
  std::map<std::string, std::string> names_;
};

struct Case {
  std::string eos;
  std::vector<int32_t> of_model, tokens;
  std::string text;
};

TEST(AnswerEndsTest, AreTheModelsAndTheTokenizers) {
  for (const Case& c : {
           Case{"</s>", {2}, {2}, "answers end at \"</s>\" (2)"},
           Case{"</s>",
                {1},
                {1, 2},
                "answers end at \"<s>\" (1), \"</s>\" (2); only the "
                "tokenizer's eos_token names \"</s>\" (2)"},
           Case{"</s>",
                {},
                {2},
                "answers end at \"</s>\" (2); only the tokenizer's eos_token "
                "names \"</s>\" (2)"},
           Case{"",
                {2, 300},
                {2, 300},
                "answers end at \"</s>\" (2), \"<0x129>\" (300)"},
           Case{"<|end|>",
                {2},
                {2},
                "answers end at \"</s>\" (2); the tokenizer's eos_token "
                "\"<|end|>\" is no token of the model, and ends none"},
           Case{"",
                {},
                {},
                "answers end at max_tokens and stop strings only: the model's "
                "files name no end-of-sequence token"},
       }) {
    const AnswerEnds ends =
        FindAnswerEnds(c.of_model, NamingTokenizer(c.eos), 259);
    EXPECT_EQ(ends.tokens, c.tokens) << c.text;
    EXPECT_EQ(ends.text, c.text);
  }
  // A token that the tokenizer has, but the model has no row for.
  EXPECT_TRUE(FindAnswerEnds({}, NamingTokenizer("</s>"), 2).tokens.empty());
}

}  // namespace
}  // namespace sluice
