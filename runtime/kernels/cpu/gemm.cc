#include "runtime/kernels/cpu/gemm.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/kernels/cpu/gemm_shape.h"
#include "runtime/kernels/cpu/slice_gemm.h"
#include "runtime/quant/strip_codec.h"

namespace sluice {
namespace {

// Below this, smaller tiles for the sake of more tasks cost more than they
// gain.
constexpr int32_t kMinSplitRows = 16;
// Below this, dequantizing a panel again costs more than another thread gains.
constexpr int32_t kMinPartRows = 64;
// Tasks for each thread, at least: of those that dequantize panels, and of
// those that only widen them.
constexpr int kTasks = 2;
constexpr int kWideningTasks = 8;
// Strips and inputs that are widened at a time: the strips that MultiplySlice
// takes together, and 32 KiB of floats.
constexpr int32_t kWidenedStrips = 4;
constexpr int32_t kWidenedInputs = 128;
// Below this, widening a panel costs more than products of floats gain.
constexpr int32_t kMinWidenedRows = 8;

// Grows when the bytes that Pack writes change.
constexpr int kFormatVersion = 4;

// Takes away what a tile has between rows of `cols` floats.
void CloseRows(int32_t rows, int32_t cols, int32_t stride, float* tile) {
  for (int32_t row = 1; cols != stride && row < rows; ++row) {
    std::memmove(tile + row * cols, tile + row * stride, cols * sizeof(float));
  }
}

// Returns the rows of a task, whole units: where there should be more tasks
// than panels, several make numbers of one panel.
int32_t PartRows(int32_t rows, int32_t panels, int tasks, int32_t unit) {
  const int32_t units = (rows + unit - 1) / unit;
  const int32_t wanted = std::clamp((tasks + panels - 1) / panels, 1, units);
  return (units + wanted - 1) / wanted * unit;
}

// A panel whose weights become floats slice by slice: codes, or numbers in
// oneDNN's order.
struct SlicedPanel {
  struct Strip {
    const CodeFormat* format = nullptr;  // null: numbers
    const std::byte* codes = nullptr;
  };
  std::array<Strip, kPanelColumns / kStripColumns> strips;
  int32_t count = 0;  // of strips
  const std::byte* numbers = nullptr;
  const std::byte* next = nullptr;  // likely wanted after these; or null
  PanelOrder order;                 // of the numbers
  int32_t k = 0;
  DType dtype = DType::kFloat32;
  SumOrder sums;

  // Of a matrix that HasSlices.
  void AddCodes(const MatrixLayout& w, int panel, const std::byte* codes) {
    for (int32_t column = w.panel_begin(panel); column < w.panel_end(panel);
         column += kStripColumns) {
      const CodedColumns& some = w.CodesAt(column);
      strips[count++] = {some.format, codes};
      codes += some.strip_bytes;
    }
  }

  // Makes the floats of inputs [begin, end) of codes.
  void Decode(int32_t begin, int32_t end, float* out) const {
    for (int32_t s = 0; s < count; ++s) {
      DecodeSlice(*strips[s].format, strips[s].codes, begin, end, dtype,
                  out + s * kSliceStrip);
    }
  }
  // Returns where the numbers are that are widened after those of strips from
  // `strip` on and inputs [begin, end).
  SliceAhead After(int32_t strip, int32_t begin, int32_t end) const {
    constexpr int32_t kColumns = kWidenedStrips * kStripColumns;
    if (kColumns % order.block != 0) return {};
    const std::byte* from = numbers;
    strip += kWidenedStrips;
    if (strip >= count) {
      strip = 0;
      begin = end;
      if (begin >= k) {
        from = next;
        begin = 0;
      }
    }
    if (from == nullptr) return {};
    const size_t inputs = std::min(kWidenedInputs, k - begin);
    const size_t element = ElementBytes(dtype);
    return {from + order.Position(strip * kStripColumns, begin) * element,
            static_cast<size_t>(kColumns / order.block),
            inputs * order.block * element,
            size_t{1} * order.padded_k * order.block * element};
  }
};

// Multiplies inputs [begin, end) of rows, which are floats at space->inputs, by
// a panel of numbers. A few strips at a time become floats, which stay in the
// nearest cache.
void MultiplyWidened(const SlicedPanel& panel, int32_t begin, int32_t end,
                     int32_t rows, bool first, SliceSpace* space, float* sums) {
  for (int32_t s = 0; s < panel.count; s += kWidenedStrips) {
    const int32_t some = std::min(kWidenedStrips, panel.count - s);
    WidenSlice(panel.numbers, panel.order, s, some, begin, end, space->weights);
    MultiplySlice(space->weights, some, space->inputs, rows, end - begin,
                  panel.sums.odd_first, first, panel.After(s, begin, end),
                  sums + s * kStripColumns);
  }
}

// Multiplies up to kSliceRows rows [rows, k] of the panel's dtype by it: [rows,
// kPanelColumns] at space->total.
void MultiplyPanel(const SlicedPanel& panel, const std::byte* a, int32_t rows,
                   SliceSpace* space) {
  // Few rows use each number of codes at once; rows that are not there are
  // computed, too.
  const bool coded = panel.numbers == nullptr;
  const bool few = coded && rows <= kFewRows;
  const int32_t together = few && rows > 1 ? kFewRows : rows;
  const size_t numbers = static_cast<size_t>(together) * kPanelColumns;
  const int32_t step = coded ? kSliceInputs : kWidenedInputs;
  for (int32_t chunk = 0; chunk < panel.k; chunk += panel.sums.chunk) {
    float* const sums = chunk == 0 ? space->total : space->sums;
    if (few) std::fill_n(sums, numbers, 0.0f);
    const int32_t chunk_end = std::min(panel.k, chunk + panel.sums.chunk);
    for (int32_t begin = chunk; begin < chunk_end; begin += step) {
      const int32_t end = std::min(chunk_end, begin + step);
      const SmallAreZeros zeros(panel.dtype == DType::kBFloat16);
      WidenRows(a, panel.dtype, panel.k, rows, begin, end, space->inputs);
      if (!coded) {
        MultiplyWidened(panel, begin, end, rows, begin == chunk, space, sums);
        continue;
      }
      for (int32_t s = 0; few && s < panel.count; ++s) {
        MultiplyStrip(*panel.strips[s].format, panel.strips[s].codes, begin,
                      end, panel.dtype, space->inputs, kSliceRow, together,
                      sums + s * kStripColumns, kPanelColumns);
      }
      if (few) continue;
      panel.Decode(begin, end, space->weights);
      MultiplySlice(space->weights, panel.count, space->inputs, rows,
                    end - begin, panel.sums.odd_first, begin == chunk, {},
                    sums);
    }
    if (chunk > 0) AddSums(sums, numbers, space->total);
  }
}

// Whether the matrix is in codes that are decoded by slices of inputs, as
// GGUF's are.
bool HasSlices(const MatrixLayout& w) {
  return w.coded() && std::all_of(w.codes.begin(), w.codes.end(),
                                  [](const CodedColumns& some) {
                                    return some.format == nullptr ||
                                           some.format->scaled == nullptr;
                                  });
}

// Makes room for `bytes` behind AlignScratch.
void GrowScratch(std::vector<std::byte>& scratch, size_t bytes) {
  if (bytes == 0) return;
  scratch.resize(std::max(scratch.size(), bytes + kScratchAlignment));
}

// Hashes text by FNV-1a.
uint64_t HashText(uint64_t hash, absl::string_view text) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

// The stream and the scratch memory of one compute thread.
struct GemmThread {
  dnnl::stream stream;
  std::vector<std::byte> scratchpad;   // oneDNN's, to be aligned
  std::vector<std::byte> panel;        // a dequantized one, to be aligned
  std::vector<std::byte> plain;        // on its way there, to be aligned
  std::unique_ptr<SliceSpace> slices;  // if there are codes to decode
  void* scratch() { return AlignScratch(scratchpad.data()); }
  // Output of a call, [tile, panel].
  alignas(64) float tile[GemmEngine::kTileRows * GemmEngine::kPanelWidth];
};

// The primitives of all panels but the last, and of the last.
struct GemmEngine::PanelShapes {
  const GemmShape* whole = nullptr;
  const GemmShape* last = nullptr;

  // Returns whether tiles of `rows`, a part of kTileRows, may begin at any
  // multiple of `rows`: fewer rows then take no larger tile, so that none reads
  // beyond the input's padding.
  bool HaveTile(int32_t rows) const {
    return whole->TileFor(rows).rows == rows &&
           last->TileFor(rows).rows == rows;
  }

  // Returns whether so many rows are multiplied slice by slice.
  bool MultiplySlices(const MatrixLayout& w, DType dtype, int32_t rows) const {
    if (whole->sum_order().chunk == 0 || last->sum_order().chunk == 0) {
      return false;
    }
    if (HasSlices(w)) return rows <= kFewRows || whole->slices_are_faster();
    return dtype == DType::kBFloat16 && rows >= kMinWidenedRows &&
           whole->slices_are_faster() && whole->packed_order().block > 0 &&
           last->packed_order().block > 0;
  }
};

GemmEngine::GemmEngine(const PanelRules& rules, ComputePool* pool)
    : MatrixPacker(rules), pool_(pool) {}
GemmEngine::~GemmEngine() = default;

absl::StatusOr<std::unique_ptr<GemmEngine>> GemmEngine::Create(
    const PanelRules& rules, ComputePool* pool) try {
  std::unique_ptr<GemmEngine> self(new GemmEngine(rules, pool));
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  for (int i = 0; i < pool->num_threads(); ++i) {
    self->threads_.push_back(std::make_unique<GemmThread>());
    self->threads_.back()->stream = dnnl::stream(engine);
  }
  // A missing GEMM fails here rather than halfway through a load.
  SLUICE_RETURN_IF_ERROR(self->Shape(64, 64).status());
  return self;
} catch (const dnnl::error& e) {
  return DnnlError("start", e);
}

absl::StatusOr<GemmShape*> GemmEngine::Shape(int32_t n, int32_t k) {
  const auto it = shapes_.find({n, k});
  if (it != shapes_.end()) return it->second.get();
  OneOpenMpThread guard;
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<GemmShape> shape,
      GemmShape::Create(n, k, dtype(), threads_[0]->stream.get_engine(),
                        pool_->num_threads()));
  for (auto& thread : threads_) {
    GrowScratch(thread->scratchpad, shape->scratchpad_bytes());
  }
  return (shapes_[{n, k}] = std::move(shape)).get();
}

absl::StatusOr<const GemmShape*> GemmEngine::FindShape(const MatrixLayout& w,
                                                       int panel) const {
  const int32_t n = w.panel_end(panel) - w.panel_begin(panel), k = w.k;
  const auto it = shapes_.find({n, k});
  if (it == shapes_.end() || (w.quantized() && !it->second->has_quantized())) {
    return Internal("no primitives for panels of ", n, " x ", k,
                    ": the layout is of another engine");
  }
  return it->second.get();
}

absl::StatusOr<GemmEngine::PanelShapes> GemmEngine::ShapesOf(
    const MatrixLayout& w) const {
  PanelShapes shapes;
  SLUICE_ASSIGN_OR_RETURN(shapes.whole, FindShape(w, 0));
  SLUICE_ASSIGN_OR_RETURN(shapes.last, FindShape(w, w.num_panels() - 1));
  return shapes;
}

absl::Status GemmEngine::Prepare(MatrixLayout* w) {
  // What is tried here has to be summed as later calls sum.
  OneOpenMpThread guard;
  uint64_t hash = 0xcbf29ce484222325u;
  const int last = w->num_panels() - 1;
  for (const int panel : {0, last}) {
    SLUICE_ASSIGN_OR_RETURN(
        GemmShape * shape,
        Shape(w->panel_end(panel) - w->panel_begin(panel), w->k));
    hash = HashText(hash, PackingName(shape->packed_desc()));
    size_t bytes = shape->packed_bytes();
    if (w->quantized()) {
      SLUICE_RETURN_IF_ERROR(shape->PrepareQuantized(known_order_));
      if (w->coded()) {
        bytes = w->panel_bytes(panel);
        for (const CodedColumns& some : w->codes) {
          if (some.format == nullptr) continue;
          hash = HashText(hash, absl::StrCat(some.columns, some.format->name));
        }
      } else {
        bytes = shape->quantized_bytes(w->format);
        hash = HashText(hash, absl::StrCat(WeightFormatName(w->format),
                                           shape->quantized_in_order()));
      }
      for (auto& thread : threads_) {
        GrowScratch(thread->panel, shape->packed_bytes());
        GrowScratch(thread->plain, shape->plain_bytes());
      }
    } else if (dtype() == DType::kBFloat16) {
      SLUICE_RETURN_IF_ERROR(shape->PrepareSlices(known_order_));
    }
    if (shape->sum_order().chunk > 0 &&
        (HasSlices(*w) || dtype() == DType::kBFloat16)) {
      for (auto& thread : threads_) {
        if (thread->slices != nullptr) continue;
        thread->slices = std::make_unique<SliceSpace>();
      }
    }
    if (bytes > w->panel_bytes(panel)) {
      return Internal("oneDNN packs a panel of ", w->n, " x ", w->k, " into ",
                      bytes, " bytes, more than the ", w->panel_bytes(panel),
                      " planned for");
    }
  }
  w->packing = hash;
  return absl::OkStatus();
}

absl::Status GemmEngine::Pack(const MatrixLayout& w, int panel,
                              const float* rows, int thread, std::byte* out) {
  OneOpenMpThread guard;
  SLUICE_ASSIGN_OR_RETURN(const GemmShape* shape, FindShape(w, panel));
  if (w.coded()) {
    return Internal("a matrix that keeps its codes is not packed from numbers");
  }
  if (w.quantized()) return shape->Quantize(w.format, rows, out);
  std::fill(out + shape->packed_bytes(), out + w.panel_bytes(panel),
            std::byte{});
  return shape->Pack(rows, out, threads_[thread]->stream);
}

absl::Status GemmEngine::Multiply(const MatrixLayout& w,
                                  const PackedView& packed, const void* a,
                                  int32_t rows, Epilogue epilogue) {
  if (rows == 0 || w.n == 0) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const PanelShapes shapes, ShapesOf(w));
  OneOpenMpThread guard;
  if (shapes.MultiplySlices(w, dtype(), rows)) {
    MultiplySliced(w, shapes, packed, a, rows, epilogue);
    return absl::OkStatus();
  }
  return (this->*(w.quantized() ? &GemmEngine::MultiplyQuantized
                                : &GemmEngine::MultiplyFull))(
      w, shapes, packed, a, rows, epilogue);
}

void GemmEngine::MultiplySliced(const MatrixLayout& w,
                                const PanelShapes& shapes,
                                const PackedView& packed, const void* a,
                                int32_t rows, Epilogue epilogue) {
  const int32_t panels = w.num_panels();
  const int tasks =
      (w.quantized() ? kTasks : kWideningTasks) * pool_->num_threads();
  const int32_t part_rows = PartRows(rows, panels, tasks, kMinPartRows);
  const int32_t parts = (rows + part_rows - 1) / part_rows;
  const size_t row_bytes = w.k * element_bytes();
  pool_->ParallelFor(panels * parts, [&](int task, int thread) {
    // Neighbouring tasks share the panel.
    const int32_t panel = task / parts;
    const GemmShape& shape = panel + 1 == panels ? *shapes.last : *shapes.whole;
    GemmThread& self = *threads_[thread];
    const std::byte* const data = packed.At(w.panel_offset(panel));
    SlicedPanel sliced;
    sliced.k = w.k;
    sliced.dtype = dtype();
    sliced.sums = shape.sum_order();
    if (HasSlices(w)) {
      sliced.AddCodes(w, panel, data);
    } else {
      sliced.numbers = data;
      sliced.order = shape.packed_order();
      sliced.count = shape.width() / kStripColumns;
      if (w.quantized()) {
        std::byte* const numbers = AlignScratch(self.panel.data());
        shape.Dequantize(w, panel, data, numbers, nullptr, self.stream, thread);
        sliced.numbers = numbers;
      } else if (const int next = (task + pool_->num_threads()) / parts;
                 next < panels && next != panel) {
        sliced.next = packed.At(w.panel_offset(next));
      }
    }
    const int32_t end = std::min(rows, (task % parts + 1) * part_rows);
    for (int32_t row = task % parts * part_rows; row < end; row += kSliceRows) {
      const int32_t some = std::min(kSliceRows, end - row);
      MultiplyPanel(sliced, static_cast<const std::byte*>(a) + row * row_bytes,
                    some, self.slices.get());
      for (int32_t first = 0; first < some; first += kTileRows) {
        float* const tile = self.slices->total + first * kPanelColumns;
        const int32_t valid = std::min(kTileRows, some - first);
        CloseRows(valid, shape.n(), kPanelColumns, tile);
        epilogue(row + first, valid, w.panel_begin(panel), shape.n(), tile);
      }
    }
  });
}

absl::Status GemmEngine::MultiplyFull(const MatrixLayout& w,
                                      const PanelShapes& shapes,
                                      const PackedView& packed, const void* a,
                                      int32_t rows, Epilogue epilogue) {
  // With many threads and few panels, tiles are smaller: all have work.
  const int32_t panels = w.num_panels();
  int32_t tile_rows = kTileRows;
  while (tile_rows / 2 >= kMinSplitRows && shapes.HaveTile(tile_rows / 2) &&
         panels * ((rows + tile_rows - 1) / tile_rows) <
             3 * pool_->num_threads() &&
         rows > kMinSplitRows) {
    tile_rows /= 2;
  }
  const int32_t tiles = (rows + tile_rows - 1) / tile_rows;
  const size_t row_bytes = w.k * element_bytes();
  pool_->ParallelFor(panels * tiles, [&](int task, int thread) {
    if (thread != 0) omp_set_num_threads(1);  // the pool's own thread
    // Neighbouring tasks share the panel.
    const int32_t panel = task / tiles;
    const GemmShape& shape = panel + 1 == panels ? *shapes.last : *shapes.whole;
    const int32_t row = task % tiles * tile_rows;
    const int32_t valid = std::min(tile_rows, rows - row);
    GemmThread& self = *threads_[thread];
    const dnnl_status_t status =
        shape.Run(shape.TileFor(valid), packed.At(w.panel_offset(panel)),
                  static_cast<const std::byte*>(a) + row * row_bytes, self.tile,
                  self.scratch(), self.stream, thread);
    if (status != dnnl_success) {
      error_.store(status);
      return;
    }
    CloseRows(valid, shape.n(), shape.width(), self.tile);
    epilogue(row, valid, w.panel_begin(panel), shape.n(), self.tile);
  });
  return Error();
}

absl::Status GemmEngine::MultiplyQuantized(const MatrixLayout& w,
                                           const PanelShapes& shapes,
                                           const PackedView& packed,
                                           const void* a, int32_t rows,
                                           Epilogue epilogue) {
  const int32_t panels = w.num_panels();
  const int32_t unit = shapes.HaveTile(kMinPartRows) ? kMinPartRows : kTileRows;
  const int32_t part_rows =
      PartRows(rows, panels, kTasks * pool_->num_threads(), unit);
  const int32_t parts = (rows + part_rows - 1) / part_rows;
  const size_t row_bytes = w.k * element_bytes();
  pool_->ParallelFor(panels * parts, [&](int task, int thread) {
    if (thread != 0) omp_set_num_threads(1);  // the pool's own thread
    const int32_t panel = task / parts;
    const GemmShape& shape = panel + 1 == panels ? *shapes.last : *shapes.whole;
    GemmThread& self = *threads_[thread];
    const int32_t begin = task % parts * part_rows;
    const int32_t end = std::min(rows, begin + part_rows);
    std::byte* weights = AlignScratch(self.panel.data());
    dnnl_status_t status =
        shape.Dequantize(w, panel, packed.At(w.panel_offset(panel)), weights,
                         AlignScratch(self.plain.data()), self.stream, thread);
    for (int32_t row = begin; row < end; row += kTileRows) {
      const int32_t valid = std::min(kTileRows, end - row);
      if (status == dnnl_success) {
        status = shape.Run(shape.TileFor(valid), weights,
                           static_cast<const std::byte*>(a) + row * row_bytes,
                           self.tile, self.scratch(), self.stream, thread);
      }
      if (status != dnnl_success) {
        error_.store(status);
        return;
      }
      CloseRows(valid, shape.n(), shape.width(), self.tile);
      epilogue(row, valid, w.panel_begin(panel), shape.n(), self.tile);
    }
  });
  return Error();
}

absl::Status GemmEngine::Error() const {
  if (const int status = error_.load(); status != 0) {
    return Internal("oneDNN: a product failed with status ", status);
  }
  return absl::OkStatus();
}

absl::Status GemmEngine::Dequantize(const MatrixLayout& w,
                                    const PackedView& packed,
                                    const MatrixLayout& full,
                                    std::byte* out_packed, int first_panel,
                                    int num_panels) {
  if (!w.quantized() || full.quantized() || w.n != full.n || w.k != full.k ||
      w.panel_width != full.panel_width) {
    return Internal("cannot dequantize ", w.n, " x ", w.k, " in format ",
                    WeightFormatName(w.format), " to ", full.n, " x ", full.k,
                    " in format ", WeightFormatName(full.format));
  }
  SLUICE_ASSIGN_OR_RETURN(const PanelShapes shapes, ShapesOf(w));
  OneOpenMpThread guard;
  pool_->ParallelFor(num_panels, [&](int task, int thread) {
    if (thread != 0) omp_set_num_threads(1);  // the pool's own thread
    const int panel = first_panel + task;
    const GemmShape& shape =
        panel + 1 == w.num_panels() ? *shapes.last : *shapes.whole;
    std::byte* out = out_packed + full.panel_offset(panel);
    GemmThread& self = *threads_[thread];
    const dnnl_status_t status =
        shape.Dequantize(w, panel, packed.At(w.panel_offset(panel)), out,
                         AlignScratch(self.plain.data()), self.stream, thread);
    if (status != dnnl_success) error_.store(status);
    std::fill(out + shape.packed_bytes(), out + full.panel_bytes(panel),
              std::byte{});
  });
  return Error();
}

std::string GemmEngine::LayoutKey() const {
  const dnnl_version_t& version = *dnnl::version();
  // Create() made this shape.
  const auto& probe = shapes_.at({64, 64});
  return absl::StrCat("format ", kFormatVersion, " ", DTypeName(dtype()),
                      " panel ", kPanelWidth, " oneDNN ", version.major, ".",
                      version.minor, ".", version.patch, " ", version.hash,
                      " isa ", static_cast<int>(dnnl::get_effective_cpu_isa()),
                      " ", PackingName(probe->packed_desc()));
}

size_t GemmEngine::scratch_bytes() const {
  size_t bytes = 0;
  for (const auto& thread : threads_) {
    bytes += sizeof(GemmThread) + thread->scratchpad.size() +
             thread->panel.size() + thread->plain.size() +
             (thread->slices == nullptr ? 0 : sizeof(SliceSpace));
  }
  return bytes;
}

}  // namespace sluice
