#include "runtime/gguf/gguf_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/piece_list.h"
#include "tests/support/gguf_writer.h"

namespace sluice {
namespace {

using W = GgufWriter;

absl::StatusOr<GgufHeader> Read(const std::string& bytes) {
  return ReadGgufHeader(
      bytes.size(),
      [&](uint64_t begin, uint64_t end) -> absl::StatusOr<std::string> {
        return bytes.substr(begin, end - begin);
      });
}

std::string Floats(size_t count) { return std::string(4 * count, '\0'); }

TEST(GgufHeaderTest, ReadsValuesOfAllTypes) {
  W writer;
  writer.Key("u8", 0, W::Raw<uint8_t>(200))
      .Key("i8", 1, W::Raw<int8_t>(-3))
      .Key("u16", 2, W::Raw<uint16_t>(60000))
      .Key("i16", 3, W::Raw<int16_t>(-300))
      .Key("u32", 4, W::Raw<uint32_t>(4000000000u))
      .Key("i32", 5, W::Raw<int32_t>(-70000))
      .Key("f32", 6, W::Raw<float>(0.5f))
      .Bool("bool", true)
      .String("text", "a\nb")
      .Key("u64", 10, W::Raw<uint64_t>(uint64_t{1} << 40))
      .Key("i64", 11, W::Raw<int64_t>(-5))
      .Key("f64", 12, W::Raw<double>(0.25))
      .Strings("texts", {"", "x"})
      .List<int32_t>("ints", 5, {1, -1})
      .List<float>("floats", 6, {1, 2})
      .Key("nested", W::kArray,
           W::Raw(W::kArray) + W::Raw<uint64_t>(1) + W::Raw(W::kUint32) +
               W::Raw<uint64_t>(0));
  const absl::StatusOr<GgufHeader> header = Read(writer.Bytes());
  ASSERT_TRUE(header.ok()) << header.status();
  const GgufMetadata& m = header->metadata;
  EXPECT_EQ(m.size(), 16u);
  EXPECT_EQ(**m.Int("u8"), 200);
  EXPECT_EQ(**m.Int("i8"), -3);
  EXPECT_EQ(**m.Int("u16"), 60000);
  EXPECT_EQ(**m.Int("i16"), -300);
  EXPECT_EQ(**m.Int("u32"), 4000000000);
  EXPECT_EQ(**m.Int("i32"), -70000);
  EXPECT_EQ(**m.Int("u64"), int64_t{1} << 40);
  EXPECT_EQ(**m.Int("i64"), -5);
  EXPECT_EQ(**m.Int("bool"), 1);
  EXPECT_EQ(**m.Number("f32"), 0.5);
  EXPECT_EQ(**m.Number("f64"), 0.25);
  EXPECT_EQ(**m.Number("i8"), -3);
  EXPECT_EQ(**m.Bool("bool"), true);
  EXPECT_EQ(**m.String("text"), "a\nb");
  EXPECT_EQ(**m.Strings("texts"), (std::vector<std::string>{"", "x"}));
  EXPECT_EQ(*m.Ints("ints"), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(*m.Ints("u8"), (std::vector<int64_t>{200}));
  EXPECT_EQ(**m.Numbers("floats"), (std::vector<double>{1, 2}));
  EXPECT_TRUE(m.Has("nested"));
  EXPECT_FALSE(m.Int("absent")->has_value());
  EXPECT_EQ(m.Int("text").status().message(),
            "metadata \"text\" must be an integer");
  EXPECT_EQ(m.Bool("u8").status().message(),
            "metadata \"u8\" must be true or false");
  EXPECT_EQ(m.String("u8").status().message(),
            "metadata \"u8\" must be a string");
  EXPECT_FALSE(m.Strings("ints").ok());
  EXPECT_FALSE(m.Numbers("ints").ok());
}

TEST(GgufHeaderTest, ReadsPlacesOfTensors) {
  for (const uint32_t version : {2u, 3u}) {
    W writer;
    writer.Version(version)
        .Tensor("b", {64, 2}, 8, std::string(2 * 2 * 34, 'q'))
        .Tensor("a", {3}, 0, Floats(3));
    const std::string bytes = writer.Bytes();
    const absl::StatusOr<GgufHeader> header = Read(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    ASSERT_EQ(header->tensors.size(), 2u);
    EXPECT_EQ(header->tensors[0].name, "b");
    EXPECT_EQ(header->tensors[0].shape, (std::vector<int64_t>{2, 64}));
    EXPECT_EQ(header->tensors[0].type->name, "Q8_0");
    EXPECT_EQ(header->tensors[0].begin, 0u);
    EXPECT_EQ(header->tensors[0].end, 136u);
    EXPECT_EQ(header->tensors[1].begin, 160u);
    EXPECT_EQ(header->data_offset % 32, 0u);
    EXPECT_EQ(bytes.substr(header->data_offset, 1), "q");
  }
}

TEST(GgufHeaderTest, ReadsNoMoreThanThePiecesThatHoldTheHeader) {
  W writer;
  std::vector<std::string> many(200000, "0123456789");
  writer.Strings("many", many).Tensor("t", {1 << 20}, 0, Floats(1 << 20));
  const std::string bytes = writer.Bytes();
  uint64_t last = 0, read = 0;
  const auto header = ReadGgufHeader(
      bytes.size(),
      [&](uint64_t begin, uint64_t end) -> absl::StatusOr<std::string> {
        last = std::max(last, end);
        read += end - begin;
        return bytes.substr(begin, end - begin);
      });
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(last, NumPieces(header->data_offset) * kPieceBytes);
  EXPECT_EQ(read, last);
  EXPECT_EQ((**header->metadata.Strings("many")).size(), many.size());
}

struct Wrong {
  std::string bytes;
  std::string error;
};

std::vector<Wrong> WrongFiles() {
  const std::string good = W().String("key", "value").Bytes();
  const std::string tensor =
      W().Tensor("blk.0.t", {32, 4}, 0, Floats(128)).Bytes();
  W nested;
  std::string lists;
  for (int i = 0; i < 20; ++i) lists += W::Raw(W::kArray) + W::Raw<uint64_t>(1);
  nested.Key("deep", W::kArray, lists);
  return {
      {"", "the header: the file ends within it, at 0 bytes: it was cut"},
      {"GGUF", "the file ends within it, at 4 bytes: it was cut"},
      {"GGML" + good.substr(4), "does not begin with GGUF"},
      {W().Version(1).Bytes(), "is of version 1 of GGUF; versions 2 and 3"},
      {W().Version(0x03000000).Bytes(), "big-endian"},
      {W().Counts(0, 1).Bytes().substr(0, 24), "metadata key 0: the file ends"},
      {W().Counts(uint64_t{1} << 60, 0).Bytes(), "at most 262144 and 65536"},
      {W().Counts(0, uint64_t{1} << 60).Bytes(), "at most 262144 and 65536"},
      {W().Counts(3, 0).Header() + std::string(8, '\xff'),
       "tensor 0: a string of 18446744073709551615 bytes"},
      {W().Counts(0, 1).Bytes().substr(0, 24) + W::Raw<uint64_t>(5000),
       "metadata key 0: a string of 5000 bytes; at most 1024"},
      {good.substr(0, 45), "metadata \"key\": the file ends within it"},
      {W().Key("key", 13, "1234").Bytes(),
       "metadata \"key\" has the unknown type 13"},
      {W().Key("key", W::kArray, W::Raw<uint32_t>(77) + W::Raw<uint64_t>(1))
           .Bytes(),
       "metadata \"key\" is a list of the unknown type 77"},
      {W().Key("key", W::kArray,
               W::Raw(W::kUint64) + W::Raw<uint64_t>(uint64_t{1} << 61))
           .Bytes(),
       "metadata \"key\": a list of 2305843009213693952 values"},
      {W().Key("key", W::kArray, W::Raw(W::kString) + W::Raw<uint64_t>(40))
           .Bytes(),
       "metadata \"key\": a list of 40 values, which is more than the file"},
      {W().Key("key", W::kUint64, W::Raw<uint64_t>(UINT64_MAX)).Bytes(),
       "metadata \"key\" is 18446744073709551615, which is too much"},
      {W().Key("key", W::kBool, W::Raw<uint8_t>(2)).Bytes(),
       "metadata \"key\" must be true or false, but is byte 2"},
      {nested.Bytes(), "metadata \"deep\": lists are nested more than 8 deep"},
      {W().Int("k", 1).Int("k", 2).Bytes(), "metadata \"k\" appears twice"},
      {W().Int("general.alignment", 24).Bytes(),
       "metadata \"general.alignment\" must be a power of two"},
      {W().Int("general.alignment", 0).Bytes(), "must be a power of two"},
      {W().String("general.alignment", "x").Bytes(),
       "metadata \"general.alignment\" must be an integer"},
      {W().Tensor("t", {4}, 0, Floats(4))
           .Tensor("t", {4}, 0, Floats(4))
           .Bytes(),
       "tensor \"t\" appears twice"},
      {W().Tensor("t", {}, 0, "").Bytes(), "tensor \"t\" has 0 dimensions"},
      {W().Tensor("t", {1, 1, 1, 1, 1}, 0, Floats(1)).Bytes(),
       "tensor \"t\" has 5 dimensions"},
      {W().Tensor("t", {4, 0}, 0, "").Bytes(),
       "tensor \"t\" has a dimension of 0"},
      {W().Tensor("t", {UINT64_MAX}, 0, "").Bytes(),
       "tensor \"t\" has a dimension of 18446744073709551615"},
      {W().Tensor("t", {1u << 30, 1u << 30, 1u << 30, 1u << 30}, 0, "").Bytes(),
       "tensor \"t\" of shape [1073741824, 1073741824, 1073741824, "
       "1073741824] at 0 ends behind the file"},
      {W().Tensor("t", {4}, 4, Floats(4)).Bytes(),
       "tensor \"t\" has type 4 of ggml, which is not known"},
      {W().Tensor("t", {48}, 8, std::string(68, '\0')).Bytes(),
       "tensor \"t\" has rows of 48 elements; rows of type Q8_0 are multiples "
       "of 32"},
      {tensor.substr(0, tensor.size() - 1),
       "tensor \"blk.0.t\" ends at 512 of the data, which has 511 bytes: the "
       "file was cut"},
      {tensor.substr(0, 100),
       "tensor \"blk.0.t\" of shape [4, 32] at 0 ends behind the file of 100 "
       "bytes: the file was cut"},
      {W().Tensor("t", {4}, 0, Floats(4), UINT64_MAX - 8).Bytes(),
       "tensor \"t\" of shape [4] at 18446744073709551607 ends behind"},
      {W().Tensor("t", {4}, 0, Floats(64), 8).Bytes(),
       "tensor \"t\" begins at 8 of the data, which is no multiple of 32"},
      {W().Tensor("a", {16}, 0, Floats(16))
           .Tensor("b", {16}, 0, Floats(16), 32)
           .Bytes(),
       "tensor \"b\" begins at 32 of the data, within tensor \"a\""},
      {W().Tensor("a", {16}, 0, Floats(16))
           .Tensor("b", {16}, 0, Floats(16), 0)
           .Bytes(),
       "of the data, within tensor"},
  };
}

TEST(GgufHeaderTest, RefusesWrongFilesWithTheirFault) {
  for (const Wrong& wrong : WrongFiles()) {
    const absl::Status status = Read(wrong.bytes).status();
    EXPECT_FALSE(status.ok()) << wrong.error;
    EXPECT_TRUE(absl::StrContains(status.message(), wrong.error))
        << status << "\nexpected: " << wrong.error;
  }
}

TEST(GgufHeaderTest, AFileCutAnywhereIsRefused) {
  const std::string whole = W().String("general.architecture", "llama")
                                .Strings("list", {"one", "two"})
                                .Tensor("t", {32, 2}, 2, std::string(36, '\1'))
                                .Bytes();
  ASSERT_TRUE(Read(whole).ok());
  // What is behind the last tensor is padding.
  const size_t padding = 64 - 36;
  for (size_t size = 0; size < whole.size() - padding; ++size) {
    EXPECT_FALSE(Read(whole.substr(0, size)).ok()) << size;
  }
}

TEST(GgufHeaderTest, ErrorsOfReadingAreHandedOn) {
  const auto status =
      ReadGgufHeader(100,
                     [](uint64_t, uint64_t) -> absl::StatusOr<std::string> {
                       return absl::DataLossError("the disk is gone");
                     })
          .status();
  EXPECT_EQ(status.message(), "the disk is gone");
}

}  // namespace
}  // namespace sluice
