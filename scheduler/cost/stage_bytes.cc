#include "scheduler/cost/stage_bytes.h"

#include <algorithm>
#include <numeric>

// Each formula names the place in the runtime that it follows.

namespace sluice {
namespace {

constexpr int64_t kDiskBlock = 4096;
constexpr int64_t kCacheLine = 64;
// GemmEngine (runtime/kernels/cpu/gemm.h).
constexpr int64_t kPanelWidth = 128;
constexpr int64_t kTileRows = 128;
constexpr int64_t kSpareRows = 32;
// oneDNN's packed panels are whole blocks of so many columns and inputs.
constexpr int64_t kPackedBlock = 64;
// What oneDNN's kernels take for themselves, for each thread: between nothing
// and the inputs of a tile in another order.
constexpr int64_t kKernelScratch = 16 << 10;
// PanelCodec (runtime/quant/panel_codec.cc).
constexpr int64_t kCodecHeader = 64;
constexpr int64_t kCodecColumns = 16;
constexpr int64_t kGroup = 64;
constexpr int64_t kGroupBytes = 4;
// Attend's rows and vector widths (attention_scratch.h).
constexpr int64_t kAttentionRows = 32;
constexpr int64_t kGroupRows = 8;
constexpr int64_t kSumLanes = 16;
// EmbeddingStore (runtime/exec/weights/embedding_store.cc).
constexpr int64_t kRowsTogether = 256;
constexpr int64_t kCheckBytes = int64_t{4} << 20;
// WeightPacker (runtime/weights/weight_packer.cc).
constexpr int64_t kTableRows = 64;
// Buffers of a backend: rows for norms, attention, q, k and v in two slots,
// MLP; logits; two tables of angles; an expanded layer.
constexpr int64_t kDeviceBuffers = 10;
// Rows of the position table before position 0, at most (OPT: 2).
constexpr int64_t kPositionOffset = 2;
constexpr int64_t kLeastHeadSection = 1 << 20;  // CpuBackend
// ImageProducts, BatchAttention and UploadRing (runtime/kernels/cuda).
constexpr int64_t kGpuSplits = 16;
constexpr int64_t kGpuProducts = int64_t{32} << 20;
constexpr int64_t kGpuExpanded = int64_t{64} << 20;
constexpr int64_t kGpuQuantizedRows = 16;
constexpr int64_t kGpuAttention = int64_t{16} << 20;
constexpr int64_t kGpuUpload = int64_t{1} << 20;
constexpr int64_t kGpuRingParts = 4;
constexpr int64_t kGpuStepParts = 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }
int64_t ElementBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// A panel of `columns` columns of k inputs.
int64_t PanelBytes(int64_t columns, int64_t k, DType dtype,
                   WeightFormat format) {
  if (format == WeightFormat::kFull) {
    const int64_t width =
        columns == kPanelWidth ? columns : RoundUp(columns, kPackedBlock);
    return width * RoundUp(k, kPackedBlock) * ElementBytes(dtype);
  }
  const int64_t inputs = RoundUp(k, 2);
  const int64_t codes = RoundUp(columns, kCodecColumns) * inputs;
  return RoundUp(kCodecHeader +
                     CeilDiv(columns, kGroup) * inputs * kGroupBytes +
                     (format == WeightFormat::kInt4 ? codes / 2 : codes),
                 kCacheLine);
}

int64_t MatrixBytes(int64_t n, int64_t k, DType dtype, WeightFormat format) {
  const int64_t rest = n % kPanelWidth;
  return n / kPanelWidth * PanelBytes(kPanelWidth, k, dtype, format) +
         (rest > 0 ? PanelBytes(rest, k, dtype, format) : 0);
}

int64_t VectorBytes(int64_t length) { return RoundUp(4 * length, kCacheLine); }

// MakeLayerLayout, with all the biases that a model may have.
int64_t LayerBytes(const ModelShape& m, DType dtype, WeightFormat format) {
  const int64_t qkv = m.query_width() + 2 * m.kv_width();
  const int64_t up = int64_t{m.intermediate} * (m.gated_mlp ? 2 : 1);
  const int64_t vectors = 4 * VectorBytes(m.hidden) + VectorBytes(qkv) +
                          VectorBytes(up) + 2 * VectorBytes(m.hidden);
  return RoundUp(vectors + MatrixBytes(qkv, m.hidden, dtype, format) +
                     MatrixBytes(m.hidden, m.query_width(), dtype, format) +
                     MatrixBytes(up, m.hidden, dtype, format) +
                     MatrixBytes(m.hidden, m.intermediate, dtype, format),
                 kDiskBlock);
}

// MakeHeadLayout: a head of quantized layers has 8 bits.
WeightFormat HeadFormat(WeightFormat format) {
  return format == WeightFormat::kFull ? WeightFormat::kFull
                                       : WeightFormat::kInt8;
}

// Sections of columns, the first with what comes before the matrix.
struct HeadSections {
  int64_t count = 0;
  int64_t first = 0;  // bytes
  int64_t other = 0;  // of each of the others; the last may be smaller
  int64_t last = 0;
  int64_t bytes() const {
    return count == 1 ? first : first + (count - 2) * other + last;
  }
};

HeadSections HeadSectionsOf(const ModelShape& m, DType dtype,
                            WeightFormat format, int64_t layer_bytes) {
  const WeightFormat head = HeadFormat(format);
  const int64_t whole = MatrixBytes(m.vocab, m.embed, dtype, head);
  const int64_t panels = CeilDiv(m.vocab, kPanelWidth);
  const int64_t wanted =
      CeilDiv(whole, std::max(layer_bytes, kLeastHeadSection));
  const int64_t section_panels = CeilDiv(panels, wanted);
  const int64_t columns =
      std::min<int64_t>(m.vocab, section_panels * kPanelWidth);
  HeadSections sections;
  sections.count = CeilDiv(panels, section_panels);
  sections.other =
      RoundUp(MatrixBytes(columns, m.embed, dtype, head), kDiskBlock);
  sections.last = RoundUp(
      MatrixBytes(m.vocab - (sections.count - 1) * section_panels * kPanelWidth,
                  m.embed, dtype, head),
      kDiskBlock);
  sections.first =
      2 * VectorBytes(m.hidden) + MatrixBytes(columns, m.embed, dtype, head);
  if (m.embed != m.hidden) {
    sections.first +=
        MatrixBytes(m.embed, m.hidden, dtype, WeightFormat::kFull);
  }
  sections.first = RoundUp(sections.first, kDiskBlock);
  return sections;
}

// PlacementGranule and ImageFile::FileBytes.
int64_t FileBytes(int64_t image) {
  int64_t granule = kDiskBlock;
  while (granule < 16 * kDiskBlock && granule * 512 <= image) granule *= 2;
  // A key of at most 1024 bytes, and fields beside the checksums.
  return RoundUp(image, kDiskBlock) +
         RoundUp(1024 + 512 + 8 * CeilDiv(image, granule), kDiskBlock);
}

// KvLayout::layer_page_bytes.
int64_t LayerPageBytes(const ModelShape& m, KvFormat format, bool disk) {
  const int64_t d = m.head_dim;
  const int64_t scales = CeilDiv(d, kGroup) * kGroupBytes * kPagePositions;
  int64_t head = 0;
  switch (format) {
    case KvFormat::kFloat32:
    case KvFormat::kBFloat16:
    case KvFormat::kFloat16: {
      const int64_t part =
          d * kPagePositions * (format == KvFormat::kFloat32 ? 4 : 2);
      head = part + RoundUp(part, kCacheLine);
      break;
    }
    case KvFormat::kInt8:
      head = RoundUp(d, 4) * kPagePositions + scales +
             RoundUp(d * kPagePositions, kCacheLine) + scales;
      break;
    case KvFormat::kInt4:
      head = RoundUp(d, 4) * kPagePositions / 2 + scales +
             RoundUp((d + 1) / 2 * kPagePositions, kCacheLine) + scales;
      break;
  }
  return RoundUp(m.kv_heads * head, disk ? kDiskBlock : kCacheLine);
}

// AttentionScratch::Bytes, and the rotated rows.
int64_t AttentionScratchBytes(int64_t head_dim, int64_t sparse_context) {
  const int64_t stride = RoundUp(head_dim, kGroup);
  const int64_t groups = stride / kGroup;
  const int64_t scores =
      sparse_context == 0
          ? 0
          : RoundUp(sparse_context, kPagePositions) + kPagePositions;
  const int64_t floats =
      2 * kAttentionRows * stride + stride + 1 + kAttentionRows * stride / 2 +
      kAttentionRows * groups * 2 + kAttentionRows * (1 + groups) * kSumLanes +
      2 * groups * kPagePositions + groups + kGroupRows * groups +
      (kGroupRows + 2) * scores + scores / kPagePositions;
  return 4 * floats + 2 * kGroupRows * groups * kPagePositions +
         16 * kCacheLine + kPagePositions * head_dim * 4;
}

int64_t Sequences(const StageCase& stage) {
  return int64_t{stage.policy.gbs} * stage.policy.num_microbatches *
         stage.num_blocks;
}

// In stage_loader.cc.
int64_t HeadRows(const StageCase& stage) {
  return std::min({int64_t{128}, int64_t{stage.policy.max_step_tokens},
                   std::max(int64_t{32}, Sequences(stage))});
}

// CpuBackend::Initialize: what lies where it computes, and what its threads
// have.
struct Workspace {
  int64_t buffers = 0;
  int64_t threads = 0;
};
Workspace WorkspaceOf(const StageCase& stage, bool last, int slots) {
  const ModelShape& m = *stage.model;
  const Policy& p = stage.policy;
  const int64_t element = ElementBytes(p.dtype);
  const int64_t rows = RoundUp(p.max_step_tokens, kTileRows) + kSpareRows;
  const int64_t q = m.query_width();
  const int64_t qkv = 4 * (q + 2 * m.kv_width());
  const int64_t wide = std::max(slots == 1 ? qkv : 0,
                                element * std::max(m.intermediate, m.embed));
  Workspace space;
  space.buffers = rows * (element * std::max(m.hidden, m.embed) +
                          slots * q * element + wide);
  if (slots > 1) space.buffers += slots * rows * qkv;
  if (last) {
    space.buffers += 4 * HeadRows(stage) * m.vocab;
  }
  // Angles for rotary positions, of at most a head's size.
  if (m.position_rows == 0) {
    space.buffers += 4 * int64_t{stage.longest} * m.head_dim;
  }
  // A tile of float32; a dequantized panel.
  const int64_t k = std::max<int64_t>({m.hidden, q, m.intermediate, m.embed});
  int64_t thread =
      4 * kTileRows * kPanelWidth + kKernelScratch +
      AttentionScratchBytes(m.head_dim, p.sparsity < 1 ? stage.longest : 0);
  if (p.compress_weights != WeightFormat::kFull) {
    thread += PanelBytes(kPanelWidth, k, p.dtype, WeightFormat::kFull);
  }
  const int32_t threads =
      p.compute_threads > 0 ? p.compute_threads : stage.machine->threads;
  space.threads = threads * thread;
  return space;
}

// CudaBackend::Initialize: what lies on the device, and what is copied to it
// from as much on the host. Never less: what plans of launches want is taken at
// its most.
struct GpuSpace {
  int64_t buffers = 0;
  int64_t uploads = 0;
};
GpuSpace GpuSpaceOf(const StageCase& stage, bool last, int slots) {
  const ModelShape& m = *stage.model;
  const Policy& p = stage.policy;
  const bool quantized = p.compress_weights != WeightFormat::kFull;
  const int64_t element = ElementBytes(p.dtype);
  const int64_t rows = p.max_step_tokens;
  const int64_t few = quantized ? std::min(rows, kGpuQuantizedRows) : 0;
  const int64_t q = m.query_width();
  const int64_t qkv = rows * 4 * (q + 2 * m.kv_width());
  const int64_t inner = m.intermediate;
  const int64_t up = inner * (m.gated_mlp ? 2 : 1);
  GpuSpace space;
  space.buffers =
      rows * element * (std::max(m.hidden, m.embed) + slots * q) +
      std::max({slots == 1 ? qkv : 0, rows * up * element, few * up * 4,
                HeadRows(stage) * m.embed * element}) +
      (m.gated_mlp ? rows : few) * inner * element;
  if (slots > 1) space.buffers += slots * qkv;
  if (last) space.buffers += 4 * HeadRows(stage) * m.vocab;
  if (m.position_rows == 0) {
    space.buffers += 4 * int64_t{stage.longest} * m.head_dim;
  }
  const int64_t widest = std::max<int64_t>(
      {q + 2 * m.kv_width(), up, m.hidden, m.embed, last ? m.vocab : 0});
  // Sparse attention has a score of each head for each position; one sequence
  // has room in any case.
  const int64_t attention =
      p.sparsity < 1 ? std::max(kGpuAttention, 8 * int64_t{m.heads} *
                                                   RoundUp(stage.longest, 256))
                     : kGpuAttention;
  space.buffers += std::max(
      std::min(kGpuProducts, kGpuSplits * rows * widest * 4), attention);
  if (quantized) {
    const int64_t deepest =
        std::max<int64_t>({m.hidden, q, m.intermediate, m.embed});
    space.buffers +=
        std::max(std::min(kGpuExpanded, widest * deepest * element),
                 kPanelWidth * deepest * element) +
        RoundUp(4 * widest, kDiskBlock);
  }
  // Positions, segments, runs and page numbers.
  const auto segment = [](int64_t tokens, int64_t end) {
    return 48 + 4 * (CeilDiv(end, kPagePositions) + 1) +
           12 * (CeilDiv(tokens, kPagePositions) + 1) + 4 * tokens;
  };
  const int64_t upload =
      kDiskBlock +
      std::max({8 * rows, segment(rows, stage.longest),
                std::min(kGpuUpload, rows * segment(1, stage.longest))});
  space.uploads = (kGpuRingParts + kGpuStepParts) * upload;
  space.buffers += space.uploads;
  return space;
}

}  // namespace

StageBytes StageBytesOf(const StageCase& stage) {
  const ModelShape& m = *stage.model;
  const Policy& p = stage.policy;
  const bool first = stage.layers.begin == 0;
  const bool last = stage.layers.end == m.num_layers;
  const bool device = stage.machine->has_device();
  const int64_t element = ElementBytes(p.dtype);
  const int64_t q = m.query_width();

  int64_t embedding = 0, head = 0;
  HeadSections sections;
  const int64_t layer = LayerBytes(m, p.dtype, p.compress_weights);
  int64_t part = std::max(
      {PanelBytes(kPanelWidth, m.hidden, p.dtype, p.compress_weights),
       PanelBytes(kPanelWidth, q, p.dtype, p.compress_weights),
       PanelBytes(kPanelWidth, m.intermediate, p.dtype, p.compress_weights),
       VectorBytes(std::max<int64_t>(q + 2 * m.kv_width(),
                                     2 * int64_t{m.intermediate}))});
  if (last) {
    sections = HeadSectionsOf(m, p.dtype, p.compress_weights, layer);
    head = sections.bytes();
    part = std::max(part, PanelBytes(kPanelWidth, m.embed, p.dtype,
                                     HeadFormat(p.compress_weights)));
  }
  StageBytes bytes;
  if (first) {
    const int64_t table = RoundUp(element * m.vocab * m.embed, kCacheLine);
    embedding = table;
    if (m.position_rows > 0) {
      embedding +=
          RoundUp(element * m.hidden *
                      std::min<int64_t>(m.position_rows,
                                        stage.longest + kPositionOffset),
                  kCacheLine);
    }
    if (m.embed != m.hidden) {
      embedding += MatrixBytes(m.hidden, m.embed, p.dtype, WeightFormat::kFull);
    }
    embedding = RoundUp(embedding, kDiskBlock);
    const int64_t row = element * m.embed;
    const int64_t blocks =
        row % kDiskBlock == 0 ? row : RoundUp(row, kDiskBlock) + kDiskBlock;
    bytes.embedding_rows = static_cast<double>(
        embedding - table / kDiskBlock * kDiskBlock + p.max_step_tokens * row +
        std::max(kRowsTogether * blocks, kCheckBytes));
    // Rows lie at multiples of their size: whole blocks, on average.
    bytes.embedding_read =
        static_cast<double>(row + kDiskBlock - std::gcd(row, kDiskBlock));
    bytes.embedding_file = static_cast<double>(FileBytes(embedding));
  }
  bytes.embedding = static_cast<double>(embedding);
  bytes.layer = static_cast<double>(layer);
  bytes.head = static_cast<double>(head);
  bytes.part = static_cast<double>(part);
  bytes.layer_file = static_cast<double>(FileBytes(layer));
  if (last) {
    bytes.head_sections = static_cast<int>(sections.count);
    bytes.head_first = static_cast<double>(sections.first);
    bytes.head_other = static_cast<double>(sections.other);
    bytes.head_last = static_cast<double>(sections.last);
    bytes.head_file = static_cast<double>(
        FileBytes(sections.first) +
        std::max<int64_t>(0, sections.count - 2) * FileBytes(sections.other) +
        (sections.count > 1 ? FileBytes(sections.last) : 0));
  }
  if (p.compress_weights != WeightFormat::kFull && p.num_microbatches > 1) {
    bytes.expanded =
        static_cast<double>(LayerBytes(m, p.dtype, WeightFormat::kFull));
  }
  // Without a disk tier pages need no disk's alignment.
  bytes.layer_page = static_cast<double>(
      LayerPageBytes(m, KvFormatOf(p), stage.machine->disk_bytes > 0));
  bytes.sequence_pages = CeilDiv(std::max(1, stage.longest), kPagePositions);
  bytes.sequences = Sequences(stage);
  bytes.head_rows = HeadRows(stage);
  bytes.activations = 4.0 * p.max_step_tokens * m.hidden;

  // AttentionSlots in stage_loader.cc: with a device two micro-batches may be
  // under way.
  const int slots =
      device && p.overlap && p.attention_site == AttentionSite::kHost ? 2 : 1;
  const Workspace space = WorkspaceOf(stage, last, slots);
  if (device) {
    // The host's backend has no head; all logits may come back to it. On the
    // device each buffer is whole blocks.
    const Workspace beside = WorkspaceOf(stage, false, slots);
    const bool gpu = stage.machine->has_gpu();
    const GpuSpace on_gpu = gpu ? GpuSpaceOf(stage, last, slots) : GpuSpace();
    bytes.workspace = static_cast<double>(
        (gpu ? on_gpu.buffers : space.buffers) + kDeviceBuffers * kDiskBlock);
    bytes.host_workspace = static_cast<double>(space.threads + on_gpu.uploads +
                                               beside.buffers + beside.threads);
    if (last) {
      bytes.host_workspace +=
          static_cast<double>(4 * bytes.head_rows * m.vocab);
    }
  } else {
    bytes.workspace = static_cast<double>(space.buffers + space.threads);
  }
  const int32_t threads =
      p.compute_threads > 0 ? p.compute_threads : stage.machine->threads;
  // Rows as they are read, and a panel as it is packed.
  const auto panels = [&](int64_t inputs, WeightFormat format) {
    return static_cast<double>(
        threads * (4 * kPanelWidth * inputs +
                   PanelBytes(kPanelWidth, inputs, p.dtype, format)));
  };
  bytes.layer_packing = panels(std::max<int64_t>({m.hidden, q, m.intermediate}),
                               p.compress_weights);
  if (last) {
    bytes.head_packing =
        panels(std::max(m.embed, m.hidden), HeadFormat(p.compress_weights));
  }
  if (first) {
    bytes.table_packing = std::max(
        static_cast<double>((4 + element) * threads * kTableRows *
                            std::max(m.embed, m.hidden)),
        m.embed == m.hidden ? 0 : panels(m.embed, WeightFormat::kFull));
  }
  return bytes;
}

}  // namespace sluice
