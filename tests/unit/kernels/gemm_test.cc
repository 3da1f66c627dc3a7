#include "runtime/kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/blocks.h"
#include "runtime/kernels/cpu/gemm_shape.h"
#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/quant/convert_floats.h"
#include "runtime/quant/group_codec.h"
#include "runtime/quant/strip_codec.h"
#include "tests/unit/quant/dequantize_code.h"

namespace sluice {
namespace {

struct Shape {
  int32_t n, k;
};

// A matrix with its input rows, in a dtype.
class Fixture {
 public:
  // high_panel: from here on, panels lie in a second piece of memory.
  Fixture(DType dtype, Shape shape, int threads, int max_rows,
          WeightFormat format = WeightFormat::kFull, int high_panel = 0,
          bool known_order = true)
      : shape_(shape),
        pool_(threads),
        budget_(Tier::kHost, uint64_t{1} << 30),
        w_(static_cast<size_t>(shape.n) * shape.k),
        a_(static_cast<size_t>(max_rows) * shape.k) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : w_) x = uniform(random);
    for (float& x : a_) x = uniform(random);
    auto engine = GemmEngine::Create(dtype, &pool_);
    status_ = engine.status();
    if (!status_.ok()) return;
    engine_ = *std::move(engine);
    if (!known_order) engine_->IgnorePackedOrder();
    auto matrix = engine_->Layout(shape.n, shape.k, format, kOffset);
    status_ = matrix.status();
    if (!status_.ok()) return;
    matrix_ = *matrix;
    // The matrix has two pieces of memory, each as long as it needs to be.
    view_.split = high_panel >= matrix_.num_panels()
                      ? kOffset + matrix_.bytes
                      : matrix_.panel_offset(high_panel);
    view_.high_offset = view_.split;
    for (auto [buffer, bytes] :
         {std::pair{&low_, view_.split},
          {&high_, kOffset + matrix_.bytes - view_.split}}) {
      auto piece = HostBuffer::Create("test", bytes, &budget_);
      status_.Update(piece.status());
      if (!status_.ok()) return;
      *buffer = *std::move(piece);
    }
    view_.low = low_.as<std::byte>();
    view_.high = high_.as<std::byte>();
    for (int p = 0; p < matrix_.num_panels(); ++p) {
      status_.Update(engine_->Pack(
          matrix_, p, w_.data() + matrix_.panel_begin(p) * shape.k, p % threads,
          const_cast<std::byte*>(view_.At(matrix_.panel_offset(p)))));
    }
    if (format != WeightFormat::kFull) QuantizeReference(format);
    if (dtype == DType::kBFloat16) {
      bits_.resize(a_.size());
      FloatToBf16(a_.data(), a_.size(), bits_.data());
      // a_ and w_ become what the product sees.
      ToFloats(bits_.data(), a_.size(), dtype, a_.data());
      std::vector<uint16_t> w(w_.size());
      FloatToBf16(w_.data(), w_.size(), w.data());
      ToFloats(w.data(), w_.size(), dtype, w_.data());
    }
  }

  static constexpr size_t kOffset = 192;
  // Rows [first, first + rows), copied to the front of padded memory.
  std::vector<float> Multiply(int32_t first, int32_t rows) {
    return Multiply(first, rows, matrix_, view_);
  }
  std::vector<float> Multiply(int32_t first, int32_t rows,
                              const MatrixLayout& matrix,
                              const PackedView& view) {
    const size_t element = bits_.empty() ? 4 : 2;
    const auto* from = bits_.empty()
                           ? reinterpret_cast<const std::byte*>(a_.data())
                           : reinterpret_cast<const std::byte*>(bits_.data());
    std::vector<std::byte> input(ReadableRows(rows) * shape_.k * element);
    std::memcpy(input.data(), from + first * shape_.k * element,
                rows * shape_.k * element);
    std::vector<float> out(static_cast<size_t>(rows) * shape_.n, NAN);
    const absl::Status status = engine_->Multiply(
        matrix, view, input.data(), rows,
        [&](int32_t row, int32_t count, int32_t col, int32_t cols,
            float* tile) {
          for (int32_t i = 0; i < count; ++i) {
            std::memcpy(out.data() + (row + i) * shape_.n + col,
                        tile + i * cols, cols * sizeof(float));
          }
        });
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  const absl::Status& status() const { return status_; }
  const std::vector<float>& a() const { return a_; }
  const std::vector<float>& w() const { return w_; }
  GemmEngine& engine() { return *engine_; }
  const MatrixLayout& matrix() const { return matrix_; }
  const PackedView& view() const { return view_; }

 private:
  // w_ becomes what the format can hold of it.
  void QuantizeReference(WeightFormat format) {
    for (int p = 0; p < matrix_.num_panels(); ++p) {
      const int32_t begin = matrix_.panel_begin(p), end = matrix_.panel_end(p);
      const size_t k = shape_.k;
      const float unit =
          *ChooseQuantUnit(w_.data() + begin * k, (end - begin) * k);
      for (int32_t first = begin; first < end; first += kQuantGroup) {
        const int32_t size = std::min(kQuantGroup, end - first);
        std::vector<uint8_t> codes(size * k);
        std::vector<GroupParams> params(k);
        float* group = w_.data() + first * k;
        QuantizeGroups(group, k, size, shape_.k,
                       format == WeightFormat::kInt4 ? 4 : 8, unit,
                       codes.data(), params.data());
        for (size_t i = 0; i < codes.size(); ++i) {
          group[i] = DequantizeCode(params[i % k], unit, codes[i]);
        }
      }
    }
  }

  Shape shape_;
  ComputePool pool_;
  MemoryBudget budget_;
  std::vector<float> w_, a_;
  std::vector<uint16_t> bits_;
  std::unique_ptr<GemmEngine> engine_;
  MatrixLayout matrix_;
  HostBuffer low_, high_;
  PackedView view_;
  absl::Status status_;
};

using Param = std::tuple<DType, WeightFormat>;
class GemmTest : public testing::TestWithParam<Param> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  WeightFormat format() const { return std::get<1>(GetParam()); }
};

class QuantizedGemmTest : public GemmTest {};

constexpr Shape kShapes[] = {{1, 1},    {3, 5},      {37, 45},
                             {128, 64}, {129, 20},   {300, 100},
                             {768, 96}, {200, 1030}, {128, 2048}};

#define SKIP_IF_UNIMPLEMENTED(status)                  \
  if (absl::IsUnimplemented(status)) {                 \
    GTEST_SKIP() << "not on this machine: " << status; \
  }                                                    \
  ASSERT_TRUE(status.ok()) << status

TEST_P(GemmTest, ComputesTheProduct) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 139;
    Fixture f(dtype(), shape, 2, kRows, format());
    SKIP_IF_UNIMPLEMENTED(f.status());
    const std::vector<float> out = f.Multiply(0, kRows);
    for (int row = 0; row < kRows; ++row) {
      for (int col = 0; col < shape.n; ++col) {
        double sum = 0;
        for (int i = 0; i < shape.k; ++i) {
          sum += static_cast<double>(f.a()[row * shape.k + i]) *
                 f.w()[col * shape.k + i];
        }
        ASSERT_NEAR(out[row * shape.n + col], sum,
                    2e-6 * (1 + std::sqrt(shape.k)) * 2)
            << row << ", " << col;
      }
    }
  }
}

TEST_P(GemmTest, RowsDoNotDependOnTheirNumberOrPlace) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 300;
    Fixture f(dtype(), shape, 2, kRows, format());
    SKIP_IF_UNIMPLEMENTED(f.status());
    const std::vector<float> all = f.Multiply(0, kRows);
    for (int rows :
         {1,  2,  3,  4,  5,  6,  7,   8,   9,   13,  16,  17,  23, 31,
          32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 160, 255, 257}) {
      for (int first : {0, 1, 5, 43}) {
        const std::vector<float> some = f.Multiply(first, rows);
        ASSERT_EQ(std::memcmp(some.data(), all.data() + first * shape.n,
                              some.size() * sizeof(float)),
                  0)
            << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(GemmTest, ResultsDoNotDependOnThreads) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 300;
    Fixture one(dtype(), shape, 1, kRows, format());
    SKIP_IF_UNIMPLEMENTED(one.status());
    Fixture many(dtype(), shape, 7, kRows, format());
    for (const int32_t rows : {1, 77, 255, 300}) {
      EXPECT_EQ(one.Multiply(0, rows), many.Multiply(0, rows)) << rows;
    }
  }
}

TEST_P(GemmTest, PanelsMayLieInTwoPieces) {
  for (const Shape shape : {Shape{300, 100}, Shape{384, 33}}) {
    constexpr int kRows = 19;
    Fixture one(dtype(), shape, 2, kRows, format());
    SKIP_IF_UNIMPLEMENTED(one.status());
    const std::vector<float> expected = one.Multiply(0, kRows);
    for (int high_panel : {1, 2, 3}) {
      Fixture two(dtype(), shape, 2, kRows, format(), high_panel);
      SKIP_IF_UNIMPLEMENTED(two.status());
      EXPECT_EQ(two.Multiply(0, kRows), expected) << high_panel;
    }
  }
}

TEST_P(QuantizedGemmTest, DequantizedMatricesGiveTheSameBits) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 70;
    Fixture f(dtype(), shape, 2, kRows, format(), /*high_panel=*/1);
    SKIP_IF_UNIMPLEMENTED(f.status());
    const std::vector<float> expected = f.Multiply(0, kRows);

    auto full = f.engine().Layout(shape.n, shape.k, WeightFormat::kFull, 128);
    ASSERT_TRUE(full.ok()) << full.status();
    MemoryBudget budget(Tier::kHost, uint64_t{1} << 30);
    auto packed = HostBuffer::Create("full", 128 + full->bytes, &budget);
    ASSERT_TRUE(packed.ok());
    const int panels = full->num_panels();
    // The panels are dequantized in two calls.
    for (const auto& [first, count] :
         {std::pair{0, panels / 2}, {panels / 2, panels - panels / 2}}) {
      const absl::Status status = f.engine().Dequantize(
          f.matrix(), f.view(), *full, packed->as<std::byte>(), first, count);
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(f.Multiply(0, kRows, *full, PackedView::Whole(packed->data())),
              expected);
    EXPECT_FALSE(f.engine()
                     .Dequantize(*full, PackedView::Whole(packed->data()),
                                 *full, packed->as<std::byte>(), 0, panels)
                     .ok());
    EXPECT_FALSE(f.engine()
                     .Dequantize(f.matrix(), f.view(), f.matrix(),
                                 packed->as<std::byte>(), 0, panels)
                     .ok());
  }
}

// Slices of panels need the packed order: without it, oneDNN multiplies all.
TEST_P(GemmTest, UnknownPackedOrdersGiveTheSameBits) {
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.n << " x " << shape.k);
    constexpr int kRows = 139;
    Fixture known(dtype(), shape, 2, kRows, format());
    SKIP_IF_UNIMPLEMENTED(known.status());
    Fixture unknown(dtype(), shape, 2, kRows, format(), 0,
                    /*known_order=*/false);
    SKIP_IF_UNIMPLEMENTED(unknown.status());
    EXPECT_EQ(known.matrix().packing == unknown.matrix().packing,
              format() == WeightFormat::kFull);
    for (const int32_t rows : {9, kRows}) {
      EXPECT_EQ(unknown.Multiply(0, rows), known.Multiply(0, rows)) << rows;
    }
  }
}

TEST_P(GemmTest, LayoutsAreAlignedAndAddUp) {
  Fixture f(dtype(), {300, 100}, 1, 1, format());
  SKIP_IF_UNIMPLEMENTED(f.status());
  const MatrixLayout& w = f.matrix();
  ASSERT_EQ(w.num_panels(), 3);
  size_t next = w.offset;
  int32_t column = 0;
  for (int p = 0; p < 3; ++p) {
    EXPECT_EQ(w.panel_offset(p), next);
    EXPECT_EQ(w.panel_offset(p) % 64, 0u);
    EXPECT_EQ(w.panel_begin(p), column);
    next += w.panel_bytes(p);
    column = w.panel_end(p);
  }
  EXPECT_EQ(column, 300);
  EXPECT_EQ(next, w.offset + w.bytes);
  for (const auto& [n, k, offset] :
       {std::tuple{0, 4, 0}, {4, 0, 0}, {-1, 4, 0}, {4, 4, 32}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        f.engine().Layout(n, k, format(), offset).status()));
  }
}

TEST_P(GemmTest, QuantizedFormatsRefuseWhatIsNoWeight) {
  Fixture f(dtype(), {5, 7}, 1, 1, format());
  SKIP_IF_UNIMPLEMENTED(f.status());
  std::vector<float> rows(35, 1.0f);
  rows[11] = NAN;
  MemoryBudget budget(Tier::kHost, uint64_t{1} << 20);
  auto out = HostBuffer::Create("panel", f.matrix().panel_bytes(0), &budget);
  ASSERT_TRUE(out.ok());
  const absl::Status status =
      f.engine().Pack(f.matrix(), 0, rows.data(), 0, out->as<std::byte>());
  EXPECT_EQ(status.ok(), format() == WeightFormat::kFull) << status;
}

TEST_P(GemmTest, RefusesLayoutsOfOtherEngines) {
  Fixture f(dtype(), {40, 7}, 1, 1, format());
  SKIP_IF_UNIMPLEMENTED(f.status());
  Fixture other(dtype(), {41, 8}, 1, 1, format());
  SKIP_IF_UNIMPLEMENTED(other.status());
  // This matrix has a size that f knows, in a format that f does not know.
  Fixture quantized(dtype(), {40, 7}, 1, 1, WeightFormat::kInt4);
  SKIP_IF_UNIMPLEMENTED(quantized.status());
  std::vector<std::byte> a(8 * 4 * GemmEngine::kTileRows);
  for (const Fixture* from : {&other, &quantized}) {
    if (from == &quantized && format() != WeightFormat::kFull) continue;
    const absl::Status status =
        f.engine().Multiply(from->matrix(), from->view(), a.data(), 1,
                            [](int32_t, int32_t, int32_t, int32_t, float*) {});
    EXPECT_TRUE(absl::IsInternal(status)) << status;
  }
  // A matrix without columns, as a rank may have it, gives nothing.
  EXPECT_TRUE(f.engine()
                  .Multiply(MatrixLayout(), f.view(), a.data(), 1,
                            [](int32_t, int32_t, int32_t, int32_t, float*) {
                              FAIL() << "nothing is computed";
                            })
                  .ok());
}

// Ranks divide matrices by columns: where a column lies in its panel, and how
// wide that is, must not be seen. All columns here are the same.
TEST(GemmColumnsTest, AColumnIsTheSameWhateverIsBesideIt) {
  constexpr int32_t kInputs = 200, kRows = 37;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ComputePool pool(1);
    auto engine = GemmEngine::Create(dtype, &pool);
    if (absl::IsUnimplemented(engine.status())) continue;
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::vector<float> column(kInputs), input(ReadableRows(kRows) * kInputs);
    for (int32_t i = 0; i < kInputs; ++i) {
      column[i] = std::sin(1.0f + static_cast<float>(i));
    }
    for (int32_t i = 0; i < kRows * kInputs; ++i) {
      input[i] = std::cos(3.0f * static_cast<float>(i % kInputs));
    }
    const void* a = input.data();
    std::vector<uint16_t> bits(input.size());
    if (dtype == DType::kBFloat16) {
      FloatToBf16(input.data(), input.size(), bits.data());
      a = bits.data();
    }
    std::optional<float> expected;
    for (const int32_t n : {128, 300, 96, 72, 40, 24, 20, 17, 16, 8, 5, 1}) {
      auto w = (*engine)->Layout(n, kInputs, WeightFormat::kFull, 0);
      ASSERT_TRUE(w.ok()) << w.status();
      std::vector<float> rows;
      for (int32_t i = 0; i < GemmEngine::kPanelWidth; ++i) {
        rows.insert(rows.end(), column.begin(), column.end());
      }
      std::vector<std::byte> memory(w->bytes + kPanelAlignment);
      std::byte* const packed =
          memory.data() +
          (kPanelAlignment -
           reinterpret_cast<uintptr_t>(memory.data()) % kPanelAlignment) %
              kPanelAlignment;
      for (int panel = 0; panel < w->num_panels(); ++panel) {
        ASSERT_TRUE((*engine)
                        ->Pack(*w, panel, rows.data(), 0,
                               packed + w->panel_offset(panel))
                        .ok());
      }
      int others = 0;
      ASSERT_TRUE((*engine)
                      ->Multiply(*w, PackedView::Whole(packed), a, kRows,
                                 [&](int32_t, int32_t count, int32_t,
                                     int32_t cols, float* tile) {
                                   if (!expected) expected = tile[0];
                                   for (int32_t i = 0; i < count * cols; ++i) {
                                     others += tile[i] != *expected ? 1 : 0;
                                   }
                                 })
                      .ok());
      EXPECT_EQ(others, 0) << n << " columns";
    }
  }
}

// Multiplies random rows by a matrix in codes, and by the numbers that they
// stand for.
void ExpectCodesMultiplyAsNumbers(DType dtype, const CodeFormat& format,
                                  Shape shape) {
  ComputePool pool(2);
  auto made = GemmEngine::Create(dtype, &pool);
  if (absl::IsUnimplemented(made.status())) return;
  ASSERT_TRUE(made.ok()) << made.status();
  GemmEngine& engine = **made;
  const auto [n, k] = shape;
  auto full = engine.Layout(n, k, WeightFormat::kFull, 0);
  ASSERT_TRUE(full.ok()) << full.status();
  MatrixLayout coded = engine.rules().LayoutCoded(k, {{{n, &format}}}, 0);
  ASSERT_TRUE(engine.Prepare(&coded).ok());
  MemoryBudget budget(Tier::kHost, uint64_t{1} << 30);
  auto numbers = HostBuffer::Create("numbers", full->bytes, &budget);
  auto codes = HostBuffer::Create("codes", coded.bytes, &budget);
  ASSERT_TRUE(numbers.ok() && codes.ok());
  std::mt19937 random(3);
  std::vector<float> w(RoundUpTo(n, kPanelColumns) * k);
  for (int32_t row = 0; row < n; row += kStripColumns) {
    // Without the bits that make scales of float16 infinite.
    std::vector<std::byte> raw(kStripColumns * format.row_bytes(k));
    for (std::byte& byte : raw) byte = std::byte(random() & 0xbb);
    std::byte* const strip = codes->as<std::byte>() + coded.CodedBytes(row);
    ASSERT_TRUE(EncodeStrip(format, raw.data(),
                            std::min(kStripColumns, n - row), k, strip)
                    .ok());
    std::vector<float> slice(static_cast<size_t>(k) * kStripColumns);
    DecodeSlice(format, strip, 0, k, DType::kFloat32, slice.data());
    for (int32_t i = 0; i < k * kStripColumns; ++i) {
      w[static_cast<size_t>(row + i % kStripColumns) * k + i / kStripColumns] =
          slice[i];
    }
  }
  for (int p = 0; p < full->num_panels(); ++p) {
    ASSERT_TRUE(engine
                    .Pack(*full, p, w.data() + full->panel_begin(p) * k, 0,
                          numbers->as<std::byte>() + full->panel_offset(p))
                    .ok());
  }
  for (const int32_t rows : {1, 3, 5, 130, 300}) {
    SCOPED_TRACE(testing::Message() << format.name << ", " << n << " x " << k
                                    << ", " << rows << " rows");
    std::normal_distribution<float> normal;
    std::vector<float> a(static_cast<size_t>(rows) * k);
    for (float& x : a) x = normal(random);
    std::vector<std::byte> typed(ReadableRows(rows) * k *
                                 engine.element_bytes());
    ConvertFloats(a.data(), a.size(), dtype, typed.data());
    std::vector<float> out[2];
    for (const bool keeps : {false, true}) {
      std::vector<float>& to = out[keeps];
      to.resize(static_cast<size_t>(rows) * n);
      const absl::Status status = engine.Multiply(
          keeps ? coded : *full,
          PackedView::Whole((keeps ? codes : numbers)->as<std::byte>()),
          typed.data(), rows,
          [&](int32_t row, int32_t count, int32_t col, int32_t cols,
              float* tile) {
            for (int32_t i = 0; i < count; ++i) {
              std::memcpy(to.data() + static_cast<size_t>(row + i) * n + col,
                          tile + i * cols, cols * sizeof(float));
            }
          });
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(),
                          out[0].size() * sizeof(float)),
              0);
  }
}

TEST(CodedGemmTest, CodesMultiplyAsTheirNumbers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const CodeFormat& format : CodeFormats()) {
      ExpectCodesMultiplyAsNumbers(dtype, format, {72, 1280});
    }
    // Sums of several chunks, the last one short; and a last panel.
    const CodeFormat* const small = FindCodeFormat("Q8_0");
    ASSERT_NE(small, nullptr);
    ExpectCodesMultiplyAsNumbers(dtype, *small, {203, 2592});
  }
}

TEST_P(GemmTest, KeysTellDTypesApart) {
  ComputePool pool(1);
  auto a = GemmEngine::Create(DType::kFloat32, &pool);
  ASSERT_TRUE(a.ok());
  auto b = GemmEngine::Create(dtype(), &pool);
  SKIP_IF_UNIMPLEMENTED(b.status());
  EXPECT_EQ((*a)->LayoutKey() == (*b)->LayoutKey(), dtype() == DType::kFloat32);
}

TEST_P(GemmTest, OffersTilesOfManySizes) {
  const OneOpenMpThread guard;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto shape = GemmShape::Create(64, 64, dtype(), engine, 1);
  SKIP_IF_UNIMPLEMENTED(shape.status());
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ((*shape)->tiles().front().rows, GemmEngine::kTileRows);
  EXPECT_GE((*shape)->tiles().size(), 3u);
}

std::string Name(const testing::TestParamInfo<Param>& i) {
  return absl::StrCat(DTypeName(std::get<0>(i.param)), "_",
                      WeightFormatName(std::get<1>(i.param)));
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr WeightFormat kFormats[] = {WeightFormat::kInt8, WeightFormat::kInt4,
                                     WeightFormat::kFull};

INSTANTIATE_TEST_SUITE_P(Formats, GemmTest,
                         testing::Combine(testing::ValuesIn(kDTypes),
                                          testing::ValuesIn(kFormats)),
                         Name);
INSTANTIATE_TEST_SUITE_P(Formats, QuantizedGemmTest,
                         testing::Combine(testing::ValuesIn(kDTypes),
                                          testing::ValuesIn(kFormats,
                                                            kFormats + 2)),
                         Name);

}  // namespace
}  // namespace sluice
