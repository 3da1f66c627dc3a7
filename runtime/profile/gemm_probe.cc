#include "runtime/profile/gemm_probe.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "runtime/profile/measure.h"

namespace sluice {
namespace {

// Bytes of weights that exceed all caches.
constexpr size_t kBeyondCache = size_t{96} << 20;
constexpr int32_t kMaxHidden = 2048;
constexpr int32_t kMinHidden = 128;
// Denser points where the rate rises; GemmEngine's largest tile is of 128 rows.
constexpr int32_t kRows[] = {1,  2,  4,   8,   16,  32,  48,
                             64, 96, 128, 192, 256, 512, GemmProbe::kMaxRows};
// With so many rows weights don't matter, and a part of the layer suffices.
constexpr int32_t kManyRows = 512;
constexpr int32_t kFewRows = 16;
constexpr int kMinRounds = 3;

struct Size {
  int32_t n, k;
  bool halved;  // the result is stored in half as many elements of the dtype

  size_t RowFloats(size_t element) const {
    const auto columns = static_cast<size_t>(n);
    return halved ? columns / 2 * element / sizeof(float) : columns;
  }
  size_t InputBytes(size_t element) const {
    return static_cast<size_t>(ReadableRows(GemmProbe::kMaxRows)) *
           static_cast<size_t>(k) * element;
  }
};

// The matrices of a layer with a fourth as many KV heads as heads and a gated
// MLP, like TinyLlama's: q, k and v; out; gate and up; down.
std::vector<Size> SizesOf(int32_t hidden) {
  const int32_t inner = hidden * 11 / 4;
  return {{hidden + hidden / 2, hidden, false},
          {hidden, hidden, false},
          {2 * inner, hidden, true},
          {hidden, inner, false}};
}

// The maximum of a probe's bytes beside copies of the layer: the layer once
// more in full, inputs and results.
uint64_t WorkBytes(int32_t hidden, size_t element) {
  uint64_t weights = 0, in = 0, out = 0;
  for (const Size& size : SizesOf(hidden)) {
    weights +=
        static_cast<uint64_t>(size.n) * static_cast<uint64_t>(size.k) * element;
    in = std::max<uint64_t>(in, size.InputBytes(element));
    out = std::max<uint64_t>(
        out, GemmProbe::kMaxRows * size.RowFloats(element) * sizeof(float));
  }
  // Twice the weights, for the copy that is begun beyond the bound.
  return 2 * weights + in + out;
}

double FlopsOf(const MatrixLayout& layout, int32_t rows) {
  return 2.0 * rows * layout.n * layout.k;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GemmProbe>> GemmProbe::Create(
    DType dtype, WeightFormat format, const CodeFormat* codes,
    ComputePool* pool, MemoryBudget* budget) {
  std::unique_ptr<GemmProbe> self(new GemmProbe());
  SLUICE_ASSIGN_OR_RETURN(self->engine_, GemmEngine::Create(dtype, pool));
  GemmEngine& engine = *self->engine_;
  const size_t element = engine.element_bytes();
  const uint64_t room = budget->free_bytes() / 2;
  const uint64_t copied = std::min<uint64_t>(kBeyondCache, room / 2);
  int32_t hidden = kMaxHidden;
  while (hidden > kMinHidden && copied + WorkBytes(hidden, element) > room) {
    hidden /= 2;
  }
  size_t out_bytes = 0, in_bytes = 0, full_bytes = 0;
  for (const Size& size : SizesOf(hidden)) {
    Matrix matrix;
    if (codes != nullptr) {
      matrix.layout = engine.rules().LayoutCoded(size.k, {{{size.n, codes}}},
                                                 self->copy_bytes_);
      SLUICE_RETURN_IF_ERROR(engine.Prepare(&matrix.layout));
    } else {
      SLUICE_ASSIGN_OR_RETURN(
          matrix.layout,
          engine.Layout(size.n, size.k, format, self->copy_bytes_));
    }
    matrix.row_floats = size.RowFloats(element);
    self->copy_bytes_ += matrix.layout.bytes;
    if (matrix.layout.quantized()) {
      SLUICE_ASSIGN_OR_RETURN(
          self->full_.emplace_back(),
          engine.Layout(size.n, size.k, WeightFormat::kFull, full_bytes));
      full_bytes += self->full_.back().bytes;
    }
    out_bytes =
        std::max(out_bytes, kMaxRows * matrix.row_floats * sizeof(float));
    in_bytes = std::max(in_bytes, size.InputBytes(element));
    self->matrices_.push_back(matrix);
  }
  self->copies_ = copied / self->copy_bytes_ + 1;
  const auto create = [&](size_t bytes) {
    return HostBuffer::Create("profile", bytes, budget);
  };
  SLUICE_ASSIGN_OR_RETURN(self->packed_,
                          create(self->copies_ * self->copy_bytes_));
  SLUICE_ASSIGN_OR_RETURN(self->input_, create(in_bytes));
  SLUICE_ASSIGN_OR_RETURN(self->output_, create(out_bytes));
  if (full_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(self->dequantized_, create(full_bytes));
  }
  SLUICE_RETURN_IF_ERROR(self->Fill(budget));
  return self;
}

absl::Status GemmProbe::PackFirst(MemoryBudget* budget) {
  std::byte* const first = packed_.as<std::byte>();
  if (matrices_.front().layout.coded()) {
    // Codes, and numbers of an ordinary size in any type of scales.
    std::memset(first, 0x3c, copy_bytes_);
    return absl::OkStatus();
  }
  int32_t max_k = 0;
  for (const Matrix& m : matrices_) max_k = std::max(max_k, m.layout.k);
  const size_t floats = static_cast<size_t>(max_k) * GemmEngine::kPanelWidth;
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer rows,
      HostBuffer::Create("profile", floats * sizeof(float), budget));
  FillFloats(rows.as<float>(), floats);
  // The values make no difference to the time, so panels may be alike.
  for (const Matrix& m : matrices_) {
    const int last = m.layout.num_panels() - 1;
    for (int panel = 0; panel <= last; ++panel) {
      std::byte* const out = first + m.layout.panel_offset(panel);
      if (panel == 0 || panel == last) {
        SLUICE_RETURN_IF_ERROR(
            engine_->Pack(m.layout, panel, rows.as<float>(), 0, out));
      } else {
        std::memcpy(out, first + m.layout.panel_offset(0),
                    m.layout.whole_panel_bytes);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GemmProbe::Fill(MemoryBudget* budget) {
  SLUICE_RETURN_IF_ERROR(PackFirst(budget));
  std::byte* const first = packed_.as<std::byte>();
  for (size_t i = 1; i < copies_; ++i) {
    std::memcpy(first + i * copy_bytes_, first, copy_bytes_);
  }
  // The bits are about 1 in either dtype.
  if (engine_->element_bytes() == sizeof(float)) {
    FillFloats(input_.as<float>(), input_.bytes() / sizeof(float));
  } else {
    uint16_t* const in = input_.as<uint16_t>();
    for (size_t i = 0; i < input_.bytes() / 2; ++i) {
      in[i] = static_cast<uint16_t>(0x3f80 + i % 61);
    }
  }
  std::memset(output_.data(), 1, output_.bytes());
  return absl::OkStatus();
}

absl::Status GemmProbe::Multiply(const Matrix& matrix, size_t copy,
                                 int32_t rows) {
  float* const out = output_.as<float>();
  const size_t stride = matrix.row_floats;
  const size_t n = static_cast<size_t>(matrix.layout.n);
  return engine_->Multiply(
      matrix.layout,
      PackedView::Whole(packed_.as<std::byte>() + copy * copy_bytes_),
      input_.data(), rows,
      [&](int32_t row, int32_t count, int32_t col, int32_t cols, float* tile) {
        // Results are stored as in layers, where some of them are smaller.
        const size_t at = static_cast<size_t>(col) * stride / n;
        const size_t end = static_cast<size_t>(col + cols) * stride / n;
        for (int32_t i = 0; i < count; ++i) {
          std::memcpy(out + static_cast<size_t>(row + i) * stride + at,
                      tile + static_cast<size_t>(i) * cols,
                      (end - at) * sizeof(float));
        }
      });
}

absl::StatusOr<std::vector<double>> GemmProbe::Flops(
    std::span<const int32_t> rows, double seconds,
    const std::atomic<bool>* cancelled) {
  // Many rows take only the first and the last matrix: each k once.
  const auto step = [&](size_t i) {
    return rows[i] >= kManyRows ? matrices_.size() - 1 : 1;
  };
  for (size_t i = 0; i < matrices_.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(Multiply(matrices_[i], 0, rows[0]));
  }
  // Times of all matrices together, by number of rows. Rounds cover all numbers
  // of rows, so that no disturbance affects only one.
  std::vector<std::vector<double>> times(rows.size());
  size_t copy = 0;
  ComputeStopwatch watch;
  const double end = MonotonicSeconds() + seconds;
  for (int round = 0; round < kMinRounds || MonotonicSeconds() < end; ++round) {
    const double round_start = MonotonicSeconds();
    for (size_t r = 0; r < rows.size(); ++r) {
      // Few rows take little time, with a larger variance.
      const int repeats = rows[r] <= kFewRows ? 3 : 1;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        copy = (copy + 1) % copies_;
        SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
        watch.Lap();
        for (size_t i = 0; i < matrices_.size(); i += step(r)) {
          SLUICE_RETURN_IF_ERROR(Multiply(matrices_[i], copy, rows[r]));
        }
        times[r].push_back(watch.Lap());
      }
    }
    if (seconds > 0 && MonotonicSeconds() - round_start > seconds) break;
  }
  std::vector<double> rates;
  for (size_t r = 0; r < rows.size(); ++r) {
    double flops = 0;
    for (size_t i = 0; i < matrices_.size(); i += step(r)) {
      flops += FlopsOf(matrices_[i].layout, rows[r]);
    }
    rates.push_back(flops / TypicalSeconds(std::move(times[r])));
  }
  return rates;
}

absl::StatusOr<RateCurve> GemmProbe::FlopsByRows(
    double seconds, const std::atomic<bool>* cancelled) {
  return FlopsByRows(kRows, seconds, cancelled);
}

absl::StatusOr<RateCurve> GemmProbe::FlopsByRows(
    std::span<const int32_t> rows, double seconds,
    const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<double> rates,
                          Flops(rows, seconds, cancelled));
  std::vector<RateCurve::Point> points;
  for (size_t i = 0; i < rates.size(); ++i) {
    points.push_back({static_cast<double>(rows[i]), rates[i]});
  }
  return RateCurve(std::move(points));
}

absl::StatusOr<double> GemmProbe::DequantizedBytes(
    double seconds, const std::atomic<bool>* cancelled) {
  size_t turn = 0;
  SLUICE_ASSIGN_OR_RETURN(
      const double once, TimeCalls(seconds, 3, cancelled, [&] {
        const PackedView packed = PackedView::Whole(
            packed_.as<std::byte>() + turn++ % copies_ * copy_bytes_);
        for (size_t i = 0; i < matrices_.size(); ++i) {
          SLUICE_RETURN_IF_ERROR(engine_->Dequantize(
              matrices_[i].layout, packed, full_[i],
              dequantized_.as<std::byte>(), 0, full_[i].num_panels()));
        }
        return absl::OkStatus();
      }));
  size_t bytes = 0;
  for (const MatrixLayout& layout : full_) bytes += layout.bytes;
  return static_cast<double>(bytes) / once;
}

RateCurve SharesOfLast(std::vector<RateCurve::Point> rates) {
  const double last = rates.back().rate;
  const double max = ComputeProfile::kMaxThreadShare;
  for (auto& [x, rate] : rates) rate = std::min(rate / last, max);
  return RateCurve(std::move(rates));
}

absl::StatusOr<RateCurve> MeasureShareByThreads(
    DType dtype, int threads, const std::vector<int>& cores,
    MemoryBudget* budget, double seconds, const std::atomic<bool>* cancelled) {
  std::vector<int> counts;
  for (int n = 1; n < threads; n *= 2) counts.push_back(n);
  counts.push_back(threads);
  std::vector<RateCurve::Point> points;
  for (const int n : counts) {
    std::vector<int> some = cores;
    some.resize(std::min(cores.size(), static_cast<size_t>(n)));
    ComputePool pool(n, some);
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<GemmProbe> probe,
        GemmProbe::Create(dtype, WeightFormat::kFull, &pool, budget));
    constexpr int32_t kShareRows[] = {64};
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<double> rate,
        probe->Flops(kShareRows, seconds / static_cast<double>(counts.size()),
                     cancelled));
    points.push_back({static_cast<double>(n), rate[0]});
  }
  return SharesOfLast(std::move(points));
}

}  // namespace sluice
