#include "runtime/kernels/cpu/gemm_shape.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/blocks.h"
#include "common/float16.h"
#include "common/status_macros.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/quant/convert_floats.h"
#include "runtime/quant/strip_codec.h"

namespace sluice {
namespace {

using dnnl::memory;

// Tiles on offer. More sizes waste fewer padded rows, and cost primitives.
constexpr int32_t kTileSizes[] = {
    GemmEngine::kTileRows, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1};

// Columns are computed in multiples of so many, which are whole vectors on any
// processor.
constexpr int32_t kColumnUnit = 16;

memory::data_type DnnlType(DType dtype) {
  return dtype == DType::kFloat32 ? memory::data_type::f32
                                  : memory::data_type::bf16;
}

// Writes numbers in [-1, 1) with full mantissas, the same every time.
void FillRandom(uint32_t seed, float* out, size_t count) {
  uint32_t state = 12345 * seed;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    out[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

// Two orders of summation may well agree in one element, so that a panel of few
// columns needs several tries to tell them apart.
int Tries(int32_t columns) {
  return std::max(2, 2 * GemmEngine::kPanelWidth / columns);
}

// Returns the processor's time that this thread has had.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

absl::Status DnnlError(absl::string_view what, const dnnl::error& e) {
  return Internal("oneDNN: ", what, ": ", e.what(), " (status ",
                  static_cast<int>(e.status), ")");
}

std::string PackingName(const memory::desc& packed) {
  const dnnl_memory_desc_t& d = packed.data;
  std::string name =
      absl::StrCat("type", static_cast<int>(d.data_type), " kind",
                   static_cast<int>(d.format_kind), " flags", d.extra.flags,
                   " bytes", packed.get_size());
  if (d.format_kind == dnnl_blocked) {
    const dnnl_blocking_desc_t& b = d.format_desc.blocking;
    for (int i = 0; i < d.ndims; ++i) {
      absl::StrAppend(&name, " ", d.padded_dims[i], "/", b.strides[i]);
    }
    for (int i = 0; i < b.inner_nblks; ++i) {
      absl::StrAppend(&name, " ", b.inner_blks[i], "of", b.inner_idxs[i]);
    }
  }
  return name;
}

absl::StatusOr<std::unique_ptr<GemmShape>> GemmShape::Create(
    int32_t n, int32_t k, DType dtype, const dnnl::engine& engine,
    int num_threads) try {
  auto shape = std::make_unique<GemmShape>();
  shape->n_ = n;
  const auto width = static_cast<int32_t>(RoundUpTo(n, kColumnUnit));
  shape->width_ = width;
  shape->k_ = k;
  shape->dtype_ = dtype;
  shape->engine_ = engine;
  const memory::data_type type = DnnlType(dtype);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  for (int32_t rows : kTileSizes) {
    const memory::desc src({rows, k}, type, memory::format_tag::ab);
    const memory::desc dst({rows, width}, memory::data_type::f32,
                           memory::format_tag::ab);
    const bool first = shape->tiles_.empty();
    const memory::desc weights =
        first ? memory::desc({k, width}, type, memory::format_tag::any)
              : shape->packed_;
    dnnl::matmul::primitive_desc desc({src, weights, dst}, attr, engine,
                                      /*allow_empty=*/true);
    if (desc.get(/*allow_empty=*/true) == nullptr) {
      if (first) break;
      continue;
    }
    const absl::string_view implementation = desc.impl_info_str();
    if (first) {
      shape->packed_ = desc.weights_desc();
    } else if (absl::StartsWith(implementation, "ref")) {
      continue;  // has no fast kernel for this packing
    } else if (rows == 1 && absl::StartsWith(implementation, "gemm")) {
      // It calls a matrix-vector kernel, whose order of summation depends on
      // where its operands lie as well.
      continue;
    }
    Tile tile;
    tile.rows = rows;
    tile.primitive = dnnl::matmul(desc);
    for (int i = 0; i < num_threads; ++i) {
      tile.src.emplace_back(src, engine, nullptr);
      tile.dst.emplace_back(dst, engine, nullptr);
      tile.scratchpad.emplace_back(desc.scratchpad_desc(), engine, nullptr);
    }
    shape->scratchpad_bytes_ =
        std::max(shape->scratchpad_bytes_, desc.scratchpad_desc().get_size());
    shape->tiles_.push_back(std::move(tile));
  }
  if (shape->tiles_.empty()) {
    return Unimplemented(
        "oneDNN has no ", DTypeName(dtype),
        " matrix products on this machine's processor",
        dtype == DType::kBFloat16 ? "; use --dtype float32" : "");
  }
  for (int i = 0; i < num_threads; ++i) {
    shape->weights_.emplace_back(shape->packed_, engine, nullptr);
  }
  SLUICE_RETURN_IF_ERROR(shape->KeepInvariantTiles());
  return shape;
} catch (const dnnl::error& e) {
  return DnnlError(absl::StrCat("product with a ", n, " x ", k, " matrix"), e);
}

absl::Status GemmShape::KeepInvariantTiles() {
  const int32_t max_rows = tiles_.front().rows;
  std::vector<float> w(static_cast<size_t>(n_) * k_);
  FillRandom(1, w.data(), w.size());
  dnnl::stream stream(engine_);
  std::vector<std::byte> memory_of_packed(packed_bytes() + kScratchAlignment);
  std::byte* packed = AlignScratch(memory_of_packed.data());
  SLUICE_RETURN_IF_ERROR(Pack(w.data(), packed, stream));

  std::vector<float> rows(static_cast<size_t>(max_rows) * k_);
  memory rows_source(
      {{max_rows, k_}, memory::data_type::f32, memory::format_tag::ab}, engine_,
      rows.data());
  memory room(
      {{ReadableRows(max_rows), k_}, DnnlType(dtype_), memory::format_tag::ab},
      engine_);
  memory a({{max_rows, k_}, DnnlType(dtype_), memory::format_tag::ab}, engine_,
           room.get_data_handle());
  const dnnl::reorder convert(rows_source, a);
  std::vector<float> out(static_cast<size_t>(max_rows) * width_);
  std::vector<std::byte> scratch(scratchpad_bytes_ + kScratchAlignment);
  const size_t row_bytes = width_ * sizeof(float);

  for (int i = 0; i < Tries(n_); ++i) {
    FillRandom(2 + i, rows.data(), k_);
    for (int32_t row = 1; row < max_rows; ++row) {
      std::copy(rows.begin(), rows.begin() + k_,
                rows.begin() + static_cast<size_t>(row) * k_);
    }
    convert.execute(stream, rows_source, a);
    stream.wait();
    std::vector<float> expected;  // of the largest tile that is kept
    std::vector<Tile> kept;
    for (Tile& tile : tiles_) {
      const dnnl_status_t status =
          Run(tile, packed, a.get_data_handle(), out.data(),
              AlignScratch(scratch.data()), stream, 0);
      if (status != dnnl_success) {
        return Internal("oneDNN: a product failed with status ",
                        static_cast<int>(status));
      }
      if (kept.empty()) expected.assign(out.begin(), out.begin() + width_);
      bool same = true;
      for (int32_t row = 0; row < tile.rows && same; ++row) {
        same = std::memcmp(out.data() + static_cast<size_t>(row) * width_,
                           expected.data(), row_bytes) == 0;
      }
      if (same) kept.push_back(std::move(tile));
    }
    tiles_ = std::move(kept);
    if (tiles_.empty()) {
      return Unimplemented(
          "oneDNN's products with a ", n_, " x ", k_,
          " matrix give equal rows unequal results on this processor");
    }
  }
  return absl::OkStatus();
}

dnnl_status_t GemmShape::Run(const Tile& tile, const std::byte* packed,
                             const void* a, float* out, void* scratch,
                             const dnnl::stream& stream, int thread) const {
  dnnl_memory_t src = tile.src[thread].get();
  dnnl_memory_t weights = weights_[thread].get();
  dnnl_memory_t dst = tile.dst[thread].get();
  dnnl_memory_t pad = tile.scratchpad[thread].get();
  dnnl_memory_set_data_handle(src, const_cast<void*>(a));
  dnnl_memory_set_data_handle(weights, const_cast<std::byte*>(packed));
  dnnl_memory_set_data_handle(dst, out);
  dnnl_memory_set_data_handle(pad, scratch);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src},
                                  {DNNL_ARG_WEIGHTS, weights},
                                  {DNNL_ARG_DST, dst},
                                  {DNNL_ARG_SCRATCHPAD, pad}};
  return dnnl_primitive_execute(tile.primitive.get(), stream.get(), 4, args);
}

absl::Status GemmShape::Pack(const float* rows, std::byte* out,
                             const dnnl::stream& stream) const try {
  std::vector<float> filled;  // up to the width, with zeros
  if (n_ < width_) {
    filled.assign(rows, rows + static_cast<size_t>(n_) * k_);
    filled.resize(static_cast<size_t>(width_) * k_);
    rows = filled.data();
  }
  memory source({{k_, width_}, memory::data_type::f32, memory::format_tag::ba},
                engine_, const_cast<float*>(rows));
  memory packed(packed_, engine_, out);
  dnnl::reorder(source, packed).execute(stream, source, packed);
  return absl::OkStatus();
} catch (const dnnl::error& e) {
  return DnnlError("packing", e);
}

absl::StatusOr<PanelOrder> GemmShape::FindOrder() const try {
  // Numbers from 1 to 128, exact in bfloat16; 0 is padding.
  constexpr int32_t kBase = 128;
  const auto digit = [](int32_t x, int i) {
    for (; i > 0; --i) x /= kBase;
    return x % kBase + 1;
  };
  // One digit is the column's, three are the input's: up to 2^21 inputs.
  constexpr int kDigits = 4;
  if (n_ > kBase || k_ > kBase * kBase * kBase) return PanelOrder();
  const size_t element = dtype_ == DType::kFloat32 ? 4 : 2;
  const size_t bytes = packed_bytes();
  const dnnl::stream stream(engine_);
  std::vector<std::byte> storage[kDigits];
  const std::byte* packed[kDigits];
  std::vector<float> rows(static_cast<size_t>(n_) * k_);
  for (int d = 0; d < kDigits; ++d) {
    for (int32_t column = 0; column < n_; ++column) {
      for (int32_t input = 0; input < k_; ++input) {
        rows[static_cast<size_t>(column) * k_ + input] =
            static_cast<float>(d == 0 ? digit(column, 0) : digit(input, d - 1));
      }
    }
    storage[d].resize(bytes + kScratchAlignment);
    std::byte* out = AlignScratch(storage[d].data());
    SLUICE_RETURN_IF_ERROR(Pack(rows.data(), out, stream));
    packed[d] = out;
  }
  const auto at = [&](int d, size_t position) {
    if (element == 4) {
      float value;
      std::memcpy(&value, packed[d] + position * 4, 4);
      return static_cast<int32_t>(value);
    }
    uint16_t bits;
    std::memcpy(&bits, packed[d] + position * 2, 2);
    return static_cast<int32_t>(BFloat16ToFloat(bits));
  };
  for (const int32_t block : {64, 48, 32, 16, width_}) {
    for (const int32_t interleave : {1, 2}) {
      if (interleave == 2 && dtype_ == DType::kFloat32) continue;
      const size_t columns = (n_ + block - 1) / block * block;
      const size_t total = bytes / element;
      PanelOrder order;
      order.block = block;
      order.interleave = interleave;
      order.padded_k = static_cast<int32_t>(total / columns);
      if (columns * order.padded_k * element != bytes || order.padded_k < k_ ||
          order.padded_k % interleave != 0) {
        continue;
      }
      bool same = true;
      for (int32_t column = 0; column < static_cast<int32_t>(columns) && same;
           ++column) {
        for (int32_t input = 0; input < order.padded_k && same; ++input) {
          const bool inside = column < n_ && input < k_;
          const size_t position = order.Position(column, input);
          same = at(0, position) == (inside ? digit(column, 0) : 0);
          for (int d = 1; d < kDigits && same; ++d) {
            same = at(d, position) == (inside ? digit(input, d - 1) : 0);
          }
        }
      }
      if (same) return order;
    }
  }
  return PanelOrder();
} catch (const dnnl::error& e) {
  return DnnlError("packed order", e);
}

absl::StatusOr<SumOrder> GemmShape::FindSumOrder() const {
  const auto random = [&](uint32_t seed, int32_t rows) {
    std::vector<float> values(static_cast<size_t>(rows) * k_);
    FillRandom(seed, values.data(), values.size());
    std::vector<std::byte> typed(ElementBytes(dtype_) * values.size());
    ConvertFloats(values.data(), values.size(), dtype_, typed.data());
    ToFloats(typed.data(), values.size(), dtype_, values.data());
    return values;
  };
  const std::vector<float> w = random(1, n_);
  std::vector<float> row;
  const auto sum = [&](int32_t column, const SumOrder& order) {
    const float* const weights = w.data() + static_cast<size_t>(column) * k_;
    const int32_t flip = order.odd_first ? 1 : 0;
    float total = 0;
    for (int32_t begin = 0; begin < k_; begin += order.chunk) {
      float chunk = 0;
      for (int32_t i = begin; i < std::min(k_, begin + order.chunk); ++i) {
        chunk = std::fma(row[i ^ flip], weights[i ^ flip], chunk);
      }
      total = begin == 0 ? chunk : total + chunk;
    }
    return total;
  };
  const bool pairs = dtype_ == DType::kBFloat16;
  if (pairs && k_ % 2 != 0) return SumOrder();
  std::vector<SumOrder> orders;
  for (const int32_t chunk : {2 * kSliceInputs, 4 * kSliceInputs, k_}) {
    orders.push_back({chunk, pairs});
  }
  const dnnl::stream stream(engine_);
  std::vector<std::byte> memory_of_packed(packed_bytes() + kScratchAlignment);
  std::byte* packed = AlignScratch(memory_of_packed.data());
  SLUICE_RETURN_IF_ERROR(Pack(w.data(), packed, stream));
  const Tile& tile = tiles_.back();
  std::vector<std::byte> a(static_cast<size_t>(ReadableRows(tile.rows)) * k_ *
                           sizeof(float));
  std::vector<float> out(static_cast<size_t>(tile.rows) * width_);
  std::vector<std::byte> scratch(scratchpad_bytes_ + kScratchAlignment);
  for (int i = 0; i < Tries(n_) && !orders.empty(); ++i) {
    row = random(2 + i, 1);
    ConvertFloats(row.data(), row.size(), dtype_, a.data());
    const dnnl_status_t status = Run(tile, packed, a.data(), out.data(),
                                     AlignScratch(scratch.data()), stream, 0);
    if (status != dnnl_success) {
      return Internal("oneDNN: a product failed with status ",
                      static_cast<int>(status));
    }
    std::erase_if(orders, [&](const SumOrder& order) {
      for (int32_t column = 0; column < n_; ++column) {
        if (std::bit_cast<uint32_t>(sum(column, order)) !=
            std::bit_cast<uint32_t>(out[column])) {
          return true;
        }
      }
      return false;
    });
  }
  return orders.empty() ? SumOrder() : orders.front();
}

absl::StatusOr<bool> GemmShape::TrySlices(const SumOrder& sums) const {
  const Tile& tile = tiles_.front();
  const dnnl::stream stream(engine_);
  const std::vector<float> zeros(static_cast<size_t>(tile.rows) * k_);
  std::vector<std::byte> packed(packed_bytes() + kScratchAlignment);
  std::vector<std::byte> scratch(scratchpad_bytes_ + kScratchAlignment);
  std::vector<float> out(static_cast<size_t>(tile.rows) * kPanelColumns);
  const auto space = std::make_unique<SliceSpace>();
  dnnl_status_t status = dnnl_success;
  const auto least = [&](auto call) {
    double seconds = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double begin = ThreadSeconds();
      call();
      seconds = std::min(seconds, ThreadSeconds() - begin);
    }
    return seconds;
  };
  const double panel = least([&] {
    status = Run(tile, AlignScratch(packed.data()), zeros.data(), out.data(),
                 AlignScratch(scratch.data()), stream, 0);
  });
  if (status != dnnl_success) {
    return Internal("oneDNN: a product failed with status ",
                    static_cast<int>(status));
  }
  const int32_t strips = width_ / kStripColumns;
  const double slices = least([&] {
    for (int32_t i = 0; i < k_; i += kSliceInputs) {
      MultiplySlice(space->weights, strips, space->inputs, tile.rows,
                    kSliceInputs, sums.odd_first, /*begin=*/true, {},
                    space->sums);
    }
  });
  return slices < panel;
}

absl::Status GemmShape::PrepareSlices(bool known_order) {
  if (slices_ != nullptr) return absl::OkStatus();
  auto slices = std::make_unique<Slices>();
  if (known_order) {
    SLUICE_ASSIGN_OR_RETURN(slices->order, FindOrder());
  }
  SLUICE_ASSIGN_OR_RETURN(slices->sums, FindSumOrder());
  if (slices->sums.chunk > 0) {
    SLUICE_ASSIGN_OR_RETURN(slices->faster, TrySlices(slices->sums));
  }
  slices_ = std::move(slices);
  return absl::OkStatus();
}

absl::Status GemmShape::PrepareQuantized(bool known_order) try {
  if (quantized_ != nullptr) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(PrepareSlices(known_order));
  auto q = std::make_unique<Quantized>();
  PanelOrder order = slices_->order;
  q->in_order = order.block != 0;
  DType decoded = dtype_;
  if (!q->in_order) {
    order.block = width_;
    order.padded_k = k_;
    decoded = DType::kFloat32;
    const memory::desc plain({k_, width_}, memory::data_type::f32,
                             memory::format_tag::ab);
    q->reorder = dnnl::reorder(
        dnnl::reorder::primitive_desc(engine_, plain, engine_, packed_));
    for (size_t i = 0; i < weights_.size(); ++i) {
      q->plain.emplace_back(plain, engine_, nullptr);
      q->packed.emplace_back(packed_, engine_, nullptr);
    }
  }
  q->order = order;
  q->decoded = decoded;
  q->int4 = PanelCodec(n_, k_, 4, decoded, order);
  q->int8 = PanelCodec(n_, k_, 8, decoded, order);
  quantized_ = std::move(q);
  return absl::OkStatus();
} catch (const dnnl::error& e) {
  return DnnlError("reorder", e);
}

void GemmShape::Decode(const MatrixLayout& w, int panel,
                       const std::byte* quantized, std::byte* out) const {
  if (!w.coded()) {
    codec(w.format).Decode(quantized, out);
    return;
  }
  const PanelOrder& order = quantized_->order;
  ClearPadding(n_, k_, quantized_->decoded, order, out);
  const std::byte* const groups = quantized;
  quantized += w.order_bytes;
  int32_t first = w.panel_begin(panel);  // among the columns of `some`
  int32_t column = 0;
  for (const CodedColumns& some : w.codes) {
    for (; first < some.columns && column < n_;
         first += kStripColumns, column += kStripColumns) {
      DecodeStrip(*some.format, quantized, k_, quantized_->decoded, order,
                  column, std::min(kStripColumns, n_ - column), out, groups);
      quantized += some.strip_bytes;
    }
    first = std::max(0, first - some.columns);
  }
}

dnnl_status_t GemmShape::Dequantize(const MatrixLayout& w, int panel,
                                    const std::byte* quantized, std::byte* out,
                                    std::byte* plain,
                                    const dnnl::stream& stream,
                                    int thread) const {
  if (quantized_->in_order) {
    Decode(w, panel, quantized, out);
    return dnnl_success;
  }
  Decode(w, panel, quantized, plain);
  dnnl_memory_t from = quantized_->plain[thread].get();
  dnnl_memory_t to = quantized_->packed[thread].get();
  dnnl_memory_set_data_handle(from, plain);
  dnnl_memory_set_data_handle(to, out);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  return dnnl_primitive_execute(quantized_->reorder.get(), stream.get(), 2,
                                args);
}

}  // namespace sluice
