#include "runtime/placement/layer_layout.h"

#include <algorithm>
#include <span>

#include "common/blocks.h"
#include "runtime/placement/weight_placement.h"

namespace sluice {
namespace {

// Sections of the head are no smaller for the sake of small units.
constexpr size_t kMinHeadSection = size_t{1} << 20;

// Lays parts one after the other.
class Builder {
 public:
  explicit Builder(const PanelRules& rules) : rules_(rules) {}

  VectorLayout Vector(bool present, int64_t length,
                      DType dtype = DType::kFloat32) {
    if (!present) return {};
    return {Bytes(length * ElementBytes(dtype)), length, dtype};
  }

  NormLayout Norm(bool weight, bool bias, int64_t length) {
    NormLayout norm;
    norm.weight = Vector(weight, length);
    norm.bias = Vector(bias, length);
    return norm;
  }

  // Without columns there is no matrix.
  MatrixLayout Matrix(int64_t n, int64_t k, WeightFormat format) {
    if (n == 0) return {};
    const MatrixLayout matrix = rules_.Layout(
        static_cast<int32_t>(n), static_cast<int32_t>(k), format, next_);
    next_ = RoundUpTo(matrix.offset + matrix.bytes, kPanelAlignment);
    return matrix;
  }

  MatrixLayout Coded(int64_t k, const std::array<CodedColumns, 3>& codes) {
    const MatrixLayout matrix =
        rules_.LayoutCoded(static_cast<int32_t>(k), codes, next_);
    next_ = RoundUpTo(matrix.offset + matrix.bytes, kPanelAlignment);
    return matrix;
  }

  size_t Bytes(size_t bytes) {
    const size_t offset = next_;
    next_ = RoundUpTo(next_ + bytes, kPanelAlignment);
    return offset;
  }

  size_t Finish() const { return RoundUpToDiskBlock(next_); }

 private:
  const PanelRules& rules_;
  size_t next_ = 0;
};

// Returns where the part at `offset` begins, vectors lying before matrices.
size_t PartOf(size_t offset, std::span<const VectorLayout* const> vectors,
              std::span<const MatrixLayout* const> matrices) {
  size_t begin = 0;
  for (const VectorLayout* v : vectors) {
    if (v->length > 0 && v->offset <= offset) begin = v->offset;
  }
  for (const MatrixLayout* m : matrices) {
    if (m->n == 0 || m->offset > offset) continue;
    begin = m->panel_offset(m->PanelAt(offset));
  }
  return begin;
}

// Returns columns in a format, or in none if their strips were not those of the
// whole matrix, which share scales.
CodedColumns Columns(ColumnRange range, const CodeFormat* format) {
  const bool shared =
      format != nullptr && format->scaled != nullptr && format->scaled->shared;
  return {range.size(),
          shared && range.begin % kStripColumns != 0 ? nullptr : format};
}

// Returns the codes that a matrix of these columns keeps; none, if it can't.
// Where gate and up take turns in a panel, both are in one format.
std::array<CodedColumns, 3> KeptCodes(const std::vector<CodedColumns>& slots,
                                      int64_t k, bool takes_turns) {
  std::array<CodedColumns, 3> kept;
  size_t count = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const CodedColumns& slot = slots[i];
    const bool whole = slot.columns % kStripColumns == 0;
    if (slot.format == nullptr || !slot.format->Fits(k) ||
        (!whole && (i + 1 < slots.size() || takes_turns))) {
      return {};
    }
    if (slot.columns == 0) continue;
    if (count > 0 && kept[count - 1].format == slot.format) {
      kept[count - 1].columns += slot.columns;
      continue;
    }
    if (count == kept.size() || (count > 0 && takes_turns)) return {};
    kept[count++] = slot;
  }
  return kept;
}

}  // namespace

VectorLayout& LayerLayout::vector(LayerVector part) {
  switch (part) {
    case LayerVector::kNorm1Weight:
      return norm1.weight;
    case LayerVector::kNorm1Bias:
      return norm1.bias;
    case LayerVector::kNorm2Weight:
      return norm2.weight;
    case LayerVector::kNorm2Bias:
      return norm2.bias;
    case LayerVector::kQNorm:
      return q_norm;
    case LayerVector::kKNorm:
      return k_norm;
    case LayerVector::kOutNorm:
      return out_norm;
    case LayerVector::kDownNorm:
      return down_norm;
    case LayerVector::kQkvBias:
      return qkv_bias;
    case LayerVector::kOutBias:
      return out_bias;
    case LayerVector::kUpBias:
      return up_bias;
    case LayerVector::kUpBiasTyped:
      return up_bias_typed;
    case LayerVector::kDownBias:
      return down_bias;
    case LayerVector::kSinks:
      return sinks;
    case LayerVector::kRouter:
      return router;
    case LayerVector::kRouterBias:
      return router_bias;
    case LayerVector::kChoiceBias:
      return choice_bias;
    case LayerVector::kSharedScore:
      break;
  }
  return shared_score;
}

MatrixLayout& LayerLayout::matrix(LayerMatrix part) {
  switch (part) {
    case LayerMatrix::kQkv:
      return qkv;
    case LayerMatrix::kOut:
      return out;
    case LayerMatrix::kUp:
      return up;
    case LayerMatrix::kDown:
      break;
  }
  return down;
}

std::array<VectorLayout*, kNumLayerVectors> LayerLayout::vectors() {
  std::array<VectorLayout*, kNumLayerVectors> all;
  for (int i = 0; i < kNumLayerVectors; ++i) {
    all[i] = &vector(static_cast<LayerVector>(i));
  }
  return all;
}

std::array<const VectorLayout*, kNumLayerVectors> LayerLayout::vectors() const {
  std::array<const VectorLayout*, kNumLayerVectors> all;
  const auto mine = const_cast<LayerLayout*>(this)->vectors();
  std::copy(mine.begin(), mine.end(), all.begin());
  return all;
}

std::array<MatrixLayout*, kNumLayerMatrices> LayerLayout::matrices() {
  std::array<MatrixLayout*, kNumLayerMatrices> all;
  for (int i = 0; i < kNumLayerMatrices; ++i) {
    all[i] = &matrix(static_cast<LayerMatrix>(i));
  }
  return all;
}

std::array<const MatrixLayout*, kNumLayerMatrices> LayerLayout::matrices()
    const {
  std::array<const MatrixLayout*, kNumLayerMatrices> all;
  const auto mine = const_cast<LayerLayout*>(this)->matrices();
  std::copy(mine.begin(), mine.end(), all.begin());
  return all;
}

size_t LayerLayout::PartBegin(size_t offset) const {
  if (experts == 0 || offset < core_bytes) {
    return PartOf(offset, vectors(), matrices());
  }
  const size_t begin =
      core_bytes + (offset - core_bytes) / expert.bytes * expert.bytes;
  const VectorLayout* const vectors[] = {&expert.up_bias, &expert.down_bias};
  const MatrixLayout* const matrices[] = {&expert.up, &expert.down};
  return begin + PartOf(offset - begin, vectors, matrices);
}

size_t HeadSectionLayout::PartBegin(size_t offset) const {
  const VectorLayout* const vectors[] = {&norm.weight, &norm.bias, &head_bias};
  const MatrixLayout* const matrices[] = {&project_out, &head};
  return PartOf(offset, vectors, matrices);
}

LayerLayout MakeLayerLayout(const DecoderSpec& spec, const LayerSpec& layer,
                            WeightFormat format, const TensorShard& shard,
                            const PanelRules& rules) {
  const LayerWeights weights = WeightsOf(spec, layer);
  const auto rows = [&](const std::vector<WeightSlot>& slots) {
    int64_t sum = 0;
    for (const WeightSlot& slot : slots) {
      sum += shard.RowsOf(slot, spec.head_dim).size();
    }
    return sum;
  };
  const auto length = [&](const LayerWeights::Vector& vector) {
    // Of rows that all ranks have.
    const int64_t columns = vector.slots.front().columns;
    return rows(vector.slots) * std::max<int64_t>(1, columns);
  };
  const auto matrix_of = [&](const LayerWeights::Matrix& matrix,
                             Builder& builder) {
    const int64_t k = matrix.slots.front().columns;
    std::array<CodedColumns, 3> kept;
    if (format == WeightFormat::kFull && rules.keeps_codes) {
      std::vector<CodedColumns> slots;
      for (const WeightSlot& slot : matrix.slots) {
        slots.push_back(Columns(shard.RowsOf(slot, spec.head_dim),
                                CodesOf(layer.codes, slot.role)));
      }
      kept = KeptCodes(slots, k,
                       matrix.part == LayerMatrix::kUp && spec.gated_mlp &&
                           rules.interleaves_gate());
    }
    return kept[0].format != nullptr
               ? builder.Coded(k, kept)
               : builder.Matrix(rows(matrix.slots), k, format);
  };

  LayerLayout layout;
  Builder builder(rules);
  for (const LayerWeights::Vector& vector : weights.vectors) {
    const int64_t n = length(vector);
    layout.vector(vector.part) = builder.Vector(true, n);
    if (vector.part == LayerVector::kUpBias && !spec.gated_mlp &&
        rules.wants_typed_bias()) {
      layout.up_bias_typed = builder.Vector(true, n, rules.dtype);
    }
  }
  for (const LayerWeights::Matrix& matrix : weights.matrices) {
    layout.matrix(matrix.part) = matrix_of(matrix, builder);
  }
  layout.core_bytes = layout.bytes = builder.Finish();
  if (weights.experts == 0) return layout;

  Builder of_expert(rules);
  ExpertLayout& expert = layout.expert;
  for (const LayerWeights::Vector& vector : weights.expert_vectors) {
    (vector.part == LayerVector::kUpBias ? expert.up_bias : expert.down_bias) =
        of_expert.Vector(true, length(vector));
  }
  for (const LayerWeights::Matrix& matrix : weights.expert_matrices) {
    (matrix.part == LayerMatrix::kUp ? expert.up : expert.down) =
        matrix_of(matrix, of_expert);
  }
  layout.experts = weights.experts;
  const size_t core = layout.core_bytes, one = of_expert.Finish();
  for (size_t granule = kDiskBlockBytes;; granule *= 2) {
    layout.core_bytes = RoundUpTo(core, granule);
    expert.bytes = RoundUpTo(one, granule);
    layout.bytes = layout.expert_begin(layout.experts);
    if (PlacementGranule(layout.bytes) <= granule) break;
  }
  return layout;
}

std::vector<HeadSectionLayout> MakeHeadLayout(const DecoderSpec& spec,
                                              WeightFormat format,
                                              const TensorShard& shard,
                                              size_t unit_bytes,
                                              const PanelRules& rules) {
  const WeightFormat head_format =
      format == WeightFormat::kFull ? WeightFormat::kFull : WeightFormat::kInt8;
  const bool coded = head_format == WeightFormat::kFull && rules.keeps_codes &&
                     KeptCodes({Columns(shard.vocab, spec.head_codes)},
                               spec.embed_dim, false)[0]
                             .format != nullptr;
  const auto matrix = [&](int64_t columns, Builder& builder) {
    return coded && columns > 0
               ? builder.Coded(
                     spec.embed_dim,
                     {{{static_cast<int32_t>(columns), spec.head_codes}}})
               : builder.Matrix(columns, spec.embed_dim, head_format);
  };
  Builder alone(rules);
  const MatrixLayout whole = matrix(shard.vocab.size(), alone);
  const auto panels = static_cast<size_t>(whole.num_panels());
  const size_t wanted = std::max<size_t>(
      1, CeilDiv(whole.bytes, std::max(unit_bytes, kMinHeadSection)));
  const size_t section_panels = std::max<size_t>(1, CeilDiv(panels, wanted));
  std::vector<HeadSectionLayout> sections;
  // A rank without columns has one section, too: what comes before the matrix.
  for (size_t panel = 0; panel < std::max<size_t>(1, panels);
       panel += section_panels) {
    HeadSectionLayout& section = sections.emplace_back();
    Builder builder(rules);
    int64_t columns = 0;
    if (panel == 0) {
      section.norm = builder.Norm(spec.final_norm && spec.has_norm_weight(),
                                  spec.final_norm && spec.has_norm_bias(),
                                  spec.hidden_size);
    }
    if (panels > 0) {
      const auto last =
          static_cast<int>(std::min(panels, panel + section_panels)) - 1;
      section.first_column = whole.panel_begin(static_cast<int>(panel));
      columns = whole.panel_end(last) - section.first_column;
      section.head_bias = builder.Vector(spec.head_bias, columns);
    }
    if (panel == 0 && spec.embed_dim != spec.hidden_size) {
      section.project_out =
          builder.Matrix(spec.embed_dim, spec.hidden_size, WeightFormat::kFull);
    }
    section.head = matrix(columns, builder);
    section.bytes = builder.Finish();
  }
  return sections;
}

EmbeddingLayout MakeEmbeddingLayout(const DecoderSpec& spec,
                                    int32_t max_model_len,
                                    const PanelRules& rules) {
  EmbeddingLayout layout;
  Builder builder(rules);
  const size_t element = ElementBytes(rules.table_dtype);
  layout.row_bytes = element * spec.embed_dim;
  if (rules.keeps_codes && spec.embedding_codes != nullptr &&
      spec.embed_dim == spec.hidden_size &&
      spec.embedding_codes->Fits(spec.embed_dim)) {
    layout.codes = spec.embedding_codes;
    layout.row_bytes = layout.codes->row_bytes(spec.embed_dim);
  }
  layout.table_bytes = layout.row_bytes * spec.vocab_size;
  layout.table = builder.Bytes(layout.table_bytes);
  if (spec.positions == PositionKind::kLearned) {
    layout.position_rows = int64_t{max_model_len} + spec.position_offset;
    layout.positions =
        builder.Bytes(element * layout.position_rows * spec.hidden_size);
  }
  if (spec.embed_dim != spec.hidden_size) {
    layout.project_in =
        builder.Matrix(spec.hidden_size, spec.embed_dim, WeightFormat::kFull);
  }
  layout.norm =
      builder.Norm(spec.embed_norm && spec.has_norm_weight(),
                   spec.embed_norm && spec.has_norm_bias(), spec.hidden_size);
  layout.bytes = builder.Finish();
  return layout;
}

}  // namespace sluice
