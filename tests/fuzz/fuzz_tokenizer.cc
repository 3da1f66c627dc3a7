// Tokenizer files that were spoiled at random: Load must give an error or a
// tokenizer that works, and whatever works must keep its promises. The seeds
// are fixed, so a failure comes back.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/text/utf8.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_paths.h"

namespace sluice {
namespace {

using nlohmann::json;

class FuzzTokenizer : public testing::Test {
 protected:
  size_t Below(size_t bound) { return random_() % bound; }

  // A golden tokenizer with most of its vocabulary cut off.
  json Golden(const std::string& kind) {
    const auto file =
        std::filesystem::path(TestsDir()) / "golden" / kind / "tokenizer.json";
    std::ifstream in(file);
    json tokenizer = json::parse(in);
    json& model = tokenizer["model"];
    if (model["type"] == "Unigram") {
      model["vocab"].erase(model["vocab"].begin() + 400, model["vocab"].end());
      return tokenizer;
    }
    json& merges = model["merges"];
    merges.erase(merges.begin() + 40, merges.end());
    json vocab = json::object();
    for (const auto& [token, id] : model["vocab"].items()) {
      if (id.get<int>() < 400 || token.size() <= 3) vocab[token] = id;
    }
    model["vocab"] = vocab;
    return tokenizer;
  }

  json AnyValue() {
    static const json kValues = json::parse(R"json([
      null, true, false, 0, -1, 1, 3.5, 4294967296, 18446744073709551615,
      "", "a", "▁", "ByteLevel", "Sequence", "Split", "Metaspace", "first",
      "Isolated", "MergedWithNext", "Contiguous", "(", "[", "a**", "\\p{", "x*",
      "(a|aa)+$", "[^a&&[b]]", "(?<=a)", "\\K", "(?i", "a{1,65535}{1,9}",
      [], {}, [[]], [null], ["a", "b"], {"type": "NFC"}, {"type": "Fuse"},
      {"type": "Strip", "content": "a", "start": 1, "stop": 1},
      {"type": "Prepend", "prepend": "a"}, {"type": "Punctuation"},
      {"type": "Metaspace", "replacement": "▁", "split": false},
      {"type": "Digits", "individual_digits": true},
      {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "é"},
      {"type": "UnicodeScripts"}, {"type": "Nmt"}, {"type": "Fuse"},
      {"type": "Precompiled", "precompiled_charsmap": "BAAAAAACAAA="},
      {"type": "ByteFallback"}, {"String": ""}, {"Regex": "\\s+(?!\\S)|."}
    ])json");
    return kValues[Below(kValues.size())];
  }

  // Changes one value somewhere in `part`.
  void Spoil(json* part) {
    while (part->is_structured() && !part->empty() && Below(8) != 0) {
      const bool vocabulary = part->size() > 100;
      if (vocabulary && Below(3) != 0) break;
      part = &*std::next(part->begin(),
                         static_cast<ptrdiff_t>(Below(part->size())));
    }
    if (part->is_object() && !part->empty() && Below(3) == 0) {
      part->erase(std::next(part->begin(),
                            static_cast<ptrdiff_t>(Below(part->size()))));
    } else if (part->is_array() && !part->empty() && Below(3) == 0) {
      part->push_back((*part)[Below(part->size())]);
    } else if (part->is_string() && Below(2) == 0) {
      auto text = part->get<std::string>();
      text.insert(Below(text.size() + 1), 1,
                  "()[]{}*+?\\^$|.aA0 &-"[Below(20)]);
      if (!FindInvalidUtf8(text)) *part = text;
    } else {
      *part = AnyValue();
    }
  }

  std::string AnyText() {
    static const std::vector<std::string> kParts = {
        "the",  " ",   "  ",     "\n",      "a",      "ab",     "<s>",
        "</s>", "123", "\u00E9", "e\u0301", "\u2581", "\u4E2D", "\U0001F600",
        "'s",   "...", "\t",     "\u0085",  "[note]", "solo",   "\uFFFD"};
    std::string text;
    for (size_t i = Below(12); i > 0; --i) text += kParts[Below(kParts.size())];
    return text;
  }

  void CheckLoaded(const Tokenizer& tokenizer) {
    for (int i = 0; i < 4; ++i) {
      const std::string text = AnyText();
      const auto ids = tokenizer.Encode(text, Below(2) == 0);
      if (!ids.ok()) {
        EXPECT_FALSE(ids.status().message().empty());
        continue;
      }
      CheckDecode(tokenizer, *ids);
    }
    std::vector<int32_t> ids;
    for (size_t i = Below(20); i > 0; --i) {
      ids.push_back(static_cast<int32_t>(Below(500)) - 5);
    }
    CheckDecode(tokenizer, ids);
  }

  void CheckDecode(const Tokenizer& tokenizer,
                   const std::vector<int32_t>& ids) {
    const bool skip = Below(2) == 0;
    const std::string text = tokenizer.Decode(ids, skip);
    EXPECT_FALSE(FindInvalidUtf8(text));
    IncrementalDetokenizer detokenizer(&tokenizer, skip);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.Append(id);
      EXPECT_FALSE(FindInvalidUtf8(piece));
      joined += piece;
    }
    EXPECT_EQ(joined + detokenizer.Flush(), text);
  }

  // Returns whether it could be loaded.
  bool Try(const std::string& content) {
    std::ofstream(dir_ / "tokenizer.json", std::ios::binary) << content;
    const auto tokenizer = Tokenizer::Load(dir_);
    if (tokenizer.ok()) {
      CheckLoaded(**tokenizer);
      return true;
    }
    EXPECT_NE(tokenizer.status().message().find("tokenizer.json"),
              std::string::npos)
        << tokenizer.status();
    return false;
  }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
  std::mt19937 random_{2024};
};

TEST_F(FuzzTokenizer, SpoiledValues) {
  int loaded = 0;
  constexpr int kRounds = 250;
  const std::vector<std::string> kinds = {"tokenizers/gpt2",
                                          "tokenizers/llama3",
                                          "tokenizers/qwen2",
                                          "tokenizers/llama2",
                                          "tokenizers/gpt2-prefix-space",
                                          "tokenizers/mistral-metaspace",
                                          "tokenizer_families/unigram-bytes",
                                          "tokenizer_families/other-parts"};
  for (const std::string& kind : kinds) {
    const json golden = Golden(kind);
    for (int round = 0; round < kRounds; ++round) {
      json tokenizer = golden;
      for (size_t i = 1 + Below(3); i > 0; --i) {
        // The vocabulary is mostly left alone: its entries are all alike.
        if (Below(4) == 0) {
          Spoil(&tokenizer["model"]);
        } else if (tokenizer.is_object() && Below(3) != 0) {
          const char* const kParts[] = {"normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",
                                        "added_tokens"};
          Spoil(&tokenizer[kParts[Below(5)]]);
        } else {
          Spoil(&tokenizer);
        }
        if (!tokenizer.is_object()) break;
        if (!tokenizer["model"].is_object()) break;
      }
      SCOPED_TRACE(testing::Message() << kind << " round " << round);
      loaded += Try(tokenizer.dump()) ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  // Some files loaded and some did not: otherwise one half of the promise went
  // untested.
  EXPECT_GT(loaded, kRounds / 2);
  EXPECT_LT(loaded, static_cast<int>(kinds.size()) * kRounds);
}

TEST_F(FuzzTokenizer, SpoiledBytes) {
  const std::string golden = Golden("tokenizers/llama2").dump();
  for (int round = 0; round < 300; ++round) {
    std::string content = golden;
    for (size_t i = 1 + Below(4); i > 0; --i) {
      const size_t at = Below(content.size());
      switch (Below(3)) {
        case 0:
          content[at] = static_cast<char>(Below(256));
          break;
        case 1:
          content.erase(at, 1 + Below(20));
          break;
        default:
          content.resize(at + 1);
      }
    }
    SCOPED_TRACE(testing::Message() << "round " << round);
    Try(content);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice
