#include "runtime/text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "tests/unit/text/model_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::ElementsAre;

// Makes a tokenizer whose tokens 0, 1... are these and whose last one, "<s>",
// is special.
std::unique_ptr<Tokenizer> WithTokens(const std::vector<std::string>& tokens,
                                      const json& decoder) {
  json spec = SmallTokenizerJson();
  spec["decoder"] = decoder;
  spec["post_processor"] = nullptr;
  spec["model"]["merges"] = json::array();
  spec["model"]["vocab"] = json::object();
  for (size_t i = 0; i < tokens.size(); ++i) {
    spec["model"]["vocab"][tokens[i]] = i;
  }
  const ModelFiles model({{"tokenizer.json", spec.dump()}});
  auto tokenizer = Tokenizer::Load(model.dir());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// Returns the text of each token, and at the end the held-back text.
std::vector<std::string> Pieces(const Tokenizer& tokenizer,
                                const std::vector<int32_t>& ids,
                                bool skip_special_tokens = true) {
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special_tokens);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.Append(id));
  pieces.push_back(detokenizer.Flush());
  return pieces;
}

json Sequence(const json& decoders) {
  return {{"type", "Sequence"}, {"decoders", decoders}};
}
const json kFuse = {{"type", "Fuse"}};

TEST(DetokenizerTest, ByteLevelHoldsUnfinishedCharacters) {
  // The bytes F0 9F 98 80 (an emoji), "a", " b".
  const auto tokenizer =
      WithTokens({"\u00F0", "\u0141", "\u013A", "\u0122", "a", "\u0120b"},
                 {{"type", "ByteLevel"}});
  EXPECT_THAT(Pieces(*tokenizer, {4, 0, 1, 2, 3, 5}),
              ElementsAre("a", "", "", "", "\U0001F600", " b", ""));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 4, 2}),
              ElementsAre("", "", "\uFFFDa", "\uFFFD", ""));
  EXPECT_THAT(Pieces(*tokenizer, {4, 0, 1}),
              ElementsAre("a", "", "", "\uFFFD"));
  EXPECT_THAT(Pieces(*tokenizer, {4, 6, 4}), ElementsAre("a", "", "a", ""));
  EXPECT_THAT(Pieces(*tokenizer, {4, 6, 4}, /*skip_special_tokens=*/false),
              ElementsAre("a", "<s>", "a", ""));
}

TEST(DetokenizerTest, FlushBeginsANewText) {
  const auto tokenizer = WithTokens({"\u00F0", "a"}, {{"type", "ByteLevel"}});
  IncrementalDetokenizer detokenizer(tokenizer.get(), true);
  EXPECT_EQ(detokenizer.Append(0), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Append(1), "a");
  EXPECT_EQ(detokenizer.Flush(), "");
}

// A run of byte tokens is valid as a whole or not at all.
TEST(DetokenizerTest, ByteFallbackHoldsARunOfBytes) {
  const auto tokenizer =
      WithTokens({"<0xC3>", "<0xA9>", "x", "<0xZZ>", "<0x+A>"},
                 Sequence({{{"type", "ByteFallback"}}, kFuse}));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 2}),
              ElementsAre("", "", "\u00E9x", ""));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 0, 2}),
              ElementsAre("", "", "", "\uFFFD\uFFFD\uFFFDx", ""));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1}), ElementsAre("", "", "\u00E9"));
  EXPECT_THAT(Pieces(*tokenizer, {3, 4, 2}),
              ElementsAre("<0xZZ>", "", "\nx", ""));
}

TEST(DetokenizerTest, StripsTheBeginningOnce) {
  const auto tokenizer = WithTokens(
      {" a", "  b", " "},
      Sequence(
          {kFuse,
           {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}}}));
  EXPECT_THAT(Pieces(*tokenizer, {2, 0, 1}), ElementsAre("", "a", "  b", ""));
  EXPECT_THAT(Pieces(*tokenizer, {2, 2, 2, 0}),
              ElementsAre("", "", " ", " a", ""));
}

TEST(DetokenizerTest, HoldsWhatTheEndMayLose) {
  const auto tokenizer = WithTokens(
      {"a", " "},
      Sequence(
          {kFuse,
           {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}}));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 0, 1, 1}),
              ElementsAre("a", "", " a", "", " ", ""));
}

TEST(DetokenizerTest, ReplacesAcrossTokens) {
  const auto tokenizer =
      WithTokens({"a", "b", "c"}, Sequence({kFuse,
                                            {{"type", "Replace"},
                                             {"pattern", {{"String", "ab"}}},
                                             {"content", "X"}}}));
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 0, 0, 2, 0}),
              ElementsAre("", "X", "", "a", "ac", "", "a"));
}

TEST(DetokenizerTest, MetaspaceKnowsTheFirstToken) {
  const auto tokenizer =
      WithTokens({"\u2581a", "b\u2581"}, {{"type", "Metaspace"},
                                          {"replacement", "\u2581"},
                                          {"prepend_scheme", "always"},
                                          {"split", true}});
  EXPECT_THAT(Pieces(*tokenizer, {0, 0, 1}), ElementsAre("a", " a", "b ", ""));
}

TEST(DetokenizerTest, SuffixOfTheLastTokenIsNoSpace) {
  const auto tokenizer =
      WithTokens({"a</w>", "b"}, {{"type", "BPEDecoder"}, {"suffix", "</w>"}});
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 0}), ElementsAre("", "a ", "b", "a"));
}

TEST(DetokenizerTest, WithoutDecoderTokensAreSetApart) {
  const auto tokenizer = WithTokens({"a", "b"}, nullptr);
  EXPECT_THAT(Pieces(*tokenizer, {0, 1, 0}), ElementsAre("a", " b", " a", ""));
}

// For any chain of decoders, the pieces are Decode's text, and each piece is
// whole characters.
TEST(DetokenizerTest, PiecesMakeUpTheText) {
  const json kSteps = json::parse(R"json([
    {"type": "ByteLevel"}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Strip", "content": "a", "start": 0, "stop": 2},
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "Replace", "pattern": {"String": "ab"}, "content": "é"},
    {"type": "Replace", "pattern": {"Regex": "a+|^b"}, "content": "-"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
    {"type": "BPEDecoder", "suffix": "b"}])json");
  const std::vector<std::string> tokens = {
      "a",      "b",      "ab",     "\u2581",     "\u2581a", " ",
      "<0xE2>", "<0x82>", "<0xAC>", "<0x41>",     "\u00F0",  "\u0141",
      "\u013A", "\u0122", "\u4E2D", "\U0001F600", "aab ",    "<0x"};
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    json decoders = json::array();
    for (size_t i = 0; i < random() % 5; ++i) {
      decoders.push_back(kSteps[random() % kSteps.size()]);
    }
    SCOPED_TRACE(decoders.dump());
    const auto tokenizer = WithTokens(tokens, Sequence(decoders));
    for (int text = 0; text < 5; ++text) {
      std::vector<int32_t> ids;
      for (size_t i = 0; i < random() % 12; ++i) {
        ids.push_back(static_cast<int32_t>(random() % (tokens.size() + 2)));
      }
      for (const bool skip : {false, true}) {
        std::string joined;
        for (const std::string& piece : Pieces(*tokenizer, ids, skip)) {
          EXPECT_FALSE(FindInvalidUtf8(piece));
          joined += piece;
        }
        EXPECT_EQ(joined, tokenizer->Decode(ids, skip));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
