#include "runtime/text/tokenizer/dummy_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DummyTokenizerTest, BytesThereAndBack) {
  const auto tokenizer = CreateDummyTokenizer(32000);
  const std::string text = "h\xC3\xA9, \xF0\x9F\x99\x82\n";
  const auto ids = tokenizer->Encode(text, true);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), text.size() + 1);
  EXPECT_EQ(ids->front(), 1);
  EXPECT_EQ((*ids)[1], 3 + 'h');
  EXPECT_EQ(tokenizer->Decode(*ids, true), text);
  EXPECT_EQ(tokenizer->Decode(*ids, false), "<s>" + text);
  EXPECT_EQ(tokenizer->Encode(text, false)->size(), text.size());
}

TEST(DummyTokenizerTest, TokensBehindTheBytesHaveNames) {
  const auto tokenizer = CreateDummyTokenizer(300);
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{3 + 'a', 259, 299}, true),
            "a t259 t299");
  // The ids are of no token and of special ones.
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{-1, 300, 1, 2, 0}, true),
            "");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 2}, false), "<unk></s>");
  for (int32_t id = 0; id < 300; ++id) {
    EXPECT_EQ(tokenizer->TokenToId(tokenizer->IdToToken(id)), id);
  }
  for (const char* token : {"", "x", " t258", " t300", " t", " t-1", "<0x1FF>",
                            "<0x>", "<0x", "<0xzz>"}) {
    EXPECT_FALSE(tokenizer->TokenToId(token).has_value()) << token;
  }
}

TEST(DummyTokenizerTest, AStreamNeverEndsInsideACharacter) {
  const auto tokenizer = CreateDummyTokenizer(300);
  const auto stream = tokenizer->NewDecodeStream(true);
  std::string out;
  stream->Append(3 + 0xC3, &out);
  EXPECT_EQ(out, "");
  stream->Append(3 + 0xA9, &out);
  EXPECT_EQ(out, "\xC3\xA9");
  stream->Append(3 + 0xC3, &out);
  stream->Append(260, &out);
  EXPECT_EQ(out, "\xC3\xA9\xEF\xBF\xBD t260");
  stream->Append(3 + 0xF0, &out);
  stream->Flush(&out);
  EXPECT_EQ(out, "\xC3\xA9\xEF\xBF\xBD t260\xEF\xBF\xBD");
}

TEST(DummyTokenizerTest, SmallVocabularies) {
  const auto ascii = CreateDummyTokenizer(131);
  EXPECT_THAT(*ascii->Encode("a", true), ElementsAre(1, 3 + 'a'));
  const absl::Status status = ascii->Encode("\xC3\xA9", true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 195"));
  EXPECT_FALSE(CreateDummyTokenizer(2)->special_tokens().contains("eos_token"));
  EXPECT_FALSE(CreateDummyTokenizer(1)->special_tokens().contains("bos_token"));
  EXPECT_THAT(*CreateDummyTokenizer(1)->Encode("", true), ElementsAre());
}

TEST(DummyTokenizerTest, InvalidText) {
  const auto tokenizer = CreateDummyTokenizer(300);
  EXPECT_THAT(std::string(tokenizer->Encode("ab\xFF", true).status().message()),
              HasSubstr("byte 2"));
}

}  // namespace
}  // namespace sluice
