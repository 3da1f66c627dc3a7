#include "runtime/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

TEST(GgufFileTest, IsKnownByItsNameOrItsFirstBytes) {
  TempDir dir;
  EXPECT_TRUE(IsGgufFile(dir.Write("a.gguf", "anything")));
  EXPECT_TRUE(IsGgufFile(dir.Write("b.GGUF", "")));
  EXPECT_TRUE(IsGgufFile(dir.Write("blob", "GGUF and more")));
  EXPECT_FALSE(IsGgufFile(dir.Write("c.json", "{}")));
  EXPECT_FALSE(IsGgufFile(dir.Write("short", "GG")));
  EXPECT_FALSE(IsGgufFile(dir.path()));
  EXPECT_FALSE(IsGgufFile(dir / "none.gguf"));
}

TEST(GgufFileTest, FindsAllPartsFromAnyOfThem) {
  TempDir dir;
  const std::string alone = dir.Write("m-00001-of-0002.gguf", "");
  EXPECT_EQ(*GgufParts(alone),
            std::vector<std::filesystem::path>{std::filesystem::path(alone)});
  const std::string first = dir.Write("m-00001-of-00002.gguf", "");
  const auto missing = GgufParts(first).status();
  EXPECT_EQ(missing.message(),
            dir / "m-00002-of-00002.gguf" +
                " is missing: it is part 2 of 2; get all parts into one "
                "directory");
  const std::string second = dir.Write("m-00002-of-00002.gguf", "");
  const auto parts = GgufParts(second);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(*parts, (std::vector<std::filesystem::path>{first, second}));
  for (const char* name : {"m-00003-of-00002.gguf", "m-00000-of-00002.gguf",
                           "m-00000-of-00000.gguf"}) {
    const auto wrong = GgufParts(dir.path() / name).status();
    EXPECT_TRUE(absl::StrContains(wrong.message(), "is no part of a model"))
        << wrong;
  }
}

TEST(GgufFileTest, ReadsTheMetadataOfTheFirstPart) {
  TempDir dir;
  dir.Write("m-00001-of-00002.gguf",
            GgufWriter().String("key", "first").Bytes());
  const std::string second = dir.Write(
      "m-00002-of-00002.gguf", GgufWriter().String("key", "second").Bytes());
  const auto metadata = ReadGgufMetadata(second);
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  EXPECT_EQ(**metadata->String("key"), "first");
  const std::string bad = dir.Write("bad.gguf", "GGUX");
  EXPECT_EQ(ReadGgufMetadata(bad).status().message(),
            bad + ": does not begin with GGUF");
  EXPECT_TRUE(absl::StrContains(
      ReadGgufMetadata(dir / "none.gguf").status().message(), "can't be read"));
}

}  // namespace
}  // namespace sluice
