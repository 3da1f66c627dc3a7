// Tests of Tokenizer::Load's errors for broken and unsupported files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/test_paths.h"
#include "tests/unit/text/model_files.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

absl::Status LoadError(const std::map<std::string, std::string>& files) {
  const ModelFiles model(files);
  return Tokenizer::Load(model.dir()).status();
}

struct Broken {
  const char* name;
  const char* part;   // JSON pointer
  const char* value;  // JSON; "" removes the part (of an array, the last)
  absl::StatusCode code;
  std::vector<const char*> message;
};

class BrokenTokenizerJson : public testing::TestWithParam<Broken> {};

TEST_P(BrokenTokenizerJson, ErrorNamesFileAndPart) {
  const Broken& broken = GetParam();
  json tokenizer = SmallTokenizerJson();
  const json::json_pointer pointer(broken.part);
  if (*broken.value == '\0') {
    json& parent = tokenizer[pointer.parent_pointer()];
    parent.is_array() ? static_cast<void>(parent.erase(parent.size() - 1))
                      : static_cast<void>(parent.erase(pointer.back()));
  } else {
    tokenizer[pointer] = json::parse(broken.value);
  }
  const absl::Status status = LoadError({{"tokenizer.json", tokenizer.dump()}});
  EXPECT_EQ(status.code(), broken.code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  for (const char* text : broken.message) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

constexpr auto kBad = absl::StatusCode::kInvalidArgument;
constexpr auto kNotYet = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Parts, BrokenTokenizerJson,
    testing::Values(
        Broken{"NoModel", "/model", "", kBad, {"\"model\" is missing"}},
        Broken{"ModelNotObject", "/model", "[]", kBad, {"model: is array"}},
        Broken{"UnigramOfBpe",
               "/model/type",
               "\"Unigram\"",
               kBad,
               {"model.vocab", "is object"}},
        Broken{"UnigramScore",
               "/model",
               R"({"type": "Unigram", "vocab": [["a", "0"]]})",
               kBad,
               {"model.vocab[0]", "is not [token, score]"}},
        Broken{"UnigramUnknown",
               "/model",
               R"({"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1})",
               kBad,
               {"model", "unk_id 1"}},
        Broken{"WordLevel",
               "/model/type",
               "\"WordLevel\"",
               kNotYet,
               {"model.type", "\"WordLevel\""}},
        Broken{"WordPiece",
               "/model/type",
               "\"WordPiece\"",
               kNotYet,
               {"model.type", "\"WordPiece\"", "BERT"}},
        Broken{"Dropout", "/model/dropout", "0.1", kNotYet, {"model.dropout"}},
        Broken{"NoVocab", "/model/vocab", "", kBad, {"\"vocab\" is missing"}},
        Broken{"VocabNotObject",
               "/model/vocab",
               "[\"a\"]",
               kBad,
               {"model.vocab: is array"}},
        Broken{"IdNotNumber",
               "/model/vocab/a",
               "\"0\"",
               kBad,
               {"model.vocab: id of \"a\""}},
        Broken{"IdNegative",
               "/model/vocab/a",
               "-1",
               kBad,
               {"model.vocab: id of \"a\""}},
        Broken{"IdHuge",
               "/model/vocab/a",
               "4000000000",
               kBad,
               {"model.vocab: id of \"a\""}},
        Broken{"IdBeyond64Bits",
               "/model/vocab/a",
               "18446744073709551615",
               kBad,
               {"model.vocab: id of \"a\""}},
        Broken{
            "NoMerges", "/model/merges", "", kBad, {"\"merges\" is missing"}},
        Broken{"MergeOfUnknown",
               "/model/merges/1",
               "[\"ab\", \"x\"]",
               kBad,
               {"merges[1]: \"x\" is not in the vocabulary"}},
        Broken{"MergeToUnknown",
               "/model/merges/1",
               "[\"b\", \"c\"]",
               kBad,
               {"merges[1]: \"bc\" is not in the vocabulary"}},
        Broken{"MergeOfThree",
               "/model/merges/1",
               "\"a b c\"",
               kBad,
               {"model.merges[1]: is not two tokens"}},
        Broken{"MergeOfNumbers",
               "/model/merges/1",
               "[1, 2]",
               kBad,
               {"model.merges[1]: is not two tokens"}},
        Broken{"FlagNotBoolean",
               "/model/byte_fallback",
               "1",
               kBad,
               {"model.byte_fallback: is number, not a boolean"}},
        Broken{
            "UnkNotString", "/model/unk_token", "7", kBad, {"model.unk_token"}},
        Broken{"AddedNotArray",
               "/added_tokens",
               "{}",
               kBad,
               {"added_tokens: is object, not an array"}},
        Broken{"AddedWithoutContent",
               "/added_tokens/0/content",
               "",
               kBad,
               {"added_tokens[0]: \"content\" is missing"}},
        Broken{"NormalizerUnknown",
               "/normalizer",
               R"({"type": "BertNormalizer"})",
               kNotYet,
               {"normalizer.type", "\"BertNormalizer\""}},
        Broken{"CharsmapNotBase64",
               "/normalizer",
               R"({"type": "Precompiled", "precompiled_charsmap": "!"})",
               kBad,
               {"normalizer: precompiled_charsmap is not Base64"}},
        Broken{
            "CharsmapTooLong",
            "/normalizer",
            R"({"type": "Precompiled", "precompiled_charsmap": "CAAAAAAAAAA="})",
            kBad,
            {"normalizer: the charsmap's array of 8 bytes does not fit"}},
        Broken{"NormalizerNoType",
               "/normalizer",
               "{}",
               kBad,
               {"normalizer: \"type\" is missing"}},
        Broken{"NormalizerInSequence",
               "/normalizer",
               R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, 3]})",
               kBad,
               {"normalizer.normalizers[1]: is number"}},
        Broken{"ReplaceWithoutPattern",
               "/normalizer",
               R"({"type": "Replace", "pattern": {}, "content": "x"})",
               kBad,
               {"normalizer.pattern: has neither"}},
        Broken{"PreTokenizerUnknown",
               "/pre_tokenizer",
               R"({"type": "BertPreTokenizer"})",
               kNotYet,
               {"pre_tokenizer.type", "\"BertPreTokenizer\""}},
        Broken{"DelimiterOfTwo",
               "/pre_tokenizer",
               R"({"type": "CharDelimiterSplit", "delimiter": "||"})",
               kBad,
               {"pre_tokenizer.delimiter: is not one character"}},
        Broken{"BadRegex",
               "/pre_tokenizer",
               R"({"type": "Split", "pattern": {"Regex": "(a"},
                   "behavior": "Isolated", "invert": false})",
               kBad,
               {"pre_tokenizer.pattern", "unfinished group"}},
        Broken{"BadRepeat",
               "/pre_tokenizer",
               R"({"type": "Split", "pattern": {"Regex": "a{5,2}"},
                   "behavior": "Isolated", "invert": false})",
               kBad,
               {"pre_tokenizer.pattern", "out of order"}},
        Broken{"RegexNotSupported",
               "/pre_tokenizer",
               R"({"type": "Split", "pattern": {"Regex": "(?~a)x"},
                   "behavior": "Isolated", "invert": false
})",
               kNotYet,
               {"pre_tokenizer.pattern", "this kind of group"}},
        Broken{"UnknownProperty",
               "/pre_tokenizer",
               R"({"type": "Split", "pattern": {"Regex": "\\p{Klingon}"},
                   "behavior": "Isolated", "invert": false})",
               kNotYet,
               {"pre_tokenizer.pattern", "property \"Klingon\""}},
        Broken{"BadBehavior",
               "/pre_tokenizer",
               R"({"type": "Punctuation", "behavior": "Lost"})",
               kBad,
               {"pre_tokenizer.behavior", "\"Lost\""}},
        Broken{"MetaspaceReplacement",
               "/pre_tokenizer",
               R"({"type": "Metaspace", "replacement": "__"})",
               kBad,
               {"pre_tokenizer.replacement: is not one character"}},
        Broken{"MetaspaceScheme",
               "/pre_tokenizer",
               R"({"type": "Metaspace", "replacement": "_",
                   "prepend_scheme": "often"})",
               kBad,
               {"pre_tokenizer.prepend_scheme", "\"often\""}},
        Broken{"FixedLengthOfNone",
               "/pre_tokenizer",
               R"({"type": "FixedLength", "length": 0})",
               kBad,
               {"pre_tokenizer.length: is not in 1.."}},
        Broken{"PostUnknown",
               "/post_processor/type",
               "\"Magic\"",
               kNotYet,
               {"post_processor.type", "\"Magic\""}},
        Broken{"TemplateWithoutToken",
               "/post_processor/special_tokens",
               "{}",
               kBad,
               {"post_processor.single[0].SpecialToken.id", "\"<s>\""}},
        Broken{"TemplateWithBadId",
               "/post_processor/special_tokens/<s>/ids/0",
               "-5",
               kBad,
               {"special_tokens.<s>.ids[0]"}},
        Broken{"TemplateWithoutText",
               "/post_processor/single/1",
               "",
               kNotYet,
               {"post_processor.single"}},
        Broken{"TemplateOfB",
               "/post_processor/single/1/Sequence/id",
               "\"B\"",
               kBad,
               {"post_processor.single[1].Sequence.id"}},
        Broken{"RobertaWithoutSep",
               "/post_processor",
               R"({"type": "RobertaProcessing", "cls": ["<s>", 6]})",
               kBad,
               {"post_processor: \"sep\" is missing"}},
        Broken{"DecoderUnknown",
               "/decoder",
               R"({"type": "WordPiece"})",
               kNotYet,
               {"decoder.type", "\"WordPiece\""}},
        Broken{"DecoderStripCount",
               "/decoder",
               R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})",
               kBad,
               {"decoder.start"}}),
    [](const auto& info) { return info.param.name; });

TEST(TokenizerLoadTest, NestedTooDeeply) {
  for (const auto& [part, list] :
       std::map<std::string, std::string>{{"normalizer", "normalizers"},
                                          {"pre_tokenizer", "pretokenizers"},
                                          {"post_processor", "processors"},
                                          {"decoder", "decoders"}}) {
    json nested = {{"type", "Sequence"}, {list, json::array()}};
    for (int i = 0; i < 100; ++i) {
      nested = {{"type", "Sequence"}, {list, json::array({nested})}};
    }
    json tokenizer = SmallTokenizerJson();
    tokenizer[part] = nested;
    const absl::Status status =
        LoadError({{"tokenizer.json", tokenizer.dump()}});
    EXPECT_EQ(status.code(), kBad) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("nested too deeply"));
  }
}

TEST(TokenizerLoadTest, NotJson) {
  const absl::Status status = LoadError({{"tokenizer.json", "{\"model\": "}});
  EXPECT_EQ(status.code(), kBad);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("tokenizer.json"),
                             HasSubstr("not JSON: line 1, column 11")));
  EXPECT_EQ(LoadError({{"tokenizer.json", "\"text\""}}).code(), kBad);
  EXPECT_EQ(LoadError({{"tokenizer.json", ""}}).code(), kBad);
  EXPECT_EQ(LoadError({{"tokenizer.json", "{\"model\": \"\xFF\"}"}}).code(),
            kBad);
}

TEST(TokenizerLoadTest, NoTokenizer) {
  EXPECT_EQ(LoadError({}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadError({{"vocab.json", "{}"}}).code(),
            absl::StatusCode::kNotFound);
}

TEST(TokenizerLoadTest, BrokenConfig) {
  const std::string tokenizer = SmallTokenizerJson().dump();
  const auto error = [&](const char* file, const char* content) {
    return LoadError({{"tokenizer.json", tokenizer}, {file, content}});
  };
  const struct {
    const char* file;
    const char* content;
    const char* message;
  } kCases[] = {
      {"tokenizer_config.json", "[]", "tokenizer_config.json: is array"},
      {"tokenizer_config.json", "{", "tokenizer_config.json: not JSON"},
      {"tokenizer_config.json", R"({"bos_token": 3})",
       ": bos_token: is number"},
      {"tokenizer_config.json", R"({"add_bos_token": "yes"})",
       ": add_bos_token: is string"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {}}})",
       ": added_tokens_decoder: \"x\" is not an id"},
      {"tokenizer_config.json", R"({"added_tokens_decoder": {"7": {}}})",
       ": added_tokens_decoder.7: \"content\" is missing"},
      {"special_tokens_map.json", R"({"eos_token": []})", ": eos_token: is"},
      {"added_tokens.json", R"({"<x>": "seven"})", ": <x>: is string"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = error(test.file, test.content);
    EXPECT_EQ(status.code(), kBad) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr(test.file), HasSubstr(test.message)));
  }
}

constexpr char kVocab[] = R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})";

TEST(TokenizerLoadTest, BrokenVocabAndMerges) {
  const absl::Status bad_id =
      LoadError({{"vocab.json", R"({"a": 1e99})"}, {"merges.txt", ""}});
  EXPECT_EQ(bad_id.code(), kBad);
  EXPECT_THAT(std::string(bad_id.message()), HasSubstr("vocab.json"));

  const absl::Status bad_line = LoadError(
      {{"vocab.json", kVocab}, {"merges.txt", "#version: 0.2\na b\nabc\n"}});
  EXPECT_EQ(bad_line.code(), kBad);
  EXPECT_THAT(std::string(bad_line.message()),
              HasSubstr("merges.txt: line 3 is not two tokens"));

  const absl::Status unknown =
      LoadError({{"vocab.json", kVocab}, {"merges.txt", "a x\n"}});
  EXPECT_EQ(unknown.code(), kBad);
  EXPECT_THAT(std::string(unknown.message()),
              testing::AllOf(HasSubstr("merges.txt"), HasSubstr("\"x\"")));

  const absl::Status other =
      LoadError({{"vocab.json", kVocab},
                 {"merges.txt", "a b\n"},
                 {"tokenizer_config.json",
                  R"({"tokenizer_class": "RobertaTokenizer"})"}});
  EXPECT_EQ(other.code(), kNotYet);
  EXPECT_THAT(
      std::string(other.message()),
      HasSubstr(
          "tokenizer_config.json: tokenizer_class: \"RobertaTokenizer\""));
}

// GPT-2's class without any configuration, and with OPT's.
TEST(TokenizerLoadTest, VocabAndMerges) {
  const ModelFiles plain(
      {{"vocab.json", kVocab}, {"merges.txt", "#version: 0.2\r\na b\r\n\r\n"}});
  const auto gpt2 = Tokenizer::Load(plain.dir());
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ((*gpt2)->special_tokens().at("bos_token"), "<|endoftext|>");
  EXPECT_EQ((*gpt2)->special_tokens().at("eos_token"), "<|endoftext|>");
  EXPECT_EQ((*gpt2)->vocab_size(), 5);  // the class adds its end of text
  EXPECT_EQ(*(*gpt2)->Encode("ab ab<|endoftext|>", true), Ids({2, 3, 2, 4}));

  const ModelFiles opt(
      {{"vocab.json", kVocab},
       {"merges.txt", "a b\n"},
       {"tokenizer_config.json",
        R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
            "add_eos_token": true, "eos_token": "</s>", "unk_token": null})"},
       {"special_tokens_map.json", R"({"bos_token": {"content": "<s>"}})"},
       {"added_tokens.json", R"({"</s>": 8, "later": 9})"}});
  const auto both = Tokenizer::Load(opt.dir());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ((*both)->special_tokens().at("bos_token"), "<s>");
  EXPECT_EQ((*both)->special_tokens().at("eos_token"), "</s>");
  EXPECT_EQ(*(*both)->Encode("ab", true), Ids({6, 2, 4}));
  EXPECT_EQ(*(*both)->Encode("ab", false), Ids({2}));
  EXPECT_EQ((*both)->TokenToId("later"), 5);
  EXPECT_FALSE((*both)->IsSpecial(5));
  EXPECT_TRUE((*both)->IsSpecial(6));
}

TEST(TokenizerLoadTest, SmallTokenizerWorks) {
  json tokenizer = SmallTokenizerJson();
  const ModelFiles model({{"tokenizer.json", tokenizer.dump()},
                          {"tokenizer_config.json",
                           R"({"bos_token": {"content": "<s>"},
            "added_tokens_decoder": {"6": {"content": "<s>", "special": true},
                                     "9": {"content": "<new>"}}})"}});
  const auto small = Tokenizer::Load(model.dir());
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(*(*small)->Encode("abc b<new>", true), Ids({6, 5, 3, 1, 7}));
  EXPECT_EQ((*small)->special_tokens().at("bos_token"), "<s>");
  EXPECT_FALSE((*small)->special_tokens().contains("eos_token"));
  EXPECT_EQ((*small)->vocab_size(), 8);
}

TEST(TokenizerLoadTest, AddPrefixSpaceAsHuggingFacesClasses) {
  const std::string folder = TestsDir() + "/golden/tokenizers/";
  const auto read = [](const std::string& file) {
    std::ifstream in(file);
    return json::parse(in);
  };
  const json cases = read(folder + "prefix_space.json");
  ASSERT_EQ(cases.size(), 7u);
  for (const json& row : cases) {
    const std::string kind = folder + row["tokenizer"].get<std::string>();
    json config = read(kind + "/tokenizer_config.json");
    config["tokenizer_class"] = row["tokenizer_class"];
    config["add_prefix_space"] = row["add_prefix_space"];
    const ModelFiles model(
        {{"tokenizer.json", read(kind + "/tokenizer.json").dump()},
         {"tokenizer_config.json", config.dump()}});
    const auto tokenizer = Tokenizer::Load(model.dir());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const json& text : row["texts"]) {
      const auto ids = text["ids"].get<Ids>();
      EXPECT_EQ(*(*tokenizer)->Encode(text["text"].get<std::string>(), false),
                ids)
          << kind << text;
      EXPECT_EQ((*tokenizer)->Decode(ids, false), text["decoded"])
          << kind << text;
    }
  }
}

// Special tokens that only the files beside the vocabulary name.
TEST(TokenizerLoadTest, SpecialTokensOfOtherFilesAsHuggingFace) {
  const std::string folder = TestsDir() + "/golden/tokenizers/";
  const auto read = [](const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  };
  // Ids follow the order in the files.
  using nlohmann::ordered_json;
  const ordered_json cases =
      ordered_json::parse(read(folder + "special_tokens.json"));
  ASSERT_EQ(cases.size(), 50u);
  for (const ordered_json& row : cases) {
    const std::string kind = row["tokenizer"];
    std::map<std::string, std::string> files;
    for (const char* name :
         {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
          "special_tokens_map.json"}) {
      const std::string file = absl::StrCat(folder, kind, "/", name);
      if (std::filesystem::exists(file)) files[name] = read(file);
    }
    for (const auto& [name, value] : row["files"].items()) {
      files.erase(name);
      if (!value.is_null()) files[name] = value.dump();
    }
    const ModelFiles model(files);
    const auto tokenizer = Tokenizer::Load(model.dir());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status() << row["files"];
    EXPECT_EQ((*tokenizer)->vocab_size(), row["vocab_size"]) << row["files"];
    for (const ordered_json& text : row["texts"]) {
      const auto ids = text["ids"].get<Ids>();
      EXPECT_EQ(*(*tokenizer)->Encode(text["text"].get<std::string>(), false),
                ids)
          << kind << row["files"] << text;
      EXPECT_EQ((*tokenizer)->Decode(ids, true), text["decoded"])
          << kind << row["files"] << text;
      EXPECT_EQ((*tokenizer)->Decode(ids, false), text["decoded_special"])
          << kind << row["files"] << text;
    }
  }
}

TEST(TokenizerLoadTest, AllNamedTokens) {
  const ModelFiles model(
      {{"tokenizer.json", SmallTokenizerJson().dump()},
       {"tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": null, "pad_token": "a",
            "mask_token": {"content": "b"}, "image_token": "c",
            "video_token": {"__type": "AddedToken", "content": "ab"},
            "other_token": {"content": "ab"}, "add_bos_token": true,
            "extra_special_tokens": {"audio": "abc"},
            "model_specific_special_tokens": {"other": "b"}})"}});
  const auto tokenizer = Tokenizer::Load(model.dir());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::map<std::string, std::string> expected = {
      {"bos_token", "<s>"}, {"pad_token", "a"},    {"mask_token", "b"},
      {"image_token", "c"}, {"video_token", "ab"}, {"audio", "abc"},
      {"other", "b"}};
  EXPECT_EQ((*tokenizer)->special_tokens(), expected);
}

}  // namespace
}  // namespace sluice
