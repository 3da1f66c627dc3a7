// Tokenizers in the metadata of GGUF files, beside those of the files that
// their metadata is made of here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/text/tokenizer/sentencepiece/model_file.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

fs::path Golden() { return fs::path(TestsDir()) / "golden"; }

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> Texts(const fs::path& dir) {
  std::vector<std::string> texts;
  std::ifstream file(dir / "golden.jsonl");
  for (std::string line; std::getline(file, line);) {
    texts.push_back(json::parse(line)["text"]);
  }
  return texts;
}

// The metadata of a tokenizer.json with BPE of bytes.
GgufWriter OfJson(const fs::path& dir, const std::string& pre) {
  const json tokenizer = json::parse(ReadAll(dir / "tokenizer.json"));
  const json& model = tokenizer["model"];
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  const auto set = [&](size_t id, const std::string& token, int32_t type) {
    tokens.resize(std::max(tokens.size(), id + 1));
    types.resize(tokens.size(), 5);
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : model["vocab"].items()) set(id, token, 1);
  for (const json& token : tokenizer["added_tokens"]) {
    set(token["id"], token["content"], token["special"] ? 3 : 4);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] == 5) tokens[i] = absl::StrCat("[PAD", i, "]");
  }
  std::vector<std::string> merges;
  for (const json& merge : model["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " +
                                             merge[1].get<std::string>());
  }
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", pre)
      .Strings("tokenizer.ggml.tokens", tokens)
      .List<int32_t>("tokenizer.ggml.token_type", 5, types)
      .Strings("tokenizer.ggml.merges", merges);
  return writer;
}

void ExpectSame(const Tokenizer& own, const Tokenizer& gguf,
                const std::vector<std::string>& texts) {
  ASSERT_GT(texts.size(), 100u);
  for (const std::string& text : texts) {
    const auto expected = own.Encode(text, /*add_special_tokens=*/false);
    const auto found = gguf.Encode(text, /*add_special_tokens=*/false);
    ASSERT_EQ(expected.ok(), found.ok()) << found.status();
    if (!found.ok()) continue;
    ASSERT_EQ(*found, *expected) << text;
    EXPECT_EQ(gguf.Decode(*found, false), own.Decode(*expected, false)) << text;
  }
}

struct Kind {
  const char* folder;
  const char* pre;
};
class GgufBpeTest : public testing::TestWithParam<Kind> {};

TEST_P(GgufBpeTest, CutsTextAsTheModelsOwnDoes) {
  const fs::path dir = Golden() / GetParam().folder;
  TempDir temp;
  const auto own = Tokenizer::Load(dir);
  ASSERT_TRUE(own.ok()) << own.status();
  const auto gguf = Tokenizer::Load(
      temp.Write("t.gguf", OfJson(dir, GetParam().pre).Bytes()));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  ExpectSame(**own, **gguf, Texts(dir));
}

INSTANTIATE_TEST_SUITE_P(
    Families, GgufBpeTest,
    testing::Values(Kind{"tokenizers/llama3", "llama-bpe"},
                    Kind{"tokenizer_families/bloom", "bloom"},
                    Kind{"tokenizer_families/command-r", "command-r"},
                    Kind{"tokenizer_families/falcon", "falcon"},
                    Kind{"tokenizer_families/glm-4", "chatglm-bpe"},
                    Kind{"tokenizer_families/gpt-neox", "olmo"},
                    Kind{"tokenizer_families/gpt-oss", "gpt-4o"},
                    Kind{"tokenizer_families/granite", "refact"},
                    Kind{"tokenizer_families/olmo2", "dbrx"},
                    Kind{"tokenizer_families/qwen3", "qwen2"},
                    Kind{"tokenizer_families/smollm3", "llama-bpe"},
                    Kind{"tokenizer_families/starcoder2", "smollm"}),
    [](const auto& info) {
      std::string name = fs::path(info.param.folder).filename().string();
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// A tokenizer.model's pieces as metadata.
GgufWriter OfPieces(const fs::path& dir, bool prefix) {
  const auto model =
      SentencePieceModel::Parse(ReadAll(dir / "tokenizer.model"));
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const auto& piece : model->pieces) {
    // The converter writes the spaces of users' pieces as they are in texts.
    const bool of_user =
        piece.type == SentencePieceModel::PieceType::kUserDefined;
    tokens.push_back(
        of_user ? absl::StrReplaceAll(piece.text, {{"\xE2\x96\x81", " "}})
                : piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int32_t>(piece.type));
  }
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "llama")
      .Strings("tokenizer.ggml.tokens", tokens)
      .List<float>("tokenizer.ggml.scores", 6, scores)
      .List<int32_t>("tokenizer.ggml.token_type", 5, types)
      .Bool("tokenizer.ggml.add_space_prefix", prefix)
      .Int("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(model->bos_id))
      .Int("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(model->eos_id))
      .Int("tokenizer.ggml.unknown_token_id",
           static_cast<uint32_t>(model->unk_id));
  return writer;
}

TEST(GgufPiecesTest, AreMergedByTheirScores) {
  for (const auto& [folder, prefix] :
       {std::pair("spm-llama-legacy", true), std::pair("spm-gemma", false)}) {
    SCOPED_TRACE(folder);
    const fs::path dir = Golden() / "tokenizer_families" / folder;
    TempDir temp;
    const auto own = Tokenizer::Load(dir);
    ASSERT_TRUE(own.ok()) << own.status();
    const auto gguf =
        Tokenizer::Load(temp.Write("t.gguf", OfPieces(dir, prefix).Bytes()));
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    // Users' pieces of spaces are found in texts as such, not by their marks.
    std::vector<std::string> texts = Texts(dir);
    std::erase_if(texts, [](const std::string& text) {
      return absl::StrContains(text, "\xE2\x96\x81");
    });
    ExpectSame(**own, **gguf, texts);
    // BOS comes first unless the metadata says otherwise.
    const auto framed = (*gguf)->Encode("a", /*add_special_tokens=*/true);
    ASSERT_TRUE(framed.ok());
    EXPECT_TRUE((*gguf)->IsSpecial(framed->front()));
  }
}

TEST(GgufTokenizerTest, FramesAndNamesAsTheMetadataSays) {
  const auto small = [] {
    GgufWriter writer;
    writer.String("tokenizer.ggml.model", "gpt2")
        .Strings("tokenizer.ggml.tokens",
                 {"<s>", "</s>", "a", "b", "ab", "<u>"})
        .List<int32_t>("tokenizer.ggml.token_type", 5, {3, 3, 1, 1, 1, 4})
        .Strings("tokenizer.ggml.merges", {"a b"})
        .Int("tokenizer.ggml.bos_token_id", 0)
        .Int("tokenizer.ggml.eos_token_id", 1);
    return writer;
  };
  TempDir dir;
  const auto ids = [&](GgufWriter writer) {
    const auto tokenizer = Tokenizer::Load(dir.Write("t.gguf", writer.Bytes()));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *(*tokenizer)->Encode("ab<u>", /*add_special_tokens=*/true);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids(small()), (Ids{4, 5}));
  EXPECT_EQ(ids(small().String("tokenizer.ggml.pre", "llama-bpe")),
            (Ids{0, 4, 5}));
  EXPECT_EQ(ids(small()
                    .Bool("tokenizer.ggml.add_bos_token", true)
                    .Bool("tokenizer.ggml.add_eos_token", true)),
            (Ids{0, 4, 5, 1}));
  const auto tokenizer = Tokenizer::Load(dir.Write("t.gguf", small().Bytes()));
  EXPECT_EQ((*tokenizer)->special_tokens().at("bos_token"), "<s>");
  EXPECT_TRUE((*tokenizer)->IsSpecial(1));
  EXPECT_FALSE((*tokenizer)->IsSpecial(5));
  EXPECT_EQ((*tokenizer)->vocab_size(), 6);
}

TEST(GgufTokenizerTest, RefusesWithTheKey) {
  const auto with = [](const char* model, std::vector<std::string> tokens) {
    GgufWriter writer;
    writer.String("tokenizer.ggml.model", model)
        .Strings("tokenizer.ggml.tokens", tokens);
    return writer;
  };
  const std::pair<GgufWriter, std::string> cases[] = {
      {GgufWriter(), "no metadata \"tokenizer.ggml.model\""},
      {with("bert", {"a"}), "\"tokenizer.ggml.model\" is \"bert\"; gpt2 and"},
      {with("gpt2", {}), "no metadata \"tokenizer.ggml.tokens\""},
      {with("gpt2", {"a"}).String("tokenizer.ggml.pre", "unheard"),
       "\"tokenizer.ggml.pre\" is \"unheard\", which is not supported"},
      {with("gpt2", {"a\xff"}), "token 0 is not UTF-8"},
      {with("llama", {"a", ""}), "has an empty token"},
      {with("gpt2", {"a"})
           .List<int32_t>("tokenizer.ggml.token_type", 5, {1, 1}),
       "\"tokenizer.ggml.token_type\" has 2 entries for 1 tokens"},
      {with("gpt2", {"a"}).List<int32_t>("tokenizer.ggml.token_type", 5, {9}),
       "token 0 has type 9"},
      {with("llama", {"a"}).List<float>("tokenizer.ggml.scores", 6, {0, 0}),
       "\"tokenizer.ggml.scores\" has 2 entries for 1 tokens"},
      {with("gpt2", {"a"}).Int("tokenizer.ggml.bos_token_id", 7),
       "\"tokenizer.ggml.bos_token_id\" is 7, but there are 1 tokens"},
      {with("gpt2", {"a"}).Strings("tokenizer.ggml.merges", {"a"}),
       "\"tokenizer.ggml.merges\": entry 0 is not two tokens"},
      {with("gpt2", {"a"}).Strings("tokenizer.ggml.merges", {"a c"}),
       "metadata \"tokenizer.ggml.merges\""},
      {with("gpt2", {"a"}).Int("tokenizer.ggml.add_bos_token", 1),
       "\"tokenizer.ggml.add_bos_token\" must be true or false"},
  };
  TempDir dir;
  for (const auto& [writer, error] : cases) {
    const std::string file = dir.Write("t.gguf", writer.Bytes());
    const auto status = Tokenizer::Load(file).status();
    EXPECT_FALSE(status.ok()) << error;
    EXPECT_TRUE(absl::StrContains(status.message(), error))
        << status << "\nexpected: " << error;
    EXPECT_TRUE(absl::StartsWith(status.message(), file)) << status;
  }
}

}  // namespace
}  // namespace sluice
