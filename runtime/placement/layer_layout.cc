#include "runtime/placement/layer_layout.h"

#include <algorithm>
#include <initializer_list>

#include "common/blocks.h"

namespace sluice {
namespace {

// Sections of the head are no smaller for the sake of small layers.
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
size_t PartOf(size_t offset, std::initializer_list<const VectorLayout*> vectors,
              std::initializer_list<const MatrixLayout*> matrices) {
  size_t begin = 0;
  for (const VectorLayout* v : vectors) {
    if (v->length > 0 && v->offset <= offset) begin = v->offset;
  }
  for (const MatrixLayout* m : matrices) {
    if (m->n == 0 || m->offset > offset) continue;
    const size_t panel = std::min<size_t>(
        m->num_panels() - 1, (offset - m->offset) / m->whole_panel_bytes);
    begin = m->panel_offset(static_cast<int>(panel));
  }
  return begin;
}

}  // namespace

size_t LayerLayout::PartBegin(size_t offset) const {
  return PartOf(offset,
                {&norm1.weight, &norm1.bias, &norm2.weight, &norm2.bias,
                 &qkv_bias, &out_bias, &up_bias, &up_bias_typed, &down_bias},
                {&qkv, &out, &up, &down});
}

size_t HeadSectionLayout::PartBegin(size_t offset) const {
  return PartOf(offset, {&norm.weight, &norm.bias}, {&project_out, &head});
}

LayerLayout MakeLayerLayout(const DecoderSpec& spec, WeightFormat format,
                            const TensorShard& shard, const PanelRules& rules) {
  const int64_t hidden = spec.hidden_size;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t inner = spec.intermediate_size;
  // The rank's own columns.
  const int64_t qkv =
      (int64_t{shard.heads.size()} + 2 * shard.kv_heads.size()) * spec.head_dim;
  const int64_t columns = shard.hidden.size();
  const int64_t up = int64_t{shard.inner.size()} * (spec.gated_mlp ? 2 : 1);
  const bool layer_norm = spec.norm == NormKind::kLayerNorm;
  const bool norm_weight = !layer_norm || spec.norm_affine;
  const bool norm_bias = layer_norm && spec.norm_affine;
  LayerLayout layout;
  Builder builder(rules);
  layout.norm1 = builder.Norm(norm_weight, norm_bias, hidden);
  layout.norm2 = builder.Norm(norm_weight, norm_bias, hidden);
  layout.qkv_bias = builder.Vector(spec.qkv_bias, qkv);
  layout.out_bias = builder.Vector(spec.out_bias, columns);
  layout.up_bias = builder.Vector(spec.mlp_bias, up);
  layout.up_bias_typed = builder.Vector(
      spec.mlp_bias && !spec.gated_mlp && rules.wants_typed_bias(), up,
      rules.dtype);
  layout.down_bias = builder.Vector(spec.mlp_bias, columns);
  layout.qkv = builder.Matrix(qkv, hidden, format);
  layout.out = builder.Matrix(columns, q, format);
  layout.up = builder.Matrix(up, hidden, format);
  layout.down = builder.Matrix(columns, inner, format);
  layout.bytes = builder.Finish();
  return layout;
}

std::vector<HeadSectionLayout> MakeHeadLayout(const DecoderSpec& spec,
                                              WeightFormat format,
                                              const TensorShard& shard,
                                              size_t layer_bytes,
                                              const PanelRules& rules) {
  const bool layer_norm = spec.norm == NormKind::kLayerNorm;
  const WeightFormat head_format =
      format == WeightFormat::kFull ? WeightFormat::kFull : WeightFormat::kInt8;
  MatrixLayout whole;
  if (shard.vocab.size() > 0) {
    whole = rules.Layout(shard.vocab.size(), spec.embed_dim, head_format, 0);
  }
  const auto panels = static_cast<size_t>(whole.num_panels());
  const size_t wanted = std::max<size_t>(
      1, CeilDiv(whole.bytes, std::max(layer_bytes, kMinHeadSection)));
  const size_t section_panels = std::max<size_t>(1, CeilDiv(panels, wanted));
  std::vector<HeadSectionLayout> sections;
  // A rank without columns has one section, too: what comes before the matrix.
  for (size_t panel = 0; panel < std::max<size_t>(1, panels);
       panel += section_panels) {
    HeadSectionLayout& section = sections.emplace_back();
    Builder builder(rules);
    if (panel == 0) {
      section.norm = builder.Norm(
          spec.final_norm && (!layer_norm || spec.norm_affine),
          spec.final_norm && layer_norm && spec.norm_affine, spec.hidden_size);
      if (spec.embed_dim != spec.hidden_size) {
        section.project_out = builder.Matrix(spec.embed_dim, spec.hidden_size,
                                             WeightFormat::kFull);
      }
    }
    if (panels > 0) {
      const auto last =
          static_cast<int>(std::min(panels, panel + section_panels)) - 1;
      section.first_column = whole.panel_begin(static_cast<int>(panel));
      section.head =
          builder.Matrix(whole.panel_end(last) - section.first_column,
                         spec.embed_dim, head_format);
    }
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
  layout.bytes = builder.Finish();
  return layout;
}

}  // namespace sluice
