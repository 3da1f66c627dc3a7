#include "runtime/placement/backend_space.h"

#include <algorithm>

#include "common/blocks.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/placement/slice_space.h"

namespace sluice {
namespace {

constexpr size_t kLine = 64;
// A thread's memory for GEMMs: the tile that a call gives, and the scratch of
// oneDNN's kernels, which is next to nothing for most and a few tiles of inputs
// in another order for some.
constexpr size_t kGemmScratch =
    sizeof(float) * kGemmTileRows * kPanelColumns + (size_t{32} << 10);

// Returns the width of q, of all heads and of the rank's.
int64_t QueryWidth(const DecoderSpec& spec) {
  return int64_t{spec.num_heads} * spec.head_dim;
}
int64_t QueryWidth(const DecoderSpec& spec, const TensorShard& shard) {
  return int64_t{shard.heads.size()} * spec.head_dim;
}
// Returns the bytes of a row of the rank's q, k and v, and sinks.
size_t QkvBytes(const DecoderSpec& spec, const TensorShard& shard) {
  const int64_t sinks = spec.attention_sinks ? shard.heads.size() : 0;
  return sizeof(float) *
         (QueryWidth(spec, shard) +
          2 * int64_t{shard.kv_heads.size()} * spec.head_dim + sinks);
}
// Returns the width of what the ranks gather of attention.
int64_t GatheredWidth(const DecoderSpec& spec, const TensorShard& shard) {
  return shard.divides_heads ? QueryWidth(spec) : 0;
}
bool HasHead(const DecoderSpec& spec, const BackendShape& shape) {
  return shape.layers.end == spec.num_layers;
}
size_t LogitsBytes(const DecoderSpec& spec, const BackendShape& shape) {
  if (!HasHead(spec, shape)) return 0;
  const int32_t columns =
      shape.tensor.leads() ? spec.vocab_size : shape.shard(spec).vocab.size();
  return sizeof(float) * shape.head_rows * columns;
}
size_t RotaryBytes(const DecoderSpec& spec, const BackendShape& shape) {
  size_t pairs = 0;
  for (const RotarySpec& rotary : spec.rotaries) pairs += rotary.dim / 2;
  return sizeof(float) * shape.max_model_len * pairs;
}
// Returns the bytes of a row of the buffer of normed rows beside its norm: what
// attention or MLP give, to be normed, and sums of heads' squares.
size_t NormedRowBytes(const DecoderSpec& spec) {
  const size_t output = spec.norms_outputs() ? spec.hidden_size : 0;
  const size_t sums = spec.qk_norm == QkNorm::kAllHeads
                          ? spec.num_heads + spec.num_kv_heads
                          : 0;
  return sizeof(float) * std::max(output, sums);
}

// Whether some matrix of the layers is so.
bool AnyMatrix(const std::vector<LayerLayout>& layers,
               bool (MatrixLayout::*is)() const) {
  for (const LayerLayout& layer : layers) {
    for (const MatrixLayout* w : layer.matrices()) {
      if ((w->*is)()) return true;
    }
    if ((layer.expert.up.*is)() || (layer.expert.down.*is)()) return true;
  }
  return false;
}

}  // namespace

PackedLayouts PackedLayouts::Of(const DecoderSpec& spec,
                                const BackendShape& shape,
                                const PanelRules& rules) {
  PackedLayouts layouts;
  const TensorShard shard = shape.shard(spec);
  std::vector<LayerSpec> kinds;
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerSpec of = spec.layer(layer);
    const auto kind =
        std::find_if(kinds.begin(), kinds.end(), [&](const LayerSpec& other) {
          return other.mixture == of.mixture && other.codes == of.codes;
        });
    layouts.layout_of.push_back(static_cast<int32_t>(kind - kinds.begin()));
    if (kind != kinds.end()) continue;
    kinds.push_back(of);
    layouts.layers.push_back(
        MakeLayerLayout(spec, of, shape.weight_format, shard, rules));
  }
  // Of a mixture most weights meet few rows of a micro-batch: GEMMs decode
  // them.
  if (layouts.quantized() && !spec.has_mixtures()) {
    layouts.dequantized =
        MakeLayerLayout(spec, {}, WeightFormat::kFull, shard, rules);
  }
  if (shape.layers.begin == 0 && shape.tensor.leads()) {
    layouts.embedding = MakeEmbeddingLayout(spec, shape.max_model_len, rules);
  }
  if (HasHead(spec, shape)) {
    size_t most = 0;
    for (const LayerLayout& layer : layouts.layers) {
      most = std::max({most, layer.core_bytes, layer.expert.bytes});
    }
    layouts.head =
        MakeHeadLayout(spec, shape.weight_format, shard, most, rules);
  }
  return layouts;
}

bool PackedLayouts::quantized() const {
  return AnyMatrix(layers, &MatrixLayout::quantized);
}

bool PackedLayouts::coded() const {
  return AnyMatrix(layers, &MatrixLayout::coded);
}

absl::Status PackedLayouts::ForEachMatrix(
    absl::FunctionRef<absl::Status(MatrixLayout* w)> visit) {
  std::vector<MatrixLayout*> all = {&embedding.project_in};
  const auto add = [&](LayerLayout& layer) {
    const auto matrices = layer.matrices();
    all.insert(all.end(), matrices.begin(), matrices.end());
    all.insert(all.end(), {&layer.expert.up, &layer.expert.down});
  };
  for (LayerLayout& layer : layers) add(layer);
  add(dequantized);
  for (HeadSectionLayout& section : head) {
    all.insert(all.end(), {&section.project_out, &section.head});
  }
  for (MatrixLayout* w : all) {
    if (w->n == 0) continue;
    if (absl::Status status = visit(w); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<MatrixLayout> PackedLayouts::Matrices() const {
  std::vector<MatrixLayout> all;
  for (const LayerLayout& layer : layers) {
    for (const MatrixLayout* w : layer.matrices()) {
      if (w->n > 0) all.push_back(*w);
    }
    for (const MatrixLayout* w : {&layer.expert.up, &layer.expert.down}) {
      if (w->n > 0) all.push_back(*w);
    }
  }
  if (embedding.project_in.n > 0) all.push_back(embedding.project_in);
  for (const HeadSectionLayout& section : head) {
    if (section.project_out.n > 0) all.push_back(section.project_out);
    if (section.head.n > 0) all.push_back(section.head);
  }
  return all;
}

size_t ExpertChoicesBytes(const DecoderSpec& spec, int64_t rows,
                          int32_t max_rows) {
  if (!spec.has_mixtures()) return 0;
  const MixtureSpec& mixture = spec.mixture;
  const auto choices = static_cast<size_t>(rows * mixture.experts_per_token);
  return 2 * sizeof(ExpertChoice) * choices +
         sizeof(float) * max_rows * mixture.experts +
         sizeof(int32_t) * 2 * (mixture.experts + 1);
}

AttentionScratchSizes::AttentionScratchSizes(int32_t head_dim,
                                             int32_t sparse_context)
    : stride(static_cast<int32_t>(RoundUpTo(head_dim, kKvGroup))),
      groups(stride / kKvGroup),
      score_stride(sparse_context == 0 ? 0
                                       : static_cast<int32_t>(RoundUpTo(
                                             sparse_context, kPageTokens)) +
                                             kPageTokens) {
  const size_t row = stride, scores = score_stride, rows = kAttentionRows;
  const size_t together = kAttentionGroupRows;
  parts = {sizeof(float) * rows * row,         // queries
           sizeof(float) * rows * row,         // accumulator
           sizeof(float) * (row + 1),          // a result in order
           sizeof(int32_t) * rows * row / 2,   // words of query codes
           sizeof(float) * rows * groups * 2,  // their units
           sizeof(float) * rows * (1 + groups) * kAttentionSumLanes,
           sizeof(float) * groups * kPageTokens,  // a page's scales
           sizeof(float) * groups * kPageTokens,  // its minima
           sizeof(float) * groups,                // its largest scales
           sizeof(int16_t) * together * groups * kPageTokens,  // weight codes
           sizeof(float) * together * groups,                  // their units
           sizeof(float) * together * scores,                  // scores
           sizeof(int32_t) * scores,  // positions that are kept
           sizeof(float) * scores,    // their weights
           sizeof(uint32_t) * (scores / kPageTokens)};  // masks
  bytes = kLine;
  for (const size_t part : parts) bytes += RoundUpTo(part, kLine);
}

CpuSpace::CpuSpace(const DecoderSpec& spec, const BackendShape& shape) {
  const size_t element = ElementBytes(shape.dtype);
  const PanelRules rules = PanelRules::Cpu(shape.dtype);
  const size_t rows = ReadableRows(shape.max_rows);
  const TensorShard shard = shape.shard(spec);
  const size_t qkv_row = QkvBytes(spec, shard);
  const bool one_slot = shape.attention_slots == 1;
  normed = rows * std::max({spec.hidden_size * element,
                            spec.embed_dim * ElementBytes(rules.dtype),
                            NormedRowBytes(spec)});
  attention = rows * QueryWidth(spec, shard) * element;
  qkv = one_slot ? 0 : rows * qkv_row;
  wide = rows *
         std::max<size_t>(
             one_slot ? qkv_row : 0,
             element * std::max<int64_t>({spec.widest_inner(), spec.embed_dim,
                                          GatheredWidth(spec, shard)}));
  logits = LogitsBytes(spec, shape);
  rotary = RotaryBytes(spec, shape);
  routed = mixed = 0;
  if (spec.has_mixtures()) {
    const auto mixture_rows = static_cast<size_t>(shape.mixture_rows);
    routed = mixture_rows * spec.hidden_size * element;
    mixed = sizeof(float) * (mixture_rows + 4) * spec.hidden_size;
  }
  gemm_threads = kGemmScratch;
  const bool codes = std::any_of(
      spec.layers.begin(), spec.layers.end(),
      [](const LayerSpec& layer) { return layer.codes != LayerCodes(); });
  const bool coded = codes || spec.head_codes != nullptr;
  if (shape.weight_format != WeightFormat::kFull || coded) {
    // A panel that is dequantized, of as many inputs as any has.
    const int64_t deepest = std::max<int64_t>(
        {spec.hidden_size, QueryWidth(spec), spec.widest_inner(),
         HasHead(spec, shape) ? spec.embed_dim : 0});
    gemm_threads +=
        kLine + rules.PanelBytes(kPanelColumns, static_cast<int32_t>(deepest),
                                 WeightFormat::kFull);
  }
  if (coded || rules.dtype == DType::kBFloat16) {
    gemm_threads += sizeof(SliceSpace);
  }
  gemm_threads *= shape.threads;
  const size_t attention_thread =
      AttentionScratchSizes(spec.head_dim,
                            shape.sparsity < 1 ? shape.max_model_len : 0)
          .bytes +
      sizeof(float) * kPageTokens * spec.head_dim;
  threads = gemm_threads + shape.threads * attention_thread +
            ExpertChoicesBytes(spec, shape.mixture_rows, shape.max_rows);
}

int32_t GpuSpace::DequantizedColumns(const MatrixLayout& w, size_t bytes,
                                     DType dtype) {
  const size_t panels =
      bytes / (size_t{1} * w.panel_width * w.k * ElementBytes(dtype));
  return static_cast<int32_t>(
      std::min<size_t>(w.n, std::max<size_t>(1, panels) * w.panel_width));
}

int32_t GpuSpace::PlannedContext(int32_t positions) {
  return static_cast<int32_t>(RoundUpTo(positions, 256));
}

size_t GpuSpace::SegmentUpload(int32_t tokens, int32_t end) {
  // The segment counts twice, among all and among its kind; then its pages, its
  // first tile, its runs and its positions.
  return 2 * kSegmentBytes + sizeof(int32_t) * (PagesOf(end) + 1) +
         kRunBytes * (PagesOf(tokens) + 1) + sizeof(int32_t) * tokens;
}

size_t GpuSpace::BatchUpload() {
  constexpr size_t kParts = 7, kPartAlignment = 16;
  return kParts * kPartAlignment + sizeof(int32_t);
}

size_t GpuSpace::AttentionUpload(int32_t max_rows, int32_t max_context) {
  // This is enough for many sequences that decode.
  constexpr size_t kEnough = size_t{1} << 20;
  return BatchUpload() +
         std::max(SegmentUpload(max_rows, max_context),
                  std::min(kEnough, max_rows * SegmentUpload(1, max_context)));
}

GpuSpace::GpuSpace(const DecoderSpec& spec, const BackendShape& shape,
                   const PackedLayouts& layouts) {
  const size_t element = ElementBytes(shape.dtype);
  const size_t rows = shape.max_rows, head_rows = shape.head_rows;
  const bool quantized = shape.weight_format != WeightFormat::kFull;
  const bool one_slot = shape.attention_slots == 1;
  const size_t few = quantized ? std::min<size_t>(rows, kFewRows) : 0;
  const size_t up = layouts.layers.front().up.n;
  const TensorShard shard = shape.shard(spec);
  const size_t qkv_row = QkvBytes(spec, shard);
  normed = rows * std::max(std::max(spec.hidden_size, spec.embed_dim) * element,
                           NormedRowBytes(spec));
  attention = rows * QueryWidth(spec, shard) * element;
  qkv = one_slot ? 0 : rows * qkv_row;
  rotary = RotaryBytes(spec, shape);
  wide = std::max({one_slot ? rows * qkv_row : 0, rows * up * element,
                   few * up * sizeof(float),
                   head_rows * spec.embed_dim * element});
  inner = (spec.gated_mlp ? rows : few) * shard.inner.size() * element;
  exchange = 0;
  if (shape.tensor.ranks > 1) {
    const ExchangeBounds bounds = ExchangeBounds::Of(
        spec, shape.weight_format, shape.tensor.ranks, shape.dtype);
    exchange =
        rows *
        std::max(
            {GreatestPart(bounds.inner), GreatestPart(bounds.x),
             GreatestPart(bounds.q_squares), GreatestPart(bounds.k_squares),
             shard.divides_heads ? GreatestPart(bounds.heads) : size_t{0}});
    if (HasHead(spec, shape)) {
      exchange = std::max(exchange, head_rows * GreatestPart(bounds.logits));
    }
    exchange *= shape.tensor.ranks;
  }
  gathered = shape.tensor.ranks == 1
                 ? 0
                 : rows * element *
                       std::max<int64_t>(spec.intermediate_size,
                                         GatheredWidth(spec, shard));
  logits = LogitsBytes(spec, shape);
  const bool samples = logits > 0 && shape.tensor.leads();
  answers = samples ? head_rows * kTokenSampleBytes : 0;
  // Answers of less than a page would not be pinned.
  host_answers = samples ? std::max<size_t>(kDiskBlockBytes, answers) : 0;

  workspace = dequantized = counters = 0;
  for (const MatrixLayout& w : layouts.Matrices()) {
    workspace =
        std::max(workspace,
                 std::min(kMaxGemms, kMaxSplits * rows * w.n * sizeof(float)));
    if (w.format == WeightFormat::kFull) continue;
    const size_t groups = CeilDiv(w.n, kPanelGroup);
    const size_t splits = std::min<size_t>(
        CeilDiv(w.k, 2) / kMinPairs,
        CeilDiv(size_t{kBlocksPerProcessor} * kMaxProcessors, groups));
    if (splits > 1) {
      workspace = std::max(workspace, sizeof(float) * splits * few * w.n);
    }
    const size_t columns = DequantizedColumns(w, kMaxDequantized, shape.dtype);
    dequantized = std::max(dequantized, columns * w.k * element);
    counters = std::max(counters, sizeof(int32_t) * groups);
  }
  // Splits of sequences, of as many as there are processors for, each with a
  // result and two sums for each head.
  const int32_t context = PlannedContext(shape.max_model_len);
  const size_t pages = PagesOf(context) + 1;
  size_t for_attention = 0;
  for (size_t sequences = 1; sequences <= rows; sequences *= 2) {
    const size_t wanted = CeilDiv(size_t{kBlocksPerProcessor} * kMaxProcessors,
                                  sequences * shard.kv_heads.size());
    const size_t splits =
        std::min(CeilDiv(pages, kMinSplitPages),
                 std::max(wanted, CeilDiv(pages, kMaxSplitPages)));
    if (splits == 1) continue;
    for_attention =
        std::max(for_attention, sizeof(float) * splits * sequences *
                                    shard.heads.size() * (spec.head_dim + 2));
  }
  for_attention = std::min(for_attention, kMaxAttention);
  if (shape.sparsity < 1) {
    // Scores and positions that are kept. One sequence must have room, all may.
    const size_t one = size_t{8} * shard.heads.size() * RoundUpTo(context, 4);
    for_attention =
        std::max({for_attention, one, std::min(kMaxAttention, one * rows)});
  }
  workspace = std::max(workspace, for_attention);
  const size_t tokens = sizeof(int32_t) * rows;
  const size_t sampled = samples ? kRowSampleBytes * head_rows : 0;
  upload_part = RoundUpTo(
      std::max({2 * tokens, sampled,
                AttentionUpload(shape.max_rows, shape.max_model_len)}),
      kUploadAlignment);
  step_data = 2 * upload_part;
}

}  // namespace sluice
