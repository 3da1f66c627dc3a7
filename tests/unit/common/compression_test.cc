#include "common/compression/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// Lines that compress well, and some that do not.
std::string Text(int lines) {
  std::string text;
  uint32_t random = 1;
  for (int i = 0; i < lines; ++i) {
    random = random * 1664525 + 1013904223;
    absl::StrAppend(&text, "line ", i, " ", random, "\n");
  }
  return text;
}

std::string Pack(Compression compression, absl::string_view data,
                 size_t flush_every = 0) {
  auto compressor = Compressor::Make(compression);
  std::string packed;
  const size_t step = flush_every == 0 ? data.size() + 1 : flush_every;
  for (size_t at = 0; at < data.size(); at += step) {
    EXPECT_TRUE(compressor->Add(data.substr(at, step), &packed).ok());
    if (flush_every > 0) {
      EXPECT_TRUE(compressor->Flush(&packed).ok());
    }
  }
  EXPECT_TRUE(compressor->Finish(&packed).ok());
  return packed;
}

// Reads `data`, which comes in pieces of `piece` bytes, `size` bytes at a time.
absl::StatusOr<std::string> Unpack(absl::string_view data, size_t piece = 4096,
                                   size_t size = 1000) {
  DecompressingReader reader([&](char* out, size_t room) {
    const size_t n = std::min({piece, room, data.size()});
    data.copy(out, n);
    data.remove_prefix(n);
    return absl::StatusOr<size_t>(n);
  });
  std::string text;
  std::string buffer(size, '\0');
  while (true) {
    const absl::StatusOr<size_t> n = reader.Read(buffer.data(), buffer.size());
    if (!n.ok()) {
      EXPECT_EQ(reader.Read(buffer.data(), 1).status(), n.status());
      return n.status();
    }
    if (*n == 0) return text;
    text.append(buffer, 0, *n);
  }
}

class CompressionTest : public testing::TestWithParam<Compression> {};

INSTANTIATE_TEST_SUITE_P(All, CompressionTest,
                         testing::Values(Compression::kGzip,
                                         Compression::kZstd));

TEST_P(CompressionTest, WhatIsPackedReadsTheSame) {
  for (const int lines : {0, 1, 20000}) {
    const std::string text = Text(lines);
    const std::string packed = Pack(GetParam(), text);
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{1} << 20}) {
      EXPECT_EQ(Unpack(packed, piece).value(), text) << lines << " " << piece;
    }
  }
}

TEST_P(CompressionTest, PartsFollowOneAnother) {
  const std::string parts = absl::StrCat(
      Pack(GetParam(), "one\n"), Pack(GetParam(), ""), Pack(GetParam(), "two"));
  for (const size_t piece : {1, 3, 4096}) {
    EXPECT_EQ(Unpack(parts, piece).value(), "one\ntwo");
  }
}

TEST_P(CompressionTest, WhatWasFlushedCanBeRead) {
  const std::string text = Text(1000);
  EXPECT_EQ(Unpack(Pack(GetParam(), text, 100)).value(), text);
  auto compressor = Compressor::Make(GetParam());
  std::string packed;
  ASSERT_TRUE(compressor->Add("there already", &packed).ok());
  ASSERT_TRUE(compressor->Flush(&packed).ok());
  absl::string_view rest = packed;
  DecompressingReader reader([&](char* out, size_t room) {
    const size_t n = rest.copy(out, room);
    rest.remove_prefix(n);
    return absl::StatusOr<size_t>(n);
  });
  std::string read(100, '\0');
  EXPECT_EQ(reader.Read(read.data(), read.size()).value(), 13u);
  EXPECT_TRUE(absl::StartsWith(read, "there already"));
}

TEST_P(CompressionTest, ACutIsSeenWhereverItIs) {
  const std::string packed = Pack(GetParam(), Text(100));
  for (size_t cut = 4; cut < packed.size(); cut += 13) {
    const absl::Status status = Unpack(packed.substr(0, cut)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ends too early"));
  }
}

TEST_P(CompressionTest, DamageIsSeen) {
  const std::string packed = Pack(GetParam(), Text(2000));
  for (const size_t at : {packed.size() / 2, packed.size() - 3}) {
    std::string damaged = packed;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const absl::Status status = Unpack(damaged).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("damaged"));
  }
  const absl::Status more = Unpack(packed + "something else").status();
  EXPECT_TRUE(absl::IsDataLoss(more)) << more;
}

TEST(DecompressingReaderTest, WhatIsNotPackedPasses) {
  const std::string text = Text(20000);
  EXPECT_EQ(Unpack(text, 7).value(), text);
  // Beginnings of the marks of packed data are text, too.
  for (const char* plain : {"", "\x1f", "\x28\xb5", "\x28\xb5\x2f", "{"}) {
    EXPECT_EQ(Unpack(plain, 1).value(), plain);
  }
}

TEST(DecompressingReaderTest, ASlowSourceIsNotWaitedForWithoutNeed) {
  int calls = 0;
  DecompressingReader reader([&](char* out, size_t) -> absl::StatusOr<size_t> {
    if (++calls > 1) return absl::InternalError("asked once too often");
    *out = '{';
    return 1;
  });
  char byte;
  EXPECT_EQ(reader.Read(&byte, 1).value(), 1u);
  EXPECT_EQ(byte, '{');
}

TEST(DecompressingReaderTest, ErrorsOfTheSourcePass) {
  DecompressingReader reader([](char*, size_t) -> absl::StatusOr<size_t> {
    return absl::UnavailableError("no disk");
  });
  char byte;
  EXPECT_TRUE(absl::IsUnavailable(reader.Read(&byte, 1).status()));
}

TEST(DecompressingReaderTest, AZstdWindowThatIsTooLargeIsRefused) {
  // A frame header that asks for a window of 2 GiB, and a block.
  const std::string frame("\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x", 10);
  const absl::Status status = Unpack(frame).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("128 MiB"));
}

TEST(CompressionNameTest, EndingsSayWhatAFileIs) {
  EXPECT_EQ(CompressionOfName("a.csv.gz"), Compression::kGzip);
  EXPECT_EQ(CompressionOfName("a.ZST"), Compression::kZstd);
  EXPECT_EQ(CompressionOfName("gz"), Compression::kNone);
  EXPECT_EQ(WithoutCompression("a.csv.gz"), "a.csv");
  EXPECT_EQ(WithoutCompression("a.csv"), "a.csv");
}

}  // namespace
}  // namespace sluice
