#include "runtime/weights/layer_layout.h"

#include <algorithm>

#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kImageAlignment = 4096;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Lays parts one after the other.
class Builder {
 public:
  Builder(MatrixPacker& packer, std::vector<size_t>* parts)
      : packer_(packer), parts_(parts) {}

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

  absl::StatusOr<MatrixLayout> Matrix(int64_t n, int64_t k,
                                      WeightFormat format) {
    SLUICE_ASSIGN_OR_RETURN(
        MatrixLayout matrix,
        packer_.Layout(static_cast<int32_t>(n), static_cast<int32_t>(k), format,
                       next_));
    if (parts_ != nullptr) {
      for (int panel = 0; panel < matrix.num_panels(); ++panel) {
        parts_->push_back(matrix.panel_offset(panel));
      }
    }
    next_ = RoundUp(matrix.offset + matrix.bytes, kPanelAlignment);
    return matrix;
  }

  size_t Bytes(size_t bytes) {
    const size_t offset = next_;
    if (parts_ != nullptr) parts_->push_back(offset);
    next_ = RoundUp(next_ + bytes, kPanelAlignment);
    return offset;
  }

  size_t Finish() const { return RoundUp(next_, kImageAlignment); }

 private:
  MatrixPacker& packer_;
  std::vector<size_t>* const parts_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<LayerLayout> MakeLayerLayout(const DecoderSpec& spec,
                                            WeightFormat format,
                                            MatrixPacker& packer) {
  const int64_t hidden = spec.hidden_size;
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim;
  const int64_t inner = spec.intermediate_size;
  const int64_t up = inner * (spec.gated_mlp ? 2 : 1);
  const bool layer_norm = spec.norm == NormKind::kLayerNorm;
  const bool norm_weight = !layer_norm || spec.norm_affine;
  const bool norm_bias = layer_norm && spec.norm_affine;
  LayerLayout layout;
  Builder builder(packer, &layout.parts);
  layout.norm1 = builder.Norm(norm_weight, norm_bias, hidden);
  layout.norm2 = builder.Norm(norm_weight, norm_bias, hidden);
  layout.qkv_bias = builder.Vector(spec.qkv_bias, q + 2 * kv);
  layout.out_bias = builder.Vector(spec.out_bias, hidden);
  layout.up_bias = builder.Vector(spec.mlp_bias, up);
  layout.up_bias_typed = builder.Vector(
      spec.mlp_bias && !spec.gated_mlp && packer.wants_typed_bias(), up,
      packer.dtype());
  layout.down_bias = builder.Vector(spec.mlp_bias, hidden);
  SLUICE_ASSIGN_OR_RETURN(layout.qkv,
                          builder.Matrix(q + 2 * kv, hidden, format));
  SLUICE_ASSIGN_OR_RETURN(layout.out, builder.Matrix(hidden, q, format));
  SLUICE_ASSIGN_OR_RETURN(layout.up, builder.Matrix(up, hidden, format));
  SLUICE_ASSIGN_OR_RETURN(layout.down, builder.Matrix(hidden, inner, format));
  layout.bytes = builder.Finish();
  return layout;
}

absl::StatusOr<std::vector<HeadSectionLayout>> MakeHeadLayout(
    const DecoderSpec& spec, WeightFormat format, size_t section_bytes,
    MatrixPacker& packer) {
  const bool layer_norm = spec.norm == NormKind::kLayerNorm;
  const WeightFormat head_format =
      format == WeightFormat::kFull ? WeightFormat::kFull : WeightFormat::kInt8;
  SLUICE_ASSIGN_OR_RETURN(
      const MatrixLayout whole,
      packer.Layout(spec.vocab_size, spec.embed_dim, head_format, 0));
  const auto panels = static_cast<size_t>(whole.num_panels());
  const size_t wanted = (whole.bytes + section_bytes - 1) / section_bytes;
  const size_t section_panels = (panels + wanted - 1) / wanted;
  std::vector<HeadSectionLayout> sections;
  for (size_t panel = 0; panel < panels; panel += section_panels) {
    HeadSectionLayout& section = sections.emplace_back();
    Builder builder(packer, &section.parts);
    if (panel == 0) {
      section.norm = builder.Norm(
          spec.final_norm && (!layer_norm || spec.norm_affine),
          spec.final_norm && layer_norm && spec.norm_affine, spec.hidden_size);
      if (spec.embed_dim != spec.hidden_size) {
        SLUICE_ASSIGN_OR_RETURN(section.project_out,
                                builder.Matrix(spec.embed_dim, spec.hidden_size,
                                               WeightFormat::kFull));
      }
    }
    const auto last =
        static_cast<int>(std::min(panels, panel + section_panels)) - 1;
    section.first_column = whole.panel_begin(static_cast<int>(panel));
    SLUICE_ASSIGN_OR_RETURN(
        section.head,
        builder.Matrix(whole.panel_end(last) - section.first_column,
                       spec.embed_dim, head_format));
    section.bytes = builder.Finish();
  }
  return sections;
}

absl::StatusOr<EmbeddingLayout> MakeEmbeddingLayout(const DecoderSpec& spec,
                                                    int64_t position_rows,
                                                    MatrixPacker& packer) {
  EmbeddingLayout layout;
  Builder builder(packer, nullptr);
  const size_t element = ElementBytes(packer.table_dtype());
  layout.table =
      builder.Bytes(element * spec.vocab_size * size_t{1} * spec.embed_dim);
  if (spec.positions == PositionKind::kLearned) {
    layout.position_rows = position_rows;
    layout.positions = builder.Bytes(element * position_rows *
                                     static_cast<size_t>(spec.hidden_size));
  }
  if (spec.embed_dim != spec.hidden_size) {
    SLUICE_ASSIGN_OR_RETURN(
        layout.project_in,
        builder.Matrix(spec.hidden_size, spec.embed_dim, WeightFormat::kFull));
  }
  layout.bytes = builder.Finish();
  return layout;
}

}  // namespace sluice
