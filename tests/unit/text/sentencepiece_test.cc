// Tests of tokenizer.model: what is refused, and how. What it makes of text is
// in the golden data.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "common/text/utf8.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/test_paths.h"
#include "tests/unit/text/model_files.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// --- Parts of a file in protobuf's wire format.

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) +
         bytes;
}
std::string Piece(const std::string& text, float score, int type = 1) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return Bytes(1, Bytes(1, text) + Varint(2 << 3 | 5) + bits + Number(3, type));
}

// "▁a" is better than "ab", and both are better than single characters.
std::string SmallFile(const std::string& trainer,
                      const std::string& normalizer = "") {
  return Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) +
         Piece("\u2581", -6) + Piece("a", -6) + Piece("b", -6) +
         Piece("ab", -3) + Piece("\u2581a", -2) + Bytes(2, trainer) +
         Bytes(3, normalizer);
}

const std::string kUnigram = Number(3, 1);
const std::string kBpe = Number(3, 2);

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModel(
    const std::string& file, const std::string& config = "{}") {
  const ModelFiles model(
      {{"tokenizer.model", file}, {"tokenizer_config.json", config}});
  return Tokenizer::Load(model.dir());
}

Ids EncodeBy(const std::string& file, const std::string& text,
             const std::string& config = "{}") {
  const auto tokenizer = LoadModel(file, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  if (!tokenizer.ok()) return {};
  return (*tokenizer)->Encode(text, /*add_special_tokens=*/true).value();
}

TEST(SentencePieceTest, ReadsSmallFiles) {
  EXPECT_EQ(EncodeBy(SmallFile(kUnigram), "ab"), Ids({7, 5}));
  EXPECT_EQ(EncodeBy(SmallFile(kUnigram), "ab  ab "), Ids({7, 5, 7, 5}));
  EXPECT_EQ(EncodeBy(SmallFile(kBpe), "ab"), Ids({7, 5}));
  EXPECT_EQ(EncodeBy(SmallFile(kUnigram), "xyb"), Ids({3, 0, 5}));
  // Neither a prefix nor fewer spaces, if the file says so.
  const std::string plain = Number(3, 0) + Number(4, 0);
  EXPECT_EQ(EncodeBy(SmallFile(kUnigram, plain), "ab  a"), Ids({6, 3, 7}));
  EXPECT_EQ(EncodeBy(SmallFile(kUnigram, plain), "b<s>b",
                     R"({"add_bos_token": true, "add_eos_token": true})"),
            Ids({1, 5, 1, 5, 2}));
}

// Control pieces stay tokens if the configuration lists others.
TEST(SentencePieceTest, ConfiguredTokensJoinThoseOfTheFile) {
  const std::string file =
      SmallFile(kBpe) + Piece("<c>", 0, 3) + Piece("<u>", 0, 4);
  for (const char* name : {"LlamaTokenizer", "Other"}) {
    const std::string config = std::string(R"({"tokenizer_class": ")") + name +
                               R"(", "additional_special_tokens": ["<x>"]})";
    EXPECT_EQ(EncodeBy(file, "b<c>", config), Ids({3, 5, 8}));
    EXPECT_EQ(EncodeBy(file, "b<u>", config), Ids({3, 5, 9}));
    EXPECT_EQ(EncodeBy(file, "b<x>", config), Ids({3, 5, 10}));
  }
}

TEST(SentencePieceTest, UnknownFieldsAreLeftOut) {
  const std::string more = Bytes(77, "x") + Number(78, 5) +
                           Varint(79 << 3 | 1) + "12345678" +
                           Varint(80 << 3 | 5) + "1234";
  EXPECT_EQ(EncodeBy(more + SmallFile(more + kUnigram, more), "ab"),
            Ids({7, 5}));
}

TEST(SentencePieceTest, RefusesWhatItCannotDo) {
  const struct {
    std::string file;
    absl::StatusCode code;
    const char* message;
    const char* config = "{}";
  } kCases[] = {
      {SmallFile(Number(3, 3)), absl::StatusCode::kUnimplemented,
       "trainer_spec.model_type WORD"},
      {SmallFile(Number(3, 4)), absl::StatusCode::kUnimplemented,
       "trainer_spec.model_type CHAR"},
      {SmallFile(kBpe + Number(24, 1)), absl::StatusCode::kUnimplemented,
       "treat_whitespace_as_suffix"},
      {SmallFile(kBpe) + Bytes(5, Bytes(2, "x")),
       absl::StatusCode::kUnimplemented,
       "denormalizer_spec.precompiled_charsmap"},
      {SmallFile(kUnigram, Bytes(2, "x")), absl::StatusCode::kInvalidArgument,
       "charsmap is too short"},
      {SmallFile(kUnigram + Number(40, 99)), absl::StatusCode::kInvalidArgument,
       "unk_id 99"},
      {SmallFile(kBpe) + Piece("ab", 0), absl::StatusCode::kInvalidArgument,
       "pieces[8] is there twice"},
      {SmallFile(kBpe) + Piece("", 0), absl::StatusCode::kInvalidArgument,
       "pieces[8] is empty"},
      {SmallFile(kBpe) + Piece("\xFF", 0), absl::StatusCode::kInvalidArgument,
       "pieces[8] is not valid UTF-8"},
      {SmallFile(kBpe) + Piece(std::string(5000, 'a'), 0),
       absl::StatusCode::kInvalidArgument, "pieces[8] is too long"},
      {"", absl::StatusCode::kInvalidArgument, "has no pieces"},
      {"{\"model\": {}}", absl::StatusCode::kInvalidArgument, ""},
      {SmallFile(kBpe).substr(0, 40), absl::StatusCode::kInvalidArgument,
       "cut short"},
      {"\x0b", absl::StatusCode::kInvalidArgument, "unknown type 3"},
      {"IQ== 0\nIg== 1\n", absl::StatusCode::kUnimplemented, "tiktoken"},
      {SmallFile(kBpe), absl::StatusCode::kUnimplemented, "T5TokenizerFast",
       R"({"tokenizer_class": "T5TokenizerFast"})"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = LoadModel(test.file, test.config).status();
    EXPECT_EQ(status.code(), test.code) << test.message << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer"));
  }
}

// Which file is meant if there are several.
TEST(SentencePieceTest, ChoosesAmongFiles) {
  const auto encode = [](const std::string& tokenizer_class) {
    const ModelFiles model(
        {{"tokenizer.model", SmallFile(kUnigram)},
         {"vocab.json", R"({"a": 0, "b": 1, "ab": 2})"},
         {"merges.txt", "a b\n"},
         {"tokenizer_config.json",
          R"({"tokenizer_class": ")" + tokenizer_class + "\"}"}});
    const auto tokenizer = Tokenizer::Load(model.dir());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->Encode("ab", false).value();
  };
  EXPECT_EQ(encode("GPT2Tokenizer"), Ids({2}));
  EXPECT_EQ(encode("LlamaTokenizer"), Ids({7, 5}));
  EXPECT_EQ(encode("PreTrainedTokenizerFast"), Ids({7, 5}));
}

// Files that were spoiled at random give an error or a tokenizer that works.
TEST(SentencePieceTest, SpoiledFiles) {
  std::mt19937 random(11);
  int loaded = 0;
  for (const char* family : {"spm-bpe", "spm-unigram"}) {
    std::ifstream in(std::string(TestsDir()) + "/golden/tokenizer_families/" +
                         family + "/tokenizer.model",
                     std::ios::binary);
    std::string golden((std::istreambuf_iterator<char>(in)),
                       std::istreambuf_iterator<char>());
    ASSERT_GT(golden.size(), 1000u);
    for (int round = 0; round < 60; ++round) {
      std::string file = golden;
      for (size_t i = 1 + random() % 6; i > 0; --i) {
        const size_t at = random() % file.size();
        if (random() % 3 != 0) {
          file[at] = static_cast<char>(random() % 256);
        } else {
          file.erase(at, 1 + random() % 5);
        }
      }
      const auto tokenizer = LoadModel(file);
      if (!tokenizer.ok()) {
        EXPECT_THAT(std::string(tokenizer.status().message()),
                    HasSubstr("tokenizer.model"));
        continue;
      }
      ++loaded;
      const auto ids = (*tokenizer)
                           ->Encode("The \uFB01rst e\u0301 \u4E2D\n  nt",
                                    /*add_special_tokens=*/true);
      if (!ids.ok()) continue;
      EXPECT_FALSE(FindInvalidUtf8((*tokenizer)->Decode(*ids, false)));
    }
  }
  EXPECT_GT(loaded, 5);
}

}  // namespace
}  // namespace sluice
