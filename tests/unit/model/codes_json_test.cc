#include "runtime/model/codes_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/model/code_format.h"
#include "runtime/model/decoder_spec.h"

namespace sluice {
namespace {

using json = nlohmann::json;

TEST(CodesJson, ComesBack) {
  DecoderSpec spec;
  spec.num_layers = 3;
  spec.layers.resize(3);
  spec.layers[0].window = 7;
  const CodeFormat* const q4 = FindCodeFormat("Q4_K");
  const CodeFormat* const q6 = FindCodeFormat("Q6_K");
  spec.layers[1].codes = {q4, q4, q6, q4, q4, q4, nullptr, q4, q4, q6};
  spec.head_codes = q6;
  spec.embedding_codes = q4;
  std::string text = R"({"model_type": "llama"})";
  AddCodes(spec, &text);
  const json config = json::parse(text);
  EXPECT_EQ(config["model_type"], "llama");

  DecoderSpec read;
  read.num_layers = 3;
  read.layers.resize(3);
  read.layers[0].window = 7;
  ASSERT_TRUE(SetCodes(config, &read).ok());
  EXPECT_EQ(read.layers, spec.layers);
  EXPECT_EQ(read.head_codes, q6);
  EXPECT_EQ(read.embedding_codes, q4);
}

TEST(CodesJson, IsNotThereWithoutCodes) {
  DecoderSpec spec;
  spec.num_layers = 2;
  std::string config = "{}";
  AddCodes(spec, &config);
  EXPECT_EQ(config, "{}");
  config = R"({"kept_codes":{},"x":1})";
  AddCodes(spec, &config);
  EXPECT_EQ(config, R"({"x":1})");
  EXPECT_TRUE(SetCodes(json::object(), &spec).ok());
  EXPECT_TRUE(spec.layers.empty());
}

TEST(CodesJson, SaysWhatIsWrong) {
  const struct {
    const char* codes;
    const char* says;
  } cases[] = {
      {R"({"head": "", "embedding": "INT8_F16", "layers": [[]]})",
       "kept_codes.embedding is INT8_F16, in which no rows are looked up"},
      {R"([])", "no head, embedding and list of 1 layers"},
      {R"({"head": ""})", "no head, embedding and list of 1 layers"},
      {R"({"layers": [["", "", "", "", "", "", ""]]})",
       "no head, embedding and list of 1 layers"},
      {R"({"head": "", "embedding": "", "layers": []})",
       "no head, embedding and list of 1 layers"},
      {R"({"head": "Q9", "embedding": "", "layers": [["", "", "", "", "", "", ""]]})",
       "format \"Q9\""},
      {R"({"head": 3, "embedding": "", "layers": [["", "", "", "", "", "", ""]]})",
       "format 3"},
      {R"({"head": "", "embedding": "", "layers": [["Q4_K"]]})",
       "10 formats for layer 0"},
      {R"({"head": "", "embedding": "", "layers": ["Q4_K"]})",
       "10 formats for layer 0"},
      {R"({"head": "", "embedding": "", "layers": [["", "", "", "", "", "", "", "", "", null]]})",
       "format null"},
  };
  for (const auto& c : cases) {
    DecoderSpec spec;
    spec.num_layers = 1;
    const absl::Status status =
        SetCodes({{"kept_codes", json::parse(c.codes)}}, &spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.codes;
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace sluice
