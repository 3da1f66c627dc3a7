#include "runtime/model/embedding_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/model/model_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::string Module(const std::string& type, const std::string& path) {
  return absl::StrCat(R"({"idx": 0, "name": "0", "path": ")", path,
                      R"(", "type": ")", type, "\"}");
}
const std::string kTransformer =
    Module("sentence_transformers.models.Transformer", "");
const std::string kPooling =
    Module("sentence_transformers.models.Pooling", "1_Pooling");
const std::string kNormalize =
    Module("sentence_transformers.models.Normalize", "2_Normalize");
// As sentence-transformers 5.4 writes them.
const std::string kLogitScore =
    Module("sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
           "1_LogitScore");

class EmbeddingConfigTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((dir_.path() / file).parent_path());
    WriteFile(dir_.path() / file, text);
  }
  void WriteModules(const std::vector<std::string>& modules) {
    std::string list;
    for (const std::string& module : modules) {
      absl::StrAppend(&list, list.empty() ? "[" : ", ", module);
    }
    Write("modules.json", list + "]");
  }
  absl::StatusOr<EmbeddingConfig> Read() {
    return ReadEmbeddingConfig(dir_.path(), 100);
  }
  void ExpectError(absl::StatusCode code, const std::string& text) {
    const absl::Status status = Read().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  TempDir dir_;
};

TEST_F(EmbeddingConfigTest, WithoutFilesTheLastTokenIsNormalized) {
  const auto config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->pooling, Pooling::kLastToken);
  EXPECT_TRUE(config->normalize);
  EXPECT_FALSE(config->from_files);
  EXPECT_EQ(config->max_tokens, 0);
  EXPECT_FALSE(config->logit_score);
}

TEST_F(EmbeddingConfigTest, ReadsEachPooling) {
  WriteModules({kTransformer, kPooling, kNormalize});
  for (const auto& [config, pooling] :
       std::vector<std::pair<std::string, Pooling>>{
           {R"("pooling_mode_cls_token": true)", Pooling::kFirstToken},
           {R"("pooling_mode_lasttoken": true)", Pooling::kLastToken},
           {R"("pooling_mode_max_tokens": true)", Pooling::kMax},
           {R"("pooling_mode_mean_tokens": true)", Pooling::kMean},
           {R"("pooling_mode_mean_sqrt_len_tokens": true)",
            Pooling::kMeanSqrtLen},
           {R"("pooling_mode_weightedmean_tokens": true,
                "pooling_mode_max_tokens": false)",
            Pooling::kWeightedMean},
           {R"("pooling_mode": "mean", "include_prompt": true)",
            Pooling::kMean}}) {
    Write("1_Pooling/config.json",
          absl::StrCat(R"({"word_embedding_dimension": 8, )", config, "}"));
    const auto read = Read();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->pooling, pooling) << config;
    EXPECT_TRUE(read->normalize);
    EXPECT_TRUE(read->from_files);
  }
}

TEST_F(EmbeddingConfigTest, NormalizesOnlyWithTheModule) {
  WriteModules({kTransformer, kPooling});
  Write("1_Pooling/config.json", R"({"pooling_mode": "lasttoken"})");
  Write("sentence_bert_config.json",
        R"({"max_seq_length": 77, "do_lower_case": false})");
  const auto config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->normalize);
  EXPECT_EQ(config->max_tokens, 77);
}

TEST_F(EmbeddingConfigTest, ReadsTheTokensOfARerankersScore) {
  WriteModules({kTransformer, kLogitScore});
  Write("1_LogitScore/config.json",
        R"({"true_token_id": 7, "false_token_id": 9})");
  auto config = Read();
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->logit_score);
  EXPECT_EQ(config->logit_score->yes, 7);
  EXPECT_EQ(config->logit_score->no, 9);
  EXPECT_FALSE(config->from_files);
  EXPECT_TRUE(config->normalize);
  Write("1_LogitScore/config.json",
        R"({"true_token_id": 7, "false_token_id": null})");
  EXPECT_EQ(Read()->logit_score->no, std::nullopt);
  Write("1_LogitScore/config.json", R"({"true_token_id": 100})");
  ExpectError(absl::StatusCode::kInvalidArgument, "true_token_id");
  Write("1_LogitScore/config.json", "{}");
  ExpectError(absl::StatusCode::kInvalidArgument,
              "1_LogitScore/config.json: true_token_id is missing");
}

TEST_F(EmbeddingConfigTest, WhatSluiceDoesNotHaveIsNamed) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  Write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  WriteModules({kTransformer, kPooling,
                Module("sentence_transformers.models.Dense", "2_Dense")});
  ExpectError(kUnimplemented,
              "modules.json: the module \"2_Dense\" (Dense) is nothing that "
              "Sluice has");
  WriteModules({Module("a.Transformer", "0_Transformer"), kPooling});
  ExpectError(kUnimplemented, "is not in the model's directory itself");
  WriteModules({kTransformer, kNormalize, kPooling});
  ExpectError(kUnimplemented, "(Normalize) comes before a pooling");
  WriteModules({kTransformer, kPooling, kPooling});
  ExpectError(kUnimplemented, "comes after another pooling");
  WriteModules({kTransformer});
  ExpectError(kUnimplemented, "names no pooling");
  WriteModules({kTransformer, kPooling});
  Write("1_Pooling/config.json",
        R"({"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true})");
  ExpectError(kUnimplemented,
              "1_Pooling/config.json: several poolings beside each other (cls, "
              "max)");
  Write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": false})");
  ExpectError(kUnimplemented, "no pooling_mode is true");
  Write("1_Pooling/config.json", R"({"pooling_mode": "attention"})");
  ExpectError(kUnimplemented, "pooling_mode \"attention\"");
  Write("1_Pooling/config.json", R"({"pooling_mode": "mean"})");
  Write("sentence_bert_config.json", R"({"do_lower_case": true})");
  ExpectError(kUnimplemented, "sentence_bert_config.json: do_lower_case");
}

TEST_F(EmbeddingConfigTest, BadFilesAreNamed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Write("modules.json", "{}");
  ExpectError(kInvalid, "modules.json: must be a JSON array, but is object");
  Write("modules.json", "[1]");
  ExpectError(kInvalid, "modules.json: a module must be an object");
  WriteModules({kTransformer, Module("a.Pooling", "../1_Pooling")});
  ExpectError(kInvalid, "\"../1_Pooling\" leaves the model's directory");
  WriteModules({kTransformer, Module("a.Pooling", "/etc")});
  ExpectError(kInvalid, "\"/etc\" leaves the model's directory");
  WriteModules({kTransformer, kPooling});
  ExpectError(absl::StatusCode::kNotFound, "1_Pooling/config.json");
  Write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": 1})");
  ExpectError(kInvalid, "1_Pooling/config.json: pooling_mode_max_tokens");
  Write("1_Pooling/config.json", R"({"pooling_mode": "max"})");
  Write("sentence_bert_config.json", R"({"max_seq_length": 0})");
  ExpectError(kInvalid, "sentence_bert_config.json: max_seq_length");
}

// A model with files that are no use for embeddings answers other requests.
TEST_F(EmbeddingConfigTest, AModelOpensAllTheSame) {
  Write("config.json",
        R"({"model_type": "llama", "hidden_size": 2, "num_attention_heads": 1,
            "num_hidden_layers": 1, "intermediate_size": 2, "vocab_size": 2})");
  WriteModules({kTransformer});
  const auto model = ModelDir::Open(dir_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(absl::IsUnimplemented((*model)->embedding().status()));
}

}  // namespace
}  // namespace sluice
