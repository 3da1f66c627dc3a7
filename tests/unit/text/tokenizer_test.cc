#include "runtime/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "common/threads/thread.h"
#include "runtime/text/tokenizer/models/bpe_model.h"
#include "runtime/text/unicode/unicode.h"
#include "tests/unit/text/model_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> Load(const json& tokenizer) {
  const ModelFiles model({{"tokenizer.json", tokenizer.dump()}});
  auto loaded = Tokenizer::Load(model.dir());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

TEST(TokenizerTest, InvalidUtf8IsRefusedWithItsPlace) {
  const auto tokenizer = Load(SmallTokenizerJson());
  const struct {
    std::string text;
    int offset;
  } kCases[] = {
      {"\xFF", 0},
      {"ab\x80", 2},
      {"abc\xC3", 3},                   // unfinished
      {"abcdefgh\xC0\xAF", 8},          // overlong
      {"a\xED\xA0\x80z", 1},            // a surrogate
      {"\xF4\x90\x80\x80", 0},          // above U+10FFFF
      {"\xC3\xA9\xE2\x82 ", 2},         // cut short
      {"\xF0\x9F\x98\x80\xF0\x9F", 4},  // the second one is unfinished
  };
  for (const auto& test : kCases) {
    const auto ids = tokenizer->Encode(test.text, true);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr("at byte " + std::to_string(test.offset)));
  }
}

TEST(TokenizerTest, EmptyTextAndUnknownIds) {
  const auto tokenizer = Load(SmallTokenizerJson());
  EXPECT_EQ(*tokenizer->Encode("", true), Ids({6}));
  EXPECT_EQ(*tokenizer->Encode("", false), Ids());
  EXPECT_EQ(tokenizer->Decode(Ids(), true), "");
  EXPECT_EQ(tokenizer->Decode(Ids({-1, 0, 7, 1 << 30, INT32_MIN, 1}), true),
            "ab");
  EXPECT_EQ(tokenizer->TokenToId("nope"), std::nullopt);
}

TEST(TokenizerTest, CharactersWithoutToken) {
  json spec = SmallTokenizerJson();
  EXPECT_EQ(*Load(spec)->Encode("axyb", false), Ids({4}));
  spec["model"]["unk_token"] = "c";
  EXPECT_EQ(*Load(spec)->Encode("axyb", false), Ids({0, 2, 2, 1}));
  spec["model"]["fuse_unk"] = true;
  EXPECT_EQ(*Load(spec)->Encode("axyb", false), Ids({0, 2, 1}));
  spec["model"]["unk_token"] = "missing";
  const auto ids = Load(spec)->Encode("axyb", false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("\"missing\""));
}

TEST(TokenizerTest, RunawayPatternIsStopped) {
  json spec = SmallTokenizerJson();
  spec["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|aa)+$"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto ids = Load(spec)->Encode(std::string(64, 'a') + "b", false);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted)
      << ids.status();
}

TEST(TokenizerTest, TextsWithoutMeasure) {
  json spec = SmallTokenizerJson();
  EXPECT_EQ(Load(spec)
                ->Encode(std::string((64 << 20) + 1, 'a'), false)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);

  const json grow = {{"type", "Replace"},
                     {"pattern", {{"Regex", ""}}},
                     {"content", "aaaaaaaaaaaaaaa"}};
  spec["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", json::array({grow, grow, grow, grow,
                                                     grow, grow, grow, grow})}};
  EXPECT_EQ(Load(spec)->Encode("abc", false).status().code(),
            absl::StatusCode::kResourceExhausted);

  spec["normalizer"] = nullptr;
  spec["decoder"] = {{"type", "Sequence"},
                     {"decoders", json::array({grow, grow, grow, grow, grow,
                                               grow, grow, grow, grow})}};
  EXPECT_LT(Load(spec)->Decode(Ids({0}), false).size(), size_t{2} << 20);
}

// The textbook algorithm: joins the best pair until there is none.
Ids JoinSlowly(const std::vector<std::pair<std::string, std::string>>& merges,
               const BpeModel& model, std::vector<std::string> symbols) {
  while (true) {
    size_t best = merges.size();
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].first == symbols[i] &&
            merges[rank].second == symbols[i + 1]) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == merges.size()) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    ids.push_back(*model.TokenToId(symbol));
  }
  return ids;
}

// Words of all lengths (few symbols are joined by another algorithm than many)
// and with "▁" inside, where words are cut if nothing is joined across.
TEST(BpeModelTest, EqualsTextbookAlgorithm) {
  std::mt19937 random(11);
  const std::vector<std::string> alphabet = {"a", "b", "c", "\xE2\x96\x81"};
  for (int round = 0; round < 60; ++round) {
    BpeModel::Vocabulary vocabulary;
    std::vector<std::string> tokens = alphabet;
    for (const std::string& token : tokens) {
      vocabulary.emplace(token, static_cast<int32_t>(vocabulary.size()));
    }
    std::vector<BpeModel::Merge> merges;
    while (merges.size() < 25) {
      const BpeModel::Merge merge(tokens[random() % tokens.size()],
                                  tokens[random() % tokens.size()]);
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) {
        continue;
      }
      const std::string joined = merge.first + merge.second;
      if (vocabulary.emplace(joined, static_cast<int32_t>(vocabulary.size()))
              .second) {
        tokens.push_back(joined);
      }
      merges.push_back(merge);
    }
    const auto model = BpeModel::Create({}, vocabulary, merges);
    ASSERT_TRUE(model.ok()) << model.status();
    for (int word = 0; word < 40; ++word) {
      std::vector<std::string> symbols;
      std::string text;
      for (size_t i = 0; i < 1 + random() % 60; ++i) {
        symbols.push_back(alphabet[random() % alphabet.size()]);
        text += symbols.back();
      }
      const Ids slow = JoinSlowly(merges, **model, symbols);
      Ids ids;
      ASSERT_TRUE((*model)->Encode(text, &ids).ok());
      ASSERT_EQ(ids, slow) << text;
      ids.clear();  // once more: from the cache
      ASSERT_TRUE((*model)->Encode(text, &ids).ok());
      ASSERT_EQ(ids, slow) << text;
    }
  }
}

// The test would take minutes if joining were quadratic.
TEST(BpeModelTest, VeryLongWord) {
  const auto tokenizer = Load(SmallTokenizerJson());
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "abcab";
  const auto ids = tokenizer->Encode(text, false);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), 400'000u);
  EXPECT_EQ(tokenizer->Decode(*ids, true), text);
}

TEST(TokenizerTest, ManyThreadsShareOne) {
  json spec = SmallTokenizerJson();
  spec["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "\\s|[^\\s]{1,7}"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  spec["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = Load(spec);
  const auto alone = Load(spec);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (int j = 0; j < 50; ++j) text += "abc "[random() % 4];
    texts.push_back(text);
    expected.push_back(*alone->Encode(text, true));
  }
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < 4; ++t) {
    threads.push_back(std::make_unique<Thread>("encode", [&] {
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(*tokenizer->Encode(texts[i], true), expected[i]);
        EXPECT_EQ(tokenizer->Decode(expected[i], true), texts[i]);
      }
    }));
  }
  for (auto& thread : threads) thread->Join();
}

// Hugging Face's parts know different versions of Unicode.
TEST(UnicodeTest, ClassesAreThoseOfHuggingFace) {
  EXPECT_TRUE(IsWhitespace(0x85));
  EXPECT_FALSE(IsWhitespace(0x180E));
  EXPECT_FALSE(IsWhitespace(0x200B));
  EXPECT_TRUE(IsNumber(0xBD));      // ½
  EXPECT_TRUE(IsNumber(0x11DE0));   // Unicode 17
  EXPECT_TRUE(IsPunctuation('$'));  // a symbol, but ASCII
  EXPECT_FALSE(IsPunctuation(0x20AC));
  EXPECT_FALSE(IsPunctuation(0x2E43));  // Unicode 9
  EXPECT_TRUE(IsWordChar(0x203F));      // ‿
  EXPECT_TRUE(IsWordChar(0x2EBF0));     // Unicode 15.1
  EXPECT_FALSE(IsWordChar(0xB2));       // ²
  EXPECT_TRUE(IsMark(0x301));
  EXPECT_FALSE(IsMark(0x7FD));  // Unicode 11
  std::string lower;
  for (const char32_t c : {U'\u00C4', U'\u0130', U'\u03A3', U'\U00010D50'}) {
    AppendLowercase(c, &lower);
  }
  EXPECT_EQ(lower, "\u00E4i\u0307\u03C3\U00010D70");
  EXPECT_EQ(Normalized(NormalForm::kNfc, "e\u0301"), "\u00E9");
  EXPECT_EQ(Normalized(NormalForm::kNfd, "\u00E9"), "e\u0301");
  EXPECT_EQ(Normalized(NormalForm::kNfkc, "\uFB01\u32FF"), "fi\u32FF");
  EXPECT_EQ(Normalized(NormalForm::kNfkd, "\u2460"), "1");
}

TEST(Utf8Test, LossyReplacesMaximalParts) {
  const auto lossy = [](absl::string_view bytes) {
    std::string text;
    EXPECT_EQ(AppendUtf8Lossy(bytes, /*final=*/true, &text), bytes.size());
    return text;
  };
  EXPECT_EQ(lossy("a\xF0\x9F\x98\x80z"), "a\U0001F600z");
  EXPECT_EQ(lossy("\xE2\x82z"), "\uFFFDz");
  EXPECT_EQ(lossy("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(lossy("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  std::string text;
  EXPECT_EQ(AppendUtf8Lossy("ab\xE2\x82", /*final=*/false, &text), 2u);
  EXPECT_EQ(text, "ab");
}

}  // namespace
}  // namespace sluice
