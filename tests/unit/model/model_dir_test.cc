#include "runtime/model/model_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/test_paths.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTinyConfig[] =
    R"({"model_type": "llama", "hidden_size": 2, "num_attention_heads": 1,
        "num_hidden_layers": 1, "intermediate_size": 2, "vocab_size": 2,
        "eos_token_id": [5, 6])";

absl::Status OpenWith(const std::string& config,
                      const std::string& generation = "") {
  TempDir dir;
  WriteFile(dir.path() / "config.json", config);
  if (!generation.empty()) {
    WriteFile(dir.path() / "generation_config.json", generation);
  }
  return ModelDir::Open(dir.path()).status();
}

TEST(ModelDir, ErrorsNameTheFileAndWhatBelongsThere) {
  const auto missing = ModelDir::Open("/nonexistent/model");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("/nonexistent/model"));
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr("model.safetensors"));

  TempDir empty;
  const auto no_config = ModelDir::Open(empty.path());
  EXPECT_EQ(no_config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_config.status().message()),
              HasSubstr("config.json"));

  const absl::Status bad = OpenWith(R"({"model_type": "llama",
                                        "hidden_size": -1})");
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("config.json"));
  EXPECT_THAT(std::string(bad.message()), HasSubstr("hidden_size"));
  EXPECT_EQ(OpenWith(R"({"model_type": "mamba"})").code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ModelDir, OpensWithoutWeightsAndFailsOnlyWhenTheyAreWanted) {
  TempDir dir;
  WriteFile(dir.path() / "config.json", std::string(kTinyConfig) + "}");
  auto model = ModelDir::Open(dir.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->path(), dir.path());
  EXPECT_EQ((*model)->spec().hidden_size, 2);
  EXPECT_EQ((*model)->OpenTensors().status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ((*model)->Fingerprint().status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ModelDir, TheDummyFingerprintIsOfTheConfigAlone) {
  TempDir dir;
  const auto fingerprint = [&](const std::string& more) {
    WriteFile(dir.path() / "config.json", kTinyConfig + more + "}");
    auto model = ModelDir::Open(dir.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->DummyFingerprint();
  };
  const std::string first = fingerprint("");
  EXPECT_EQ(first.substr(0, 6), "dummy-");
  EXPECT_EQ(first.size(), 6u + 32u);
  EXPECT_EQ(fingerprint(""), first);
  EXPECT_NE(fingerprint(" "), first);
}

TEST(ModelDir, GenerationDefaults) {
  TempDir dir;
  WriteFile(dir.path() / "config.json", std::string(kTinyConfig) + "}");
  const auto defaults = [&]() {
    auto model = ModelDir::Open(dir.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->generation_defaults();
  };
  EXPECT_FALSE(defaults().do_sample);
  EXPECT_FALSE(defaults().temperature.has_value());
  EXPECT_THAT(defaults().eos_token_ids, ElementsAre(5, 6));

  WriteFile(dir.path() / "generation_config.json",
            R"({"do_sample": true, "temperature": 0.6, "top_k": 20,
                "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1,
                "max_new_tokens": 2048, "eos_token_id": 9,
                "_from_model_config": true})");
  const GenerationDefaults all = defaults();
  EXPECT_TRUE(all.do_sample);
  EXPECT_FLOAT_EQ(*all.temperature, 0.6f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_FLOAT_EQ(*all.top_p, 0.95f);
  EXPECT_FLOAT_EQ(*all.min_p, 0.05f);
  EXPECT_FLOAT_EQ(*all.repetition_penalty, 1.1f);
  EXPECT_EQ(all.max_new_tokens, 2048);
  EXPECT_THAT(all.eos_token_ids, ElementsAre(9));

  EXPECT_FALSE(all.max_length.has_value());
  EXPECT_THAT(all.unsupported, ElementsAre());
  // Only the ends of texts are used.
  auto only_end = ModelDir::Open(dir.path(), ModelDir::Defaults::kOnlyEnd);
  ASSERT_TRUE(only_end.ok()) << only_end.status();
  EXPECT_FALSE((*only_end)->generation_defaults().do_sample);
  EXPECT_FALSE((*only_end)->generation_defaults().top_k.has_value());
  EXPECT_THAT((*only_end)->generation_defaults().eos_token_ids, ElementsAre(9));

  WriteFile(
      dir.path() / "generation_config.json",
      R"({"do_sample": null, "temperature": null, "eos_token_id": null})");
  EXPECT_FALSE(defaults().top_k.has_value());
  EXPECT_FALSE(defaults().temperature.has_value());
  EXPECT_THAT(defaults().eos_token_ids, ElementsAre(5, 6));

  const std::string config = std::string(kTinyConfig) + "}";
  for (const char* bad :
       {"{", "[]", R"({"temperature": "hot"})", R"({"temperature": -1})",
        R"({"top_p": 2})", R"({"top_k": 1.5})", R"({"do_sample": "yes"})",
        R"({"eos_token_id": "x"})", R"({"max_new_tokens": -3})"}) {
    const absl::Status status = OpenWith(config, bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("generation_config.json"))
        << bad;
  }
}

absl::StatusOr<GenerationDefaults> Generation(const std::string& text) {
  return ParseGenerationDefaults(nlohmann::json::parse(text));
}

TEST(GenerationConfig, SamplingHasHuggingFacesTopK) {
  EXPECT_EQ(Generation(R"({"do_sample": true})")->top_k, 50);
  EXPECT_EQ(Generation(R"({"do_sample": true, "top_k": null})")->top_k, 50);
  EXPECT_EQ(Generation(R"({"do_sample": true, "top_k": 0})")->top_k, 0);
  EXPECT_FALSE(Generation(R"({"do_sample": false})")->top_k.has_value());
  EXPECT_FALSE(Generation("{}")->top_k.has_value());
  EXPECT_EQ(Generation(R"({"max_length": 4096})")->max_length, 4096);
}

TEST(GenerationConfig, WhatChangesAnswersAndIsNotDoneIsNamed) {
  // These are transformers' values for unused keys.
  EXPECT_THAT(Generation(R"({"num_beams": 1, "no_repeat_ngram_size": 0,
      "suppress_tokens": null, "begin_suppress_tokens": [], "typical_p": 1.0,
      "sequence_bias": {}, "token_healing": false, "min_length": 0,
      "early_stopping": true, "length_penalty": 2.0, "pad_token_id": 0,
      "transformers_version": "4.40.0", "cache_implementation": "static"})")
                  ->unsupported,
              ElementsAre());
  EXPECT_THAT(
      Generation(R"({"num_beams": 4, "no_repeat_ngram_size": 3,
          "suppress_tokens": [1, 2], "guidance_scale": 1.5,
          "bad_words_ids": [[7]], "token_healing": true,
          "stop_strings": ["x"], "min_new_tokens": 4})")
          ->unsupported,
      testing::UnorderedElementsAre(
          "num_beams 4", "no_repeat_ngram_size 3", "suppress_tokens [1,2]",
          "guidance_scale 1.5", "bad_words_ids [[7]]", "token_healing true",
          "stop_strings [\"x\"]", "min_new_tokens 4"));
  // Without sampling these do nothing.
  EXPECT_THAT(
      Generation(R"({"typical_p": 0.5, "eta_cutoff": 0.1})")->unsupported,
      ElementsAre());
  EXPECT_THAT(
      Generation(R"({"do_sample": true, "typical_p": 0.5, "eta_cutoff": 0.1})")
          ->unsupported,
      ElementsAre("eta_cutoff 0.1", "typical_p 0.5"));
  EXPECT_EQ(Generation(R"({"max_length": "long"})").status().code(),
            absl::StatusCode::kInvalidArgument);
}

RawTensor Matrix(const std::string& name, std::vector<float> values) {
  return {name, "F32", {2, 2}, BytesOf(values)};
}

// transformers ties what the config says is tied, unless the checkpoint has two
// different matrices.
TEST(ModelDir, TiedEmbeddingsThatDifferAreNotTied) {
  const auto tied = [](const std::vector<RawTensor>& tensors) {
    TempDir dir;
    WriteFile(dir.path() / "config.json",
              std::string(kTinyConfig) + R"(, "tie_word_embeddings": true})");
    WriteFile(dir.path() / "model.safetensors", SafetensorsOf(tensors));
    auto model = ModelDir::Open(dir.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->spec().tied_embeddings;
  };
  const RawTensor embedding = Matrix("model.embed_tokens.weight", {1, 2, 3, 4});
  EXPECT_TRUE(tied({embedding}));
  EXPECT_TRUE(tied({Matrix("lm_head.weight", {1, 2, 3, 4})}));
  EXPECT_TRUE(tied({embedding, Matrix("lm_head.weight", {1, 2, 3, 4})}));
  EXPECT_FALSE(tied({embedding, Matrix("lm_head.weight", {1, 2, 3, 5})}));
}

// An untied head that neither a file nor an index names was left out: there are
// embeddings of such a model.
TEST(ModelDir, AHeadMayBeLeftOut) {
  TempDir dir;
  WriteFile(dir.path() / "config.json",
            std::string(kTinyConfig) + R"(, "tie_word_embeddings": false})");
  const RawTensor embedding = Matrix("embed_tokens.weight", {1, 2, 3, 4});
  const auto open = [&](const std::vector<RawTensor>& tensors) {
    WriteFile(dir.path() / "model.safetensors", SafetensorsOf(tensors));
    auto model = ModelDir::Open(dir.path());
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  };
  const auto headless = open({embedding});
  EXPECT_TRUE(headless->spec().headless);
  EXPECT_TRUE(headless->spec().tied_embeddings);
  EXPECT_EQ(headless->MissingHead(), "lm_head.weight");
  EXPECT_THAT(headless->Remarks(),
              ::testing::Contains(HasSubstr("it makes embeddings only")));
  const auto whole = open({embedding, Matrix("lm_head.weight", {1, 2, 3, 4})});
  EXPECT_FALSE(whole->spec().headless || whole->spec().tied_embeddings);
  EXPECT_EQ(whole->MissingHead(), "");
  EXPECT_THAT(
      whole->Remarks(),
      ::testing::Not(::testing::Contains(HasSubstr("embeddings only"))));
  // One that has neither is another model's, and loading it says so.
  EXPECT_FALSE(open({Matrix("x", {1, 2, 3, 4})})->spec().headless);
  // An index that names the head tells that it is missing.
  std::filesystem::remove(dir.path() / "model.safetensors");
  WriteFile(dir.path() / "a.safetensors", SafetensorsOf({embedding}));
  WriteFile(dir.path() / "model.safetensors.index.json",
            R"({"weight_map": {"embed_tokens.weight": "a.safetensors",
                               "lm_head.weight": "a.safetensors"}})");
  const auto cut = ModelDir::Open(dir.path());
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_FALSE((*cut)->spec().headless);
}

TEST(ModelDir, WhatIsLeftOutOfAModelForImagesIsSaid) {
  const std::filesystem::path models =
      std::filesystem::path(TestsDir()) / "golden" / "models";
  const auto model = ModelDir::Open(models / "gemma3-images");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT((*model)->Remarks(),
              ::testing::ElementsAre(::testing::AllOf(
                  HasSubstr("the model's text runs"),
                  HasSubstr("(multi_modal_projector, vision_tower: "))));
  const auto text = ModelDir::Open(models / "gemma3-base");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT((*text)->Remarks(), ::testing::IsEmpty());
}

TEST(ModelDir, EveryGoldenModelHasAllItsTensors) {
  const std::filesystem::path models =
      std::filesystem::path(TestsDir()) / "golden" / "models";
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++found;
    auto model = ModelDir::Open(entry.path());
    ASSERT_TRUE(model.ok()) << model.status();
    auto tensors = (*model)->OpenTensors();
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const DecoderSpec& spec = (*model)->spec();
    std::vector<TensorRef> all = EmbeddingTensors(spec);
    for (int i = 0; i < spec.num_layers; ++i) {
      for (TensorRef& ref : LayerTensors(spec, i)) all.push_back(ref);
    }
    for (TensorRef& ref : HeadTensors(spec)) all.push_back(ref);
    for (const TensorRef& ref : all) {
      const absl::Status status = (*tensors)->Check(ref);
      EXPECT_TRUE(status.ok()) << status;
      int64_t size = 1;
      for (const int64_t dim : ref.shape) size *= dim;
      std::vector<float> values(static_cast<size_t>(size), NAN);
      const int64_t rows = ref.shape.size() < 2 ? 1 : ref.shape[0];
      ASSERT_TRUE((*tensors)->ReadRows(ref, 0, rows, values.data()).ok());
      for (const float value : values) ASSERT_TRUE(std::isfinite(value));
    }
    EXPECT_TRUE((*model)->Fingerprint().ok());
  }
  EXPECT_GE(found, 10);
}

}  // namespace
}  // namespace sluice
