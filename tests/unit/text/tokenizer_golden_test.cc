// Compares every tokenizer in tests/golden/tokenizers and tokenizer_families
// with Hugging Face's results for the same files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using Ids = std::vector<int32_t>;

std::filesystem::path GoldenDir() {
  return std::filesystem::path(TestsDir()) / "golden";
}

// Kinds have many strings each, model families fewer.
constexpr const char* kKinds = "tokenizers";
constexpr const char* kFamilies = "tokenizer_families";

// The directories of one of both, from GoldenDir().
std::vector<std::string> Directories(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(GoldenDir() / folder)) {
    if (entry.is_directory()) {
      names.push_back(folder + "/" + entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<nlohmann::json> ReadLines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> rows;
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

// Decodes token by token; each piece must be whole UTF-8.
std::string DecodeInPieces(const Tokenizer& tokenizer, const Ids& ids,
                           bool skip_special_tokens) {
  IncrementalDetokenizer detokenizer(&tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.Append(id);
    EXPECT_FALSE(FindInvalidUtf8(piece)) << testing::PrintToString(piece);
    text += piece;
  }
  const std::string rest = detokenizer.Flush();
  EXPECT_FALSE(FindInvalidUtf8(rest)) << testing::PrintToString(rest);
  return text + rest;
}

class TokenizerGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load(GoldenDir() / GetParam());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  bool IsFamily() const { return GetParam().find(kFamilies) == 0; }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGoldenTest, EncodesAndDecodesText) {
  const auto rows = ReadLines(GoldenDir() / GetParam() / "golden.jsonl");
  ASSERT_GE(rows.size(), IsFamily() ? 150u : 550u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<Ids>();
    const auto plain = row["ids_no_special"].get<Ids>();

    const auto encoded = tokenizer_->Encode(text, /*add_special_tokens=*/true);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, ids);
    const auto encoded_plain =
        tokenizer_->Encode(text, /*add_special_tokens=*/false);
    ASSERT_TRUE(encoded_plain.ok()) << encoded_plain.status();
    EXPECT_EQ(*encoded_plain, plain);

    EXPECT_EQ(tokenizer_->Decode(plain, true), row["decoded"]);
    EXPECT_EQ(tokenizer_->Decode(ids, false), row["decoded_special"]);
    EXPECT_EQ(DecodeInPieces(*tokenizer_, plain, true), row["decoded"]);
    EXPECT_EQ(DecodeInPieces(*tokenizer_, ids, false), row["decoded_special"]);
    if (HasFailure()) break;  // one is enough to read
  }
}

// Ids that no text has: broken UTF-8, special tokens anywhere.
TEST_P(TokenizerGoldenTest, DecodesAnyIds) {
  const auto rows = ReadLines(GoldenDir() / GetParam() / "decode.jsonl");
  ASSERT_GE(rows.size(), IsFamily() ? 50u : 100u);
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const auto ids = row["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->Decode(ids, true), row["decoded"]);
    EXPECT_EQ(tokenizer_->Decode(ids, false), row["decoded_special"]);
    EXPECT_EQ(DecodeInPieces(*tokenizer_, ids, true), row["decoded"]);
    EXPECT_EQ(DecodeInPieces(*tokenizer_, ids, false), row["decoded_special"]);
    if (HasFailure()) break;
  }
}

// The text generated behind a prompt is the rest of the text of both, if
// Hugging Face does not change the prompt's text.
TEST_P(TokenizerGoldenTest, DecodesBehindAPrompt) {
  const auto rows = ReadLines(GoldenDir() / GetParam() / "decode.jsonl");
  int compared = 0;
  for (const auto& row : rows) {
    SCOPED_TRACE(row.dump());
    const auto ids = row["ids"].get<Ids>();
    const auto whole = row["decoded"].get<std::string>();
    for (size_t cut = 0; cut <= ids.size(); ++cut) {
      const std::span<const int32_t> prompt(ids.data(), cut);
      const std::span<const int32_t> answer(ids.data() + cut, ids.size() - cut);
      const std::string text = DecodeAfter(*tokenizer_, prompt, answer, true);
      EXPECT_FALSE(FindInvalidUtf8(text));
      const std::string before = tokenizer_->Decode(prompt, true);
      if (whole.compare(0, before.size(), before) != 0) continue;
      EXPECT_EQ(before + text, whole) << "cut at " << cut;
      ++compared;
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(compared, IsFamily() ? 250 : 1000);
}

TEST_P(TokenizerGoldenTest, VocabularyGoesBothWays) {
  ASSERT_GT(tokenizer_->vocab_size(), 0);
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string token = tokenizer_->IdToToken(id);
    ASSERT_NE(token, "") << id;
    EXPECT_EQ(tokenizer_->TokenToId(token), id);
  }
  EXPECT_EQ(tokenizer_->IdToToken(tokenizer_->vocab_size()), "");
  EXPECT_EQ(tokenizer_->IdToToken(-1), "");
  EXPECT_FALSE(tokenizer_->IsSpecial(-1));
  const auto eos =
      tokenizer_->TokenToId(tokenizer_->special_tokens().at("eos_token"));
  ASSERT_TRUE(eos.has_value());
  EXPECT_TRUE(tokenizer_->IsSpecial(*eos));
}

std::string TestName(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).filename().string();
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(AllKinds, TokenizerGoldenTest,
                         testing::ValuesIn(Directories(kKinds)), TestName);
INSTANTIATE_TEST_SUITE_P(AllFamilies, TokenizerGoldenTest,
                         testing::ValuesIn(Directories(kFamilies)), TestName);

}  // namespace
}  // namespace sluice
