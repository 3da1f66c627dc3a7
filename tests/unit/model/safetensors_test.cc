#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "common/float16.h"
#include "common/piece_list.h"
#include "runtime/model/checkpoint/safetensors_header.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/model/checkpoint/whole_file.h"
#include "runtime/model/model_dir.h"
#include "tests/unit/model/checkpoint_files.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorRef Ref(const std::string& name, std::vector<int64_t> shape,
              TensorRole role = TensorRole::kQWeight) {
  return {{name}, role, std::move(shape)};
}

TEST(FloatConvert, Float16OfEveryBitPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const int fraction = static_cast<int>(bits & 1023);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    const float got = Float16ToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(got), fraction != 0) << bits;
      if (fraction == 0) {
        ASSERT_EQ(got, sign * std::numeric_limits<float>::infinity());
      }
      continue;
    }
    const float want =
        exponent == 0
            ? sign * std::ldexp(static_cast<float>(fraction), -24)
            : sign * std::ldexp(1024.0f + static_cast<float>(fraction),
                                exponent - 25);
    ASSERT_EQ(got, want) << bits;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Safetensors, ReadsRowsOfAllThreeDtypes) {
  TempDir dir;
  WriteFile(
      dir.path() / "model.safetensors",
      SafetensorsOf(
          {{"f32", "F32", {3, 2}, BytesOf<float>({1, 2, 3, 4, 5, 6})},
           {"bf16",
            "BF16",
            {2, 2},
            BytesOf<uint16_t>({0x3F80, 0xC000, 0x0001, 0x7F80})},
           {"f16", "F16", {3}, BytesOf<uint16_t>({0x3C00, 0xC000, 0x0001})},
           {"ids", "I64", {1}, BytesOf<int64_t>({7})},
           {"none", "F32", {0, 5}, ""},
           {"one", "F32", {}, BytesOf<float>({9})}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();

  float out[6] = {};
  ASSERT_TRUE((*source)->ReadRows(Ref("f32", {3, 2}), 1, 3, out).ok());
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[3], 6);
  ASSERT_TRUE((*source)->ReadRows(Ref("bf16", {2, 2}), 0, 2, out).ok());
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], -2);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -133));
  EXPECT_TRUE(std::isinf(out[3]));
  ASSERT_TRUE((*source)->ReadRows(Ref("f16", {3}), 0, 1, out).ok());
  EXPECT_EQ(out[0], 1);
  EXPECT_EQ(out[1], -2);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -24));
  EXPECT_TRUE((*source)->ReadRows(Ref("f32", {3, 2}), 2, 2, nullptr).ok());
  EXPECT_TRUE((*source)->ReadRows(Ref("one", {}), 0, 1, out).ok());
  EXPECT_EQ(out[0], 9);

  // Parts of tensors, as they are and changed.
  TensorRef part = Ref("f32", {2, 2});
  part.first_row = 1;
  part.tensor_rows = 3;
  part.scale = 0.5f;
  part.add = 1;
  ASSERT_TRUE((*source)->ReadRows(part, 1, 2, out).ok());
  EXPECT_EQ(out[0], 3.5f);
  EXPECT_EQ(out[1], 4);
  part = Ref("f16", {2});
  part.first_row = 1;
  part.tensor_rows = 3;
  ASSERT_TRUE((*source)->ReadRows(part, 0, 1, out).ok());
  EXPECT_EQ(out[0], -2);
  part.tensor_rows = 4;
  EXPECT_EQ((*source)->Check(part).code(), absl::StatusCode::kInvalidArgument);

  const auto message = [&](const absl::Status& status) {
    return std::string(status.message());
  };
  const absl::Status missing = (*source)->Check(Ref("nope", {1}));
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(missing), HasSubstr("model.safetensors"));
  EXPECT_THAT(message(missing), HasSubstr("nope"));
  const absl::Status shape = (*source)->Check(Ref("f32", {2, 3}));
  EXPECT_EQ(shape.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message(shape), HasSubstr("[3, 2]"));
  EXPECT_THAT(message(shape), HasSubstr("[2, 3]"));
  const absl::Status dtype = (*source)->Check(Ref("ids", {1}));
  EXPECT_EQ(dtype.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(message(dtype), HasSubstr("I64"));
  for (const auto& [begin, end] : {std::pair(-1, 1), {0, 4}, {2, 1}}) {
    EXPECT_EQ((*source)->ReadRows(Ref("f32", {3, 2}), begin, end, out).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Weights that lie in blocks, in pairs of neighbours, or by columns: those of
// GPT-NeoX, GPT-J and GPT-2.
TEST(Safetensors, RowsMayLieInBlocksInPairsAndByColumns) {
  TempDir dir;
  constexpr int64_t kRows = 12, kColumns = 3;
  std::vector<float> matrix(kRows * kColumns), vector(kRows);
  std::iota(matrix.begin(), matrix.end(), 0.0F);
  std::iota(vector.begin(), vector.end(), 100.0F);
  WriteFile(dir.path() / "model.safetensors",
            SafetensorsOf({{"m", "F32", {kRows, kColumns}, BytesOf(matrix)},
                           {"t", "F32", {kColumns, kRows}, BytesOf(matrix)},
                           {"v", "F32", {kRows}, BytesOf(vector)}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();

  // Two heads of two rows each, of blocks of three parts.
  TensorRef blocks = Ref("m", {4, kColumns});
  blocks.first_row = 2;
  blocks.tensor_rows = kRows;
  blocks.block_rows = 2;
  blocks.block_stride = 6;
  // Two heads of six rows, of which four are pairs.
  TensorRef pairs = Ref("m", {kRows, kColumns});
  pairs.interleaved = 4;
  pairs.head_rows = 6;
  const std::vector<int64_t> in_blocks = {2, 3, 8, 9};
  const std::vector<int64_t> in_pairs = {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11};
  for (const auto& [ref, stored] :
       {std::pair(blocks, in_blocks), std::pair(pairs, in_pairs)}) {
    const auto rows = static_cast<int64_t>(stored.size());
    for (int64_t begin = 0; begin < rows; ++begin) {
      for (int64_t end = begin; end <= rows; ++end) {
        TensorRef by_columns = ref;
        by_columns.name = "t";
        by_columns.transposed = true;
        std::vector<float> out((end - begin) * kColumns), columns = out;
        ASSERT_TRUE((*source)->ReadRows(ref, begin, end, out.data()).ok());
        ASSERT_TRUE(
            (*source)->ReadRows(by_columns, begin, end, columns.data()).ok());
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t col = 0; col < kColumns; ++col) {
            const int64_t at = (row - begin) * kColumns + col;
            ASSERT_EQ(out[at], matrix[stored[row] * kColumns + col]);
            ASSERT_EQ(columns[at], matrix[col * kRows + stored[row]]);
          }
        }
      }
    }
    TensorRef elements = ref;
    elements.name = "v";
    elements.shape = {rows};
    elements.scale = 2;
    std::vector<float> out(rows);
    ASSERT_TRUE((*source)->ReadRows(elements, 0, 1, out.data()).ok());
    for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(out[i], 2 * vector[stored[i]]);
  }
  // The shape that is asked for is that of the tensor.
  TensorRef wrong = Ref("m", {kRows, kColumns});
  wrong.transposed = true;
  const absl::Status status = (*source)->Check(wrong);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("[12, 3]"), HasSubstr("[3, 12]")));
}

// As experts are: matrices and vectors of which a tensor has one behind the
// other, stored by rows or by columns, of which gate and up take turns.
TEST(Safetensors, AWeightMayBeInAStack) {
  TempDir dir;
  constexpr int64_t kStack = 3, kRows = 4, kColumns = 3;
  std::vector<float> matrices(kStack * kRows * kColumns);
  std::iota(matrices.begin(), matrices.end(), 0.0F);
  const std::vector<float> vectors(matrices.begin(),
                                   matrices.begin() + kStack * kRows);
  WriteFile(
      dir.path() / "model.safetensors",
      SafetensorsOf({{"m", "F32", {kStack, kRows, kColumns}, BytesOf(matrices)},
                     {"t", "F32", {kStack, kColumns, kRows}, BytesOf(matrices)},
                     {"v", "F32", {kStack, kRows}, BytesOf(vectors)}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();
  TensorRef odd = Ref("m", {kRows / 2, kColumns});
  odd.first_row = 1;
  odd.tensor_rows = kRows;
  odd.block_rows = 1;
  odd.block_stride = 2;
  for (TensorRef ref : {odd, Ref("m", {kRows, kColumns})}) {
    ref.stack = kStack;
    const int64_t rows = ref.shape[0];
    for (ref.in_stack = 0; ref.in_stack < kStack; ++ref.in_stack) {
      TensorRef by_columns = ref, vector = ref;
      by_columns.name = "t";
      by_columns.transposed = true;
      vector.name = "v";
      vector.shape = {rows};
      std::vector<float> out(rows * kColumns), columns = out, elements(rows);
      ASSERT_TRUE((*source)->ReadRows(ref, 0, rows, out.data()).ok());
      ASSERT_TRUE(
          (*source)->ReadRows(by_columns, 0, rows, columns.data()).ok());
      ASSERT_TRUE((*source)->ReadRows(vector, 0, 1, elements.data()).ok());
      const int64_t base = ref.in_stack * kRows * kColumns;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t stored = ref.StoredRow(row);
        EXPECT_EQ(elements[row], vectors[ref.in_stack * kRows + stored]);
        for (int64_t col = 0; col < kColumns; ++col) {
          const int64_t at = row * kColumns + col;
          EXPECT_EQ(out[at], matrices[base + stored * kColumns + col]);
          EXPECT_EQ(columns[at], matrices[base + col * kRows + stored]);
        }
      }
      // Rows may be read a few at a time.
      std::vector<float> last(kColumns);
      ASSERT_TRUE(
          (*source)->ReadRows(by_columns, rows - 1, rows, last.data()).ok());
      EXPECT_EQ(last,
                std::vector<float>(columns.end() - kColumns, columns.end()));
    }
  }
  TensorRef wrong = Ref("m", {kRows, kColumns});
  wrong.stack = 4;
  const absl::Status status = (*source)->Check(wrong);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("[3, 4, 3]"), HasSubstr("[4, 4, 3]")));
}

// A norm of StableLM's heads.
TEST(Safetensors, AVectorMayBeATensorForEachHead) {
  TempDir dir;
  WriteFile(
      dir.path() / "model.safetensors",
      SafetensorsOf({{"n.0.weight", "F32", {2}, BytesOf<float>({1, 2})},
                     {"n.1.weight", "F32", {2}, BytesOf<float>({3, 4})},
                     {"o.0.weight", "F32", {2}, BytesOf<float>({5, 6})}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();
  TensorRef ref = Ref("n", {4});
  ref.head_rows = 2;
  ref.tensor_each_head = true;
  EXPECT_TRUE((*source)->Check(ref).ok());
  std::vector<float> out(4);
  ASSERT_TRUE((*source)->ReadRows(ref, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
  ref.name = "o";
  const absl::Status missing = (*source)->Check(ref);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("no tensor o.1.weight"));
}

TEST(Safetensors, ParametersAreElementsThatAreNotPacked) {
  TempDir dir;
  std::vector<RawTensor> tensors = {
      {"f32", "F32", {3, 2}, BytesOf<float>({1, 2, 3, 4, 5, 6})},
      {"bf16", "BF16", {2}, BytesOf<uint16_t>({0x3F80, 0xC000})},
      {"ids", "I64", {1}, BytesOf<int64_t>({7})}};
  WriteFile(dir.path() / "model.safetensors", SafetensorsOf(tensors));
  EXPECT_EQ((*SafetensorsSource::Open(dir.path()))->Parameters(), 8);
  tensors.push_back({"packed", "I32", {1}, BytesOf<int32_t>({7})});
  WriteFile(dir.path() / "model.safetensors", SafetensorsOf(tensors));
  EXPECT_EQ((*SafetensorsSource::Open(dir.path()))->Parameters(), std::nullopt);
}

TEST(Safetensors, LargeTensorsAreReadInPieces) {
  TempDir dir;
  constexpr int64_t kRows = 700, kColumns = 1001;
  std::vector<uint16_t> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<uint16_t>(0x3F80 + i % 128);
  }
  WriteFile(dir.path() / "model.safetensors",
            SafetensorsOf({{"w", "BF16", {kRows, kColumns}, BytesOf(values)}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok());
  std::vector<float> out(kRows * kColumns);
  ASSERT_TRUE((*source)
                  ->ReadRows(Ref("w", {kRows, kColumns}), 0, kRows, out.data())
                  .ok());
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], BFloat16ToFloat(values[i])) << i;
  }
}

TEST(Safetensors, NamesMayLackTheModelPrefixAndTiedOnesMayBeTheHead) {
  TempDir dir;
  WriteFile(
      dir.path() / "model.safetensors",
      SafetensorsOf({{"decoder.x.weight", "F32", {1}, BytesOf<float>({1})},
                     {"lm_head.weight", "F32", {1, 1}, BytesOf<float>({2})}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE((*source)->Check(Ref("model.decoder.x.weight", {1})).ok());
  EXPECT_TRUE((*source)->Has("model.decoder.x.weight"));
  EXPECT_TRUE((*source)
                  ->Check(Ref("model.embed_tokens.weight", {1, 1},
                              TensorRole::kEmbedding))
                  .ok());
  EXPECT_FALSE((*source)->Check(Ref("model.embed_tokens.weight", {1, 1})).ok());
}

struct BadHeader {
  const char* header;
  size_t data_bytes;
  const char* says;
};

const BadHeader kBadHeaders[] = {
    {"", 0, "JSON"},
    {"[]", 0, "object"},
    {"3", 0, "object"},
    {"{", 0, "JSON"},
    {"{}{}", 0, "JSON"},
    {R"({"a": 1})", 0, "\"a\""},
    {R"({"a": []})", 0, "\"a\""},
    {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "data_offsets"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4],
               "extra": 1}})",
     4, "extra"},
    {R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [1],
               "data_offsets": [0, 4]}})",
     4, "dtype"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
         "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
     8, "twice"},
    {R"({"a": {"dtype": 32, "shape": [1], "data_offsets": [0, 4]}})", 4,
     "number"},
    {R"({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4,
     "number"},
    {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4,
     "negative"},
    {R"({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}})", 4,
     "fraction"},
    {R"({"a": {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]}})", 4,
     "list"},
    {R"({"a": {"dtype": "F32", "shape": [null], "data_offsets": [0, 4]}})", 4,
     "null"},
    {R"({"a": {"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],
               "data_offsets": [0, 4]}})",
     4, "dims"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4, "two"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}})", 4,
     "two"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4,
     "data_offsets"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}})", 4,
     "truncated"},
    {R"({"a": {"dtype": "F32", "shape": [1],
               "data_offsets": [18446744073709551612, 18446744073709551615]}})",
     4, "truncated"},
    {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
     "shape"},
    {R"({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 4]}})", 4,
     "shape"},
    {R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4294967296],
               "data_offsets": [0, 0]}})",
     0, "shape"},
    {R"({"a": {"dtype": "F32", "shape": [9223372036854775808],
               "data_offsets": [0, 0]}})",
     0, "dimension"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8,
     "hole"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
         "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
     8, "overlap"},
    {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 8,
     "end at 4"},
    {R"({"__metadata__": {"a": 1}})", 0, "number"},
    {R"({"__metadata__": {}, "__metadata__": {}})", 0, "twice"},
};

TEST(SafetensorsHeader, RefusesWhatTheFormatForbids) {
  for (const BadHeader& bad : kBadHeaders) {
    const auto header = ParseSafetensorsHeader(bad.header, bad.data_bytes);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument)
        << bad.header;
    EXPECT_THAT(std::string(header.status().message()), HasSubstr(bad.says))
        << bad.header;
  }
}

TEST(SafetensorsHeader, AcceptsPaddingMetadataAndUnknownDtypes) {
  const auto header = ParseSafetensorsHeader(
      R"({"__metadata__": {"format": "pt"},
          "q": {"dtype": "F4", "shape": [6], "data_offsets": [0, 3]},
          "e": {"dtype": "F32", "shape": [0], "data_offsets": [3, 3]}}    )",
      3);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->size(), 2u);
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
}

TEST(SafetensorsHeader, DeepNestingIsAnErrorNotAnOverflow) {
  std::string text = R"({"a": )";
  for (int i = 0; i < 1000000; ++i) text += "[";
  EXPECT_FALSE(ParseSafetensorsHeader(text, 0).ok());
  text = "";
  for (int i = 0; i < 1000000; ++i) text += "{\"a\":";
  EXPECT_FALSE(ParseSafetensorsHeader(text, 0).ok());
}

TEST(SafetensorsHeader, MutationsNeverCrash) {
  const std::string good =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],)"
      R"("data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],)"
      R"("data_offsets":[8,14]}})";
  uint64_t state = 7;
  const auto random = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  constexpr absl::string_view kBytes = "0123456789-.,:[]{}\"aFB \\";
  for (int i = 0; i < 30000; ++i) {
    std::string text = good;
    for (uint64_t n = 1 + random(3); n > 0; --n) {
      const size_t at = random(text.size());
      if (random(2) == 0) {
        text[at] = kBytes[random(kBytes.size())];
      } else {
        text.insert(at, 1, kBytes[random(kBytes.size())]);
      }
    }
    const auto header = ParseSafetensorsHeader(text, 14);
    if (!header.ok()) continue;
    for (const auto& [name, entry] : *header) ASSERT_LE(entry.end, 14u);
  }
}

// Opens a directory that holds just this as model.safetensors.
absl::Status OpenBytes(const std::string& bytes) {
  TempDir dir;
  WriteFile(dir.path() / "model.safetensors", bytes);
  return SafetensorsSource::Open(dir.path()).status();
}

TEST(Safetensors, BadFilesAreErrorsThatNameTheFile) {
  const std::string good =
      SafetensorsOf({{"a", "F32", {2}, BytesOf<float>({1, 2})}});
  ASSERT_TRUE(OpenBytes(good).ok());
  // The file is truncated anywhere.
  for (size_t size = 0; size < good.size(); ++size) {
    const absl::Status status = OpenBytes(good.substr(0, size));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
  }
  EXPECT_FALSE(OpenBytes(good + "x").ok());
  for (const uint64_t length :
       {uint64_t{1000}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::string bytes = good;
    memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_THAT(std::string(OpenBytes(bytes).message()),
                HasSubstr("header length"));
  }
}

TEST(Safetensors, NotAFile) {
  TempDir dir;
  std::filesystem::create_directory(dir.path() / "model.safetensors");
  EXPECT_EQ(SafetensorsSource::Open(dir.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  TempDir fifo;
  ASSERT_EQ(mkfifo((fifo.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsSource::Open(fifo.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  TempDir empty;
  EXPECT_EQ(SafetensorsSource::Open(empty.path()).status().code(),
            absl::StatusCode::kNotFound);
  WriteFile(empty.path() / "pytorch_model.bin", "x");
  EXPECT_THAT(
      std::string(SafetensorsSource::Open(empty.path()).status().message()),
      HasSubstr("safe_serialization"));
}

TEST(Safetensors, AFileThatShrinksLaterIsDataLoss) {
  TempDir dir;
  WriteFile(dir.path() / "model.safetensors",
            SafetensorsOf({{"a", "BF16", {4}, std::string(8, 'x')}}));
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(dir.path() / "model.safetensors", 80);
  float out[4];
  const absl::Status status = (*source)->ReadRows(Ref("a", {4}), 0, 1, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
}

// Two shards with a tensor each, and an index with this weight_map.
absl::Status OpenSharded(const std::string& index) {
  TempDir dir;
  WriteFile(dir.path() / "s1.safetensors",
            SafetensorsOf({{"a", "F32", {1}, BytesOf<float>({1})}}));
  WriteFile(dir.path() / "s2.safetensors",
            SafetensorsOf({{"b", "F32", {1}, BytesOf<float>({2})}}));
  WriteFile(dir.path() / "s3.safetensors",
            SafetensorsOf({{"b", "F32", {1}, BytesOf<float>({3})}}));
  WriteFile(dir.path() / "model.safetensors.index.json", index);
  auto source = SafetensorsSource::Open(dir.path());
  if (!source.ok()) return source.status();
  float out = 0;
  const absl::Status status = (*source)->ReadRows(Ref("b", {1}), 0, 1, &out);
  EXPECT_EQ(out, 2);
  return status;
}

TEST(Safetensors, Shards) {
  EXPECT_TRUE(OpenSharded(R"({"metadata": {"total_size": 8}, "weight_map":
      {"a": "s1.safetensors", "b": "s2.safetensors"}})")
                  .ok());
  const std::pair<const char*, const char*> kBad[] = {
      {"", "JSON"},
      {"[]", "object"},
      {"{}", "weight_map"},
      {R"({"weight_map": {}})", "weight_map"},
      {R"({"weight_map": []})", "weight_map"},
      {R"({"weight_map": {"a": 1}})", "weight_map.a"},
      {R"({"weight_map": {"a": ""}})", "weight_map.a"},
      {R"({"weight_map": {"a": ".."}})", "weight_map.a"},
      {R"({"weight_map": {"a": "../s1.safetensors"}})", "weight_map.a"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "weight_map.a"},
      {R"({"weight_map": {"a": "x\u0000.safetensors"}})", "weight_map.a"},
      {R"({"weight_map": {"a": "s1.safetensors", "b": "s9.safetensors"}})",
       "s9.safetensors is missing: it is shard 2 of 2 that "
       "model.safetensors.index.json names; the download was cut"},
  };
  for (const auto& [index, says] : kBad) {
    const absl::Status status = OpenSharded(index);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << index;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says)) << index;
  }
}

// A directory of s1.safetensors to s3.safetensors: "a" is 1 in the first, "b" 2
// in the second and 3 in the third, "model.c" 4 in the first, "c" 5 in the
// third.
class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() {
    Write("s1", {{"a", 1}, {"model.c", 4}});
    Write("s2", {{"b", 2}});
    Write("s3", {{"b", 3}, {"c", 5}});
  }
  void Write(const std::string& name,
             const std::vector<std::pair<std::string, float>>& tensors) {
    std::vector<RawTensor> raw;
    for (const auto& [tensor, value] : tensors) {
      raw.push_back({tensor, "F32", {1}, BytesOf<float>({value})});
    }
    WriteFile(dir_.path() / (name + ".safetensors"), SafetensorsOf(raw));
  }
  std::unique_ptr<SafetensorsSource> Open(const std::string& map) {
    WriteFile(dir_.path() / "model.safetensors.index.json",
              "{\"weight_map\": {" + map + "}}");
    auto source = SafetensorsSource::Open(dir_.path());
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }
  static float Read(const SafetensorsSource& source, const std::string& name) {
    float out = 0;
    const absl::Status status = source.ReadRows(Ref(name, {1}), 0, 1, &out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  static std::string Id(const SafetensorsSource& source) {
    return *source.ContentId("", [](uint64_t) { return absl::OkStatus(); });
  }

  TempDir dir_;
};

constexpr char kAll[] =
    R"("a": "s1.safetensors", "model.c": "s1.safetensors", )";

TEST_F(ShardsTest, OfTwoCopiesTheOneThatTheIndexNamesCounts) {
  const std::string third = R"(, "z": "s3.safetensors")";
  const auto second = Open(kAll + (R"("b": "s2.safetensors")" + third));
  EXPECT_EQ(Read(*second, "b"), 2);
  EXPECT_EQ(second->Copies(), R"({"s3.safetensors":["b","c"]})");
  const auto other =
      Open(kAll + (R"("b": "s3.safetensors", "z": "s2.safetensors")" + third));
  EXPECT_EQ(Read(*other, "b"), 3);
  // The files are the same, the weights are not.
  EXPECT_NE(second->Fingerprint(""), other->Fingerprint(""));
  EXPECT_NE(Id(*second), Id(*other));
  // The index names none, or a file without it: the last one counts, as in
  // transformers.
  for (const char* map : {R"("y": "s2.safetensors")", R"("b": "s1.safetensors",
      "y": "s2.safetensors")"}) {
    EXPECT_EQ(Read(*Open(kAll + (map + third)), "b"), 3) << map;
  }
}

TEST_F(ShardsTest, TheOtherSpellingIsTheSameTensor) {
  const auto source = Open(kAll + std::string(R"("b": "s3.safetensors")"));
  EXPECT_EQ(Read(*source, "model.c"), 4);
  const auto bare = Open(R"("a": "s1.safetensors", "b": "s3.safetensors", )"
                         R"("c": "s3.safetensors")");
  EXPECT_EQ(Read(*bare, "model.c"), 5);
}

TEST_F(ShardsTest, WhatTheIndexDoesNotNameIsReadFromItsShards) {
  const auto source =
      Open(R"("gone": "s1.safetensors", "a": "s2.safetensors")");
  EXPECT_EQ(Read(*source, "a"), 1);
  EXPECT_EQ(Read(*source, "b"), 2);
  EXPECT_EQ(source->Copies(), "");
  EXPECT_THAT(
      std::string(source->Check(Ref("gone", {1})).message()),
      HasSubstr("no tensor gone, though it is named there in s1.safetensors"));
}

TEST_F(ShardsTest, WhoHasNoIndexIsToldWhichCopiesDoNotCount) {
  const auto source = Open(kAll + std::string(R"("b": "s2.safetensors",
      "z": "s3.safetensors")"));
  std::map<std::string, std::shared_ptr<PieceReader>> files;
  for (const auto& file : source->Files()) {
    std::string bytes(file.bytes, '\0');
    ASSERT_EQ(pread(file.fd, bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    files[file.name] = std::make_shared<WholeFile>(
        file.path, dup(file.fd),
        std::make_shared<const PieceList>(
            file.bytes, std::vector<PieceHash>{HashPiece(bytes)}));
  }
  const auto open = [&](const std::string& copies) {
    return SafetensorsSource::OpenPieces(dir_.path(), files, copies);
  };
  const auto pieces = open(source->Copies());
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  EXPECT_EQ(Read(**pieces, "b"), 2);
  EXPECT_EQ(Read(**pieces, "model.c"), 4);
  EXPECT_EQ((*pieces)->Fingerprint(""), source->Fingerprint(""));
  for (const char* copies :
       {"", "x", "[]", R"({"s3.safetensors":{}})", R"({"s3.safetensors":[]})",
        R"({"s3.safetensors":[1]})", R"({"s1.safetensors":["a"]})"}) {
    EXPECT_EQ(open(copies).status().code(), absl::StatusCode::kInvalidArgument)
        << copies;
  }
}

TEST(Safetensors, AMissingBiasIsZero) {
  TempDir dir;
  WriteFile(dir.path() / "model.safetensors",
            SafetensorsOf({{"there", "F32", {2}, BytesOf<float>({1, 2})}}));
  const auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();
  for (const TensorRole role :
       {TensorRole::kNorm1Bias, TensorRole::kQBias, TensorRole::kKBias,
        TensorRole::kVBias, TensorRole::kOutBias, TensorRole::kNorm2Bias,
        TensorRole::kGateBias, TensorRole::kUpBias, TensorRole::kDownBias,
        TensorRole::kFinalNormBias}) {
    const TensorRef gone = Ref("gone", {3}, role);
    EXPECT_TRUE((*source)->Check(gone).ok());
    EXPECT_TRUE((*source)->Locate(gone)->empty());
    float out[] = {9, 9, 9, 9};
    ASSERT_TRUE((*source)->ReadRows(gone, 0, 0, out).ok());
    EXPECT_THAT(out, ElementsAre(9, 9, 9, 9));
    ASSERT_TRUE((*source)->ReadRows(gone, 0, 1, out).ok());
    EXPECT_THAT(out, ElementsAre(0, 0, 0, 9));
    EXPECT_EQ((*source)->Check(Ref("there", {3}, role)).code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (const TensorRole role :
       {TensorRole::kNorm1Weight, TensorRole::kQWeight, TensorRole::kHead,
        TensorRole::kFinalNormWeight, TensorRole::kPositionEmbedding}) {
    EXPECT_EQ((*source)->Check(Ref("gone", {3}, role)).code(),
              absl::StatusCode::kNotFound);
  }
}

// A directory of one layer whose tensors, but for these, are there, with
// `more`.
std::vector<std::string> RemarksOn(const std::string& config,
                                   const std::set<TensorRole>& but,
                                   const std::vector<std::string>& more) {
  TempDir dir;
  WriteFile(dir.path() / "config.json",
            R"({"hidden_size":8,"intermediate_size":8,"ffn_dim":8,)"
            R"("num_hidden_layers":2,"num_attention_heads":1,)"
            R"("num_key_value_heads":1,"vocab_size":8,)"
            R"("max_position_embeddings":16,"word_embed_proj_dim":8,)" +
                config + "}");
  const auto model = ModelDir::Open(dir.path());
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<RawTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    size_t bytes = 4;
    for (const int64_t dim : shape) bytes *= static_cast<size_t>(dim);
    tensors.push_back({name, "F32", std::move(shape), std::string(bytes, 0)});
  };
  for (int layer = 0; layer < 2; ++layer) {
    for (const TensorRef& ref : LayerTensors((*model)->spec(), layer)) {
      if (!but.contains(ref.role)) add(ref.name, ref.shape);
    }
  }
  for (const TensorRef& ref : HeadTensors((*model)->spec())) {
    if (!but.contains(ref.role)) add(ref.name, ref.shape);
  }
  for (const std::string& name : more) add(name, {8});
  WriteFile(dir.path() / "model.safetensors", SafetensorsOf(tensors));
  return (*model)->Remarks();
}

TEST(Safetensors, MissingAndUnusedBiasesAreRemarkedUpon) {
  const std::string q0 = "model.layers.0.self_attn.q_proj.bias";
  const std::string q1 = "model.layers.1.self_attn.q_proj.bias";
  const std::string llama = R"("model_type":"llama")";
  EXPECT_THAT(RemarksOn(llama, {}, {}), ::testing::IsEmpty());
  EXPECT_THAT(
      RemarksOn(llama + R"(,"attention_bias":true)", {TensorRole::kOutBias},
                {}),
      ElementsAre("model.layers.0.self_attn.o_proj.bias and 1 other bias are "
                  "not in the model's files and taken as 0"));
  EXPECT_THAT(RemarksOn(llama, {}, {q0}),
              ElementsAre(q0 + " is in the model's files and not used, as "
                               "config.json's model has none"));
  EXPECT_THAT(RemarksOn(R"("model_type":"mistral","attention_bias":true)", {},
                        {q0, q1}),
              ElementsAre(HasSubstr("1 other bias are in the model's files")));
  EXPECT_THAT(RemarksOn(R"("model_type":"qwen2")", {TensorRole::kQBias}, {}),
              ElementsAre(HasSubstr("taken as 0")));
  EXPECT_THAT(RemarksOn(R"("model_type":"opt","tie_word_embeddings":false)",
                        {TensorRole::kFinalNormBias}, {}),
              ElementsAre("model.decoder.final_layer_norm.bias is not in the "
                          "model's files and taken as 0"));
}

TEST(Safetensors, ContentIdTellsOfItsReadsAndEndsWhenToldTo) {
  TempDir dir;
  const std::string file =
      SafetensorsOf({{"t", "F32", {2}, BytesOf(std::vector<float>{1, 2})}});
  WriteFile(dir.path() / "model.safetensors", file);
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status();
  uint64_t read = 0;
  const auto id = (*source)->ContentId("", [&](uint64_t bytes) {
    read += bytes;
    return absl::OkStatus();
  });
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(read, file.size());
  // What is known is not read again.
  const auto same = (*source)->ContentId(
      "", [](uint64_t) { return absl::InternalError("it was read"); });
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(*same, *id);
  auto other = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(other.ok()) << other.status();
  const auto cut = (*other)->ContentId(
      "", [](uint64_t) { return absl::CancelledError("enough"); });
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kCancelled);
}

TEST(Safetensors, Fingerprints) {
  TempDir a, b, c;
  const std::string file =
      SafetensorsOf({{"x", "F32", {1}, BytesOf<float>({1})}});
  WriteFile(a.path() / "model.safetensors", file);
  WriteFile(b.path() / "model.safetensors", file);
  WriteFile(c.path() / "model.safetensors",
            SafetensorsOf({{"x", "F32", {2}, BytesOf<float>({1, 2})}}));
  const auto print = [](const TempDir& dir, const char* config) {
    return (*SafetensorsSource::Open(dir.path()))->Fingerprint(config);
  };
  EXPECT_EQ(print(a, "c"), print(b, "c"));
  EXPECT_EQ(print(a, "c").size(), 64u);
  EXPECT_NE(print(a, "c"), print(a, "d"));
  EXPECT_NE(print(a, "c"), print(c, "c"));
}

}  // namespace
}  // namespace sluice
