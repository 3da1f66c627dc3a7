#include "runtime/text/tokenizer/models/unigram_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "runtime/text/tokenizer/models/prefix_trie.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;
using Vocabulary = UnigramModel::Vocabulary;

std::unique_ptr<UnigramModel> Make(Vocabulary vocabulary,
                                   UnigramModel::Options options) {
  auto model = UnigramModel::Create(options, std::move(vocabulary));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

Ids Encode(const UnigramModel& model, const std::string& word) {
  Ids ids;
  const absl::Status status = model.Encode(word, &ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

TEST(PrefixTrieTest, FindsAllPrefixes) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> keys;
    for (size_t i = 0; i < 1 + random() % 400; ++i) {
      std::string key;
      for (size_t n = random() % 5; n > 0; --n) {
        key.push_back(static_cast<char>(round % 2 == 0 ? 'a' + random() % 3
                                                       : random() % 256));
      }
      keys.push_back(key);
    }
    std::map<std::string, int32_t> last;
    std::vector<PrefixTrie::Key> entries;
    for (size_t i = 0; i < keys.size(); ++i) {
      last[keys[i]] = static_cast<int32_t>(i);
      entries.emplace_back(keys[i], static_cast<int32_t>(i));
    }
    const PrefixTrie trie(entries);
    for (int i = 0; i < 100; ++i) {
      std::string text = keys[random() % keys.size()];
      text += keys[random() % keys.size()];
      std::vector<std::pair<size_t, int32_t>> expected, found;
      for (size_t n = 1; n <= text.size(); ++n) {
        const auto it = last.find(text.substr(0, n));
        if (it != last.end()) expected.emplace_back(n, it->second);
      }
      trie.ForEachPrefix(text, [&](size_t length, int32_t value) {
        found.emplace_back(length, value);
      });
      ASSERT_EQ(found, expected);
    }
  }
  PrefixTrie().ForEachPrefix("a", [](size_t, int32_t) { FAIL(); });
}

// As many as large vocabularies have: the time must not be quadratic in them.
TEST(PrefixTrieTest, ManyKeys) {
  std::mt19937 random(3);
  std::vector<std::string> keys;
  for (int i = 0; i < 200'000; ++i) {
    std::string key;
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      AppendUtf8(
          random() % 3 == 0 ? 0x4E00 + random() % 8000 : 'a' + random() % 26,
          &key);
    }
    keys.push_back(key);
  }
  std::vector<PrefixTrie::Key> entries;
  for (size_t i = 0; i < keys.size(); ++i) {
    entries.emplace_back(keys[i], static_cast<int32_t>(i));
  }
  const PrefixTrie trie(entries);
  for (size_t i = 0; i < keys.size(); i += 1000) {
    int32_t last = -1;
    trie.ForEachPrefix(keys[i], [&](size_t length, int32_t value) {
      if (length == keys[i].size()) last = value;
    });
    ASSERT_GE(last, 0);
    EXPECT_EQ(keys[last], keys[i]);
  }
}

// The best sum of scores by trying all ways.
double BestSum(const Vocabulary& vocabulary, const std::string& word) {
  std::vector<double> best(word.size() + 1, -1e300);
  best[0] = 0;
  for (size_t at = 0; at < word.size(); ++at) {
    for (const auto& [token, score] : vocabulary) {
      if (word.compare(at, token.size(), token) != 0) continue;
      double& sum = best[at + token.size()];
      sum = std::max(sum, best[at] + score);
    }
  }
  return best.back();
}

TEST(UnigramModelTest, FindsTheBestSum) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    Vocabulary vocabulary = {{"a", -9}, {"b", -8}, {"c", -7.5}};
    std::map<std::string, int> seen;
    for (int i = 0; i < 30; ++i) {
      std::string token;
      for (size_t n = 2 + random() % 4; n > 0; --n) {
        token.push_back(static_cast<char>('a' + random() % 3));
      }
      if (seen[token]++ > 0) continue;
      vocabulary.emplace_back(token,
                              -static_cast<double>(random() % 1000) / 40);
    }
    const auto model = Make(vocabulary, {});
    // The longest is given out in several parts.
    for (const size_t length : {size_t{1}, size_t{20}, size_t{9000}}) {
      std::string word;
      while (word.size() < length) {
        word.push_back(static_cast<char>('a' + random() % 3));
      }
      std::string joined;
      double sum = 0;
      for (const int32_t id : Encode(*model, word)) {
        joined += vocabulary[id].first;
        sum += vocabulary[id].second;
      }
      EXPECT_EQ(joined, word);
      EXPECT_NEAR(sum, BestSum(vocabulary, word), 1e-6);
    }
  }
}

TEST(UnigramModelTest, UnknownCharacters) {
  const Vocabulary vocabulary = {
      {"<unk>", 0}, {"a", -1}, {"xy", -40}, {"<0x78>", -2}, {"<0x79>", -2}};
  const auto model = Make(vocabulary, {.unk_id = 0});
  EXPECT_EQ(Encode(*model, "axxa"), Ids({1, 0, 1}));
  // A run of unknown characters that is a token is that token.
  EXPECT_EQ(Encode(*model, "axya"), Ids({1, 2, 1}));
  // So is the text of the unknown token.
  EXPECT_EQ(Encode(*model, "<unk>"), Ids({0}));
  const auto bytes = Make(vocabulary, {.unk_id = 0, .byte_fallback = true});
  EXPECT_EQ(Encode(*bytes, "axxa"), Ids({1, 3, 3, 1}));
  // One byte without a token makes the whole run unknown.
  EXPECT_EQ(Encode(*bytes, "axzxa"), Ids({1, 0, 1}));
  // A run may go on where a part of the word is given out.
  std::string word(5000, 'z');
  word = "a" + word + "a" + word + "a";
  EXPECT_EQ(Encode(*bytes, word), Ids({1, 0, 1, 0, 1}));

  const auto none = Make(vocabulary, {});
  Ids ids;
  const absl::Status status = none->Encode("az", &ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token for \"z\""));
}

TEST(UnigramModelTest, BrokenVocabularies) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(UnigramModel::Create({.unk_id = 0}, {}).ok());
  EXPECT_FALSE(UnigramModel::Create({.unk_id = 1}, {{"a", 0}}).ok());
  EXPECT_FALSE(UnigramModel::Create({}, {{"a", nan}}).ok());
  EXPECT_TRUE(UnigramModel::Create({}, {}).ok());
}

}  // namespace
}  // namespace sluice
