#include "runtime/kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

using dnnl::memory;

// Tiles on offer. More sizes waste fewer padded rows, and cost primitives.
constexpr int32_t kTileSizes[] = {128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1};
// Below this, smaller tiles for the sake of more tasks cost more than they
// gain.
constexpr int32_t kLeastSplitRows = 16;

// Some of oneDNN's kernels remember how many OpenMP threads the thread that
// made them could use, others ask when they run: one in either case. The number
// is each thread's own.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

absl::Status DnnlError(absl::string_view what, const dnnl::error& e) {
  return absl::InternalError(absl::StrCat("oneDNN: ", what, ": ", e.what(),
                                          " (status ",
                                          static_cast<int>(e.status), ")"));
}

memory::data_type DnnlType(DType dtype) {
  return dtype == DType::kFloat32 ? memory::data_type::f32
                                  : memory::data_type::bf16;
}

// Numbers in [-1, 1) with full mantissas, the same every time.
void FillRandom(uint32_t seed, float* out, size_t count) {
  uint32_t state = 12345 * seed;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    out[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

// oneDNN's scratchpads want a cache line's alignment.
constexpr size_t kAlignment = 64;
void* AlignUp(std::byte* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return p + (kAlignment - address % kAlignment) % kAlignment;
}

}  // namespace

// oneDNN's objects of one compute thread.
struct GemmThread {
  dnnl::stream stream;
  std::vector<std::byte> scratchpad;  // oneDNN's, to be aligned
  void* scratch() { return AlignUp(scratchpad.data()); }
  // Output of a call, [tile, panel].
  alignas(64) float tile[GemmEngine::kTileRows * GemmEngine::kPanelWidth];
};

struct PackedMatrix::Panel {
  const GemmShape* shape = nullptr;
  memory packed;
};

PackedMatrix::PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;
PackedMatrix::~PackedMatrix() = default;

// The primitives for panels of n columns and k rows.
class GemmShape {
 public:
  struct Tile {
    int32_t rows = 0;
    dnnl::matmul primitive;
    // Per thread, with the thread's own data handles.
    std::vector<memory> src, dst, scratchpad;
  };

  static absl::StatusOr<std::unique_ptr<GemmShape>> Create(
      int32_t n, int32_t k, DType dtype, const dnnl::engine& engine,
      int num_threads);

  // The least tile that takes `rows`, or the largest one.
  const Tile& TileFor(int32_t rows) const {
    for (auto it = tiles_.rbegin(); it != tiles_.rend(); ++it) {
      if (it->rows >= rows) return *it;
    }
    return tiles_.front();
  }

  // One call. `scratch` holds scratchpad_bytes().
  dnnl_status_t Run(const Tile& tile, const memory& packed, const void* a,
                    float* out, void* scratch, const dnnl::stream& stream,
                    int thread) const {
    dnnl_memory_t src = tile.src[thread].get();
    dnnl_memory_t dst = tile.dst[thread].get();
    dnnl_memory_t pad = tile.scratchpad[thread].get();
    dnnl_memory_set_data_handle(src, const_cast<void*>(a));
    dnnl_memory_set_data_handle(dst, out);
    dnnl_memory_set_data_handle(pad, scratch);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, src},
                                    {DNNL_ARG_WEIGHTS, packed.get()},
                                    {DNNL_ARG_DST, dst},
                                    {DNNL_ARG_SCRATCHPAD, pad}};
    return dnnl_primitive_execute(tile.primitive.get(), stream.get(), 4, args);
  }

  const memory::desc& packed_desc() const { return packed_; }
  const dnnl::engine& engine() const { return engine_; }
  size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  int32_t n() const { return n_; }
  int32_t k() const { return k_; }

 private:
  // Drops the tiles that do not give every row the same bits.
  absl::Status KeepInvariantTiles(DType dtype);

  int32_t n_ = 0;
  int32_t k_ = 0;
  dnnl::engine engine_;
  memory::desc packed_;
  size_t scratchpad_bytes_ = 0;
  std::vector<Tile> tiles_;  // largest first
};

absl::StatusOr<std::unique_ptr<GemmShape>> GemmShape::Create(
    int32_t n, int32_t k, DType dtype, const dnnl::engine& engine,
    int num_threads) try {
  auto shape = std::make_unique<GemmShape>();
  shape->n_ = n;
  shape->k_ = k;
  shape->engine_ = engine;
  const memory::data_type type = DnnlType(dtype);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  for (int32_t rows : kTileSizes) {
    const memory::desc src({rows, k}, type, memory::format_tag::ab);
    const memory::desc dst({rows, n}, memory::data_type::f32,
                           memory::format_tag::ab);
    const bool first = shape->tiles_.empty();
    const memory::desc weights =
        first ? memory::desc({k, n}, type, memory::format_tag::any)
              : shape->packed_;
    dnnl::matmul::primitive_desc desc({src, weights, dst}, attr, engine,
                                      /*allow_empty=*/true);
    if (desc.get(/*allow_empty=*/true) == nullptr) continue;
    const absl::string_view implementation = desc.impl_info_str();
    if (first) {
      shape->packed_ = desc.weights_desc();
    } else if (absl::StartsWith(implementation, "ref")) {
      continue;  // has no fast kernel for this packing
    } else if (rows == 1 && absl::StartsWith(implementation, "gemm")) {
      // Calls a matrix-vector kernel, whose order of summation depends on
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
    return absl::UnimplementedError(
        absl::StrCat("oneDNN has no ", DTypeName(dtype),
                     " matrix products on this machine's processor",
                     dtype == DType::kBFloat16 ? "; use --dtype float32" : ""));
  }
  SLUICE_RETURN_IF_ERROR(shape->KeepInvariantTiles(dtype));
  return shape;
} catch (const dnnl::error& e) {
  return DnnlError(absl::StrCat("product with a ", n, " x ", k, " matrix"), e);
}

absl::Status GemmShape::KeepInvariantTiles(DType dtype) {
  const int32_t max_rows = tiles_.front().rows;
  std::vector<float> w(static_cast<size_t>(n_) * k_);
  FillRandom(1, w.data(), w.size());
  dnnl::stream stream(engine_);
  memory packed(packed_, engine_);
  memory w_source({{k_, n_}, memory::data_type::f32, memory::format_tag::ba},
                  engine_, w.data());
  dnnl::reorder(w_source, packed).execute(stream, w_source, packed);

  std::vector<float> rows(static_cast<size_t>(max_rows) * k_);
  memory rows_source(
      {{max_rows, k_}, memory::data_type::f32, memory::format_tag::ab}, engine_,
      rows.data());
  const int32_t readable = GemmEngine::ReadableRows(max_rows);
  std::vector<std::byte> a_bytes(
      static_cast<size_t>(readable) * k_ * sizeof(float) + kAlignment);
  memory a({{max_rows, k_}, DnnlType(dtype), memory::format_tag::ab}, engine_,
           AlignUp(a_bytes.data()));
  const dnnl::reorder convert(rows_source, a);
  std::vector<float> out(static_cast<size_t>(max_rows) * n_);
  std::vector<std::byte> scratch(scratchpad_bytes_ + kAlignment);
  const size_t row_bytes = n_ * sizeof(float);

  // Two orders of summation may well agree in one element, so that a narrow
  // panel needs several tries to tell them apart.
  const int tries = std::max(2, 2 * GemmEngine::kPanelWidth / n_);
  for (int i = 0; i < tries; ++i) {
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
              AlignUp(scratch.data()), stream, 0);
      if (status != dnnl_success) {
        return absl::InternalError(absl::StrCat(
            "oneDNN: a product failed with status ", static_cast<int>(status)));
      }
      if (kept.empty()) expected.assign(out.begin(), out.begin() + n_);
      bool same = true;
      for (int32_t row = 0; row < tile.rows && same; ++row) {
        same = std::memcmp(out.data() + static_cast<size_t>(row) * n_,
                           expected.data(), row_bytes) == 0;
      }
      if (same) kept.push_back(std::move(tile));
    }
    tiles_ = std::move(kept);
    if (tiles_.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "oneDNN's products with a ", n_, " x ", k_,
          " matrix give equal rows unequal results on this processor"));
    }
  }
  return absl::OkStatus();
}

GemmEngine::GemmEngine(DType dtype, ComputePool* pool)
    : dtype_(dtype), pool_(pool) {}
GemmEngine::~GemmEngine() = default;

absl::StatusOr<std::unique_ptr<GemmEngine>> GemmEngine::Create(
    DType dtype, ComputePool* pool) try {
  std::unique_ptr<GemmEngine> self(new GemmEngine(dtype, pool));
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  for (int i = 0; i < pool->num_threads(); ++i) {
    self->threads_.push_back(std::make_unique<GemmThread>());
    self->threads_.back()->stream = dnnl::stream(engine);
  }
  // Fails here rather than halfway through a load.
  SLUICE_RETURN_IF_ERROR(self->Shape(64, 64).status());
  return self;
} catch (const dnnl::error& e) {
  return DnnlError("start", e);
}

absl::StatusOr<GemmShape*> GemmEngine::Shape(int32_t n, int32_t k) {
  std::unique_ptr<GemmShape>& shape = shapes_[{n, k}];
  if (shape == nullptr) {
    OneOpenMpThread guard;
    auto created = GemmShape::Create(
        n, k, dtype_, threads_[0]->stream.get_engine(), pool_->num_threads());
    if (!created.ok()) return created.status();
    shape = *std::move(created);
    for (auto& thread : threads_) {
      thread->scratchpad.resize(std::max(
          thread->scratchpad.size(), shape->scratchpad_bytes() + kAlignment));
    }
  }
  return shape.get();
}

absl::StatusOr<std::vector<int32_t>> GemmEngine::TileSizes(int32_t n,
                                                           int32_t k) {
  SLUICE_ASSIGN_OR_RETURN(GemmShape * shape,
                          Shape(std::min(n, kPanelWidth), k));
  std::vector<int32_t> sizes;
  for (const auto& tile : shape->tiles()) sizes.push_back(tile.rows);
  return sizes;
}

absl::StatusOr<size_t> GemmEngine::PackedBytes(int32_t n, int32_t k) {
  size_t bytes = 0;
  if (n >= kPanelWidth) {
    SLUICE_ASSIGN_OR_RETURN(GemmShape * shape, Shape(kPanelWidth, k));
    bytes += shape->packed_desc().get_size() * (n / kPanelWidth);
  }
  if (n % kPanelWidth != 0) {
    SLUICE_ASSIGN_OR_RETURN(GemmShape * shape, Shape(n % kPanelWidth, k));
    bytes += shape->packed_desc().get_size();
  }
  return bytes;
}

absl::StatusOr<PackedMatrix> GemmEngine::Allocate(const std::string& name,
                                                  int32_t n, int32_t k,
                                                  MemoryBudget* budget) try {
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, PackedBytes(n, k));
  PackedMatrix matrix;
  matrix.k_ = k;
  matrix.n_ = n;
  matrix.panel_width_ = kPanelWidth;
  SLUICE_ASSIGN_OR_RETURN(matrix.data_,
                          HostBuffer::Create(name, bytes, budget));
  std::byte* next = matrix.data_.as<std::byte>();
  for (int32_t begin = 0; begin < n; begin += kPanelWidth) {
    SLUICE_ASSIGN_OR_RETURN(GemmShape * shape,
                            Shape(std::min(kPanelWidth, n - begin), k));
    matrix.panels_.push_back(
        {shape, memory(shape->packed_desc(), shape->engine(), next)});
    next += shape->packed_desc().get_size();
  }
  return matrix;
} catch (const dnnl::error& e) {
  return DnnlError("memory", e);
}

absl::Status GemmEngine::Pack(PackedMatrix& matrix, int panel,
                              const float* rows, int thread) try {
  OneOpenMpThread guard;
  PackedMatrix::Panel& p = matrix.panels_[panel];
  memory source({{matrix.k_, p.shape->n()},
                 memory::data_type::f32,
                 memory::format_tag::ba},
                p.shape->engine(), const_cast<float*>(rows));
  dnnl::reorder(source, p.packed)
      .execute(threads_[thread]->stream, source, p.packed);
  return absl::OkStatus();
} catch (const dnnl::error& e) {
  return DnnlError("packing", e);
}

absl::Status GemmEngine::Multiply(const PackedMatrix& w, const void* a,
                                  int32_t rows, Epilogue epilogue) {
  if (rows == 0) return absl::OkStatus();
  // Many threads and few panels: smaller tiles, so that all have work.
  const int32_t panels = w.num_panels();
  int32_t tile_rows = std::min(w.panels_.front().shape->tiles().front().rows,
                               w.panels_.back().shape->tiles().front().rows);
  while (tile_rows / 2 >= kLeastSplitRows &&
         panels * ((rows + tile_rows - 1) / tile_rows) <
             3 * pool_->num_threads() &&
         rows > kLeastSplitRows) {
    tile_rows /= 2;
  }
  const int32_t tiles = (rows + tile_rows - 1) / tile_rows;
  const size_t row_bytes = w.k() * element_bytes();
  OneOpenMpThread guard;
  pool_->ParallelFor(panels * tiles, [&](int task, int thread) {
    if (thread != 0) omp_set_num_threads(1);  // the pool's own thread
    // Neighbouring tasks share the panel.
    const PackedMatrix::Panel& panel = w.panels_[task / tiles];
    const int32_t row = task % tiles * tile_rows;
    const int32_t valid = std::min(tile_rows, rows - row);
    GemmThread& self = *threads_[thread];
    const dnnl_status_t status =
        panel.shape->Run(panel.shape->TileFor(valid), panel.packed,
                         static_cast<const std::byte*>(a) + row * row_bytes,
                         self.tile, self.scratch(), self.stream, thread);
    if (status != dnnl_success) {
      error_.store(status);
      return;
    }
    epilogue(row, valid, task / tiles * w.panel_width_, panel.shape->n(),
             self.tile);
  });
  if (const int status = error_.load(); status != 0) {
    return absl::InternalError(
        absl::StrCat("oneDNN: a product failed with status ", status));
  }
  return absl::OkStatus();
}

}  // namespace sluice
