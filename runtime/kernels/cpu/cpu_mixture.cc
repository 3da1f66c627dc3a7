// CpuBackend's mixtures of experts.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/status_macros.h"
#include "runtime/kernels/cpu/cpu_backend.h"
#include "runtime/kernels/cpu/for_rows.h"
#include "runtime/kernels/cpu/router.h"
#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/kernels/expert_choice.h"

namespace sluice {

absl::Status CpuBackend::Route(int layer, const PackedLayer& packed,
                               const BatchView& batch, const float* x,
                               int32_t at) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  if (at > routed_rows_ || int64_t{at} + batch.rows > options_.mixture_rows) {
    return Internal("rows [", at, ", ", at + batch.rows, ") of a mixture that ",
                    "has ", routed_rows_, " and room for ",
                    options_.mixture_rows);
  }
  const LayerLayout& w = LayoutOf(layer, packed);
  const PackedView& view = packed.view;
  const MixtureSpec& mixture = spec_.mixture;
  const int64_t hidden = spec_.hidden_size;
  NormRows(spec_.norms_inputs() ? &w.norm2 : nullptr, view, x, batch.rows);
  const size_t row_bytes = hidden * gemm_->element_bytes();
  std::memcpy(routed_.as<std::byte>() + at * row_bytes, normed_.data(),
              batch.rows * row_bytes);
  // Groups of rows share what is read of the router.
  const int32_t groups = CeilDiv(batch.rows, kRowsPerTask);
  pool_.ParallelFor(groups, [&](int task, int) {
    const int32_t first = task * kRowsPerTask;
    const int32_t rows = std::min(kRowsPerTask, batch.rows - first);
    float* const logits =
        router_logits_.data() + int64_t{first} * mixture.experts;
    RouterLogits(options_.dtype, normed_.as<std::byte>() + first * row_bytes,
                 rows, hidden, w.router.In(view), w.router_bias.In(view),
                 mixture.experts, logits);
    for (int32_t row = 0; row < rows; ++row) {
      const size_t k = mixture.experts_per_token;
      ChooseExperts(mixture,
                    {logits + int64_t{row} * mixture.experts,
                     static_cast<size_t>(mixture.experts)},
                    w.choice_bias.In(view),
                    std::span(choices_).subspan((at + first + row) * k, k));
    }
  });
  routed_rows_ = at + batch.rows;
  sorted_ = false;
  // The norm that takes what the mixture makes is kept, as the layer's other
  // weights may be gone by then.
  const auto keep = [&](const VectorLayout& from, float* to) {
    if (from.length > 0) std::memcpy(to, from.In(view), from.bytes());
  };
  if (spec_.norms_outputs()) {
    keep(w.down_norm, MixtureNorm(layer));
  } else if (spec_.norm_place == NormPlace::kSum) {
    keep(w.norm2.weight, MixtureNorm(layer));
    keep(w.norm2.bias, MixtureNorm(layer) + hidden);
  }
  return BeginMixed(w, view, batch.rows, mixed_.as<float>() + at * hidden);
}

absl::Status CpuBackend::BeginMixed(const LayerLayout& w,
                                    const PackedView& packed, int32_t rows,
                                    float* mixed) {
  const int64_t hidden = spec_.hidden_size;
  if (spec_.mixture.shared_size == 0) {
    std::memset(mixed, 0, sizeof(float) * rows * hidden);
    return absl::OkStatus();
  }
  // The factors of the shared expert's outputs take the logits' place.
  float* const factors = router_logits_.data();
  const bool scored = spec_.mixture.shared_score;
  if (scored) {
    RouterLogits(options_.dtype, normed_.data(), rows, hidden,
                 w.shared_score.In(packed), nullptr, 1, factors);
    for (int32_t row = 0; row < rows; ++row) {
      factors[row] = 1 / (1 + std::exp(-factors[row]));
    }
  }
  SLUICE_RETURN_IF_ERROR(Inside(w.up, w.up_bias, packed, rows,
                                spec_.mixture.shared_size, shard_.shared_inner,
                                bounds_.shared_inner));
  float* const columns = mixed + shard_.hidden.begin;
  return gemm_->Multiply(
      w.down, packed, wide_.data(), rows,
      [&](int32_t row, int32_t count, int32_t col, int32_t cols, float* tile) {
        for (int32_t i = 0; i < count; ++i) {
          const float factor = scored ? factors[row + i] : 1;
          float* const out = columns + (row + i) * hidden + col;
          for (int32_t c = 0; c < cols; ++c) {
            out[c] = factor * tile[i * cols + c];
          }
        }
      });
}

void CpuBackend::SortChoices() {
  const int32_t per_row = spec_.mixture.experts_per_token;
  const auto made = std::span(choices_).first(int64_t{routed_rows_} * per_row);
  std::fill(counts_.begin(), counts_.end(), 0);
  for (const ExpertChoice& choice : made) ++counts_[choice.index];
  begins_[0] = 0;
  for (size_t e = 0; e < counts_.size(); ++e) {
    begins_[e + 1] = begins_[e] + counts_[e];
  }
  std::vector<int32_t>& next = counts_;
  std::copy(begins_.begin(), begins_.end() - 1, next.begin());
  for (size_t i = 0; i < made.size(); ++i) {
    chosen_[next[made[i].index]++] = {static_cast<int32_t>(i) / per_row,
                                      made[i].weight};
  }
  for (size_t e = 0; e < counts_.size(); ++e) {
    counts_[e] = begins_[e + 1] - begins_[e];
  }
  sorted_ = true;
}

absl::StatusOr<std::span<const int32_t>> CpuBackend::RowsOfExperts() {
  if (!sorted_) SortChoices();
  return std::span<const int32_t>(counts_);
}

absl::Status CpuBackend::RunExpert(int layer, int expert,
                                   const PackedView& packed) {
  const ExpertLayout& w = weights_.layer(layer).expert;
  SLUICE_RETURN_IF_ERROR(checks_.Packed("an expert", packed, w.bytes));
  if (!sorted_) SortChoices();
  const int64_t hidden = spec_.hidden_size;
  const size_t row_bytes = hidden * gemm_->element_bytes();
  float* const columns = mixed_.as<float>() + shard_.hidden.begin;
  // As many rows at a time as there is work space for.
  for (int32_t begin = begins_[expert]; begin < begins_[expert + 1];
       begin += options_.max_rows) {
    const int32_t rows =
        std::min(options_.max_rows, begins_[expert + 1] - begin);
    const ExpertChoice* const chosen = chosen_.data() + begin;
    ForRows(pool_, rows, [&](int32_t row) {
      std::memcpy(normed_.as<std::byte>() + row * row_bytes,
                  routed_.as<std::byte>() + chosen[row].index * row_bytes,
                  row_bytes);
    });
    SLUICE_RETURN_IF_ERROR(Inside(w.up, w.up_bias, packed, rows,
                                  spec_.mixture.expert_size,
                                  shard_.expert_inner, bounds_.expert_inner));
    SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
        w.down, packed, wide_.data(), rows,
        [&](int32_t row, int32_t count, int32_t col, int32_t cols,
            float* tile) {
          const float* const bias = w.down_bias.In(packed, col);
          for (int32_t i = 0; i < count; ++i) {
            AddWeightedRow(chosen[row + i].weight, tile + i * cols, bias, cols,
                           columns + chosen[row + i].index * hidden + col);
          }
        }));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::AddExperts(int layer, const BatchView& batch,
                                    int32_t at, float* x) {
  SLUICE_RETURN_IF_ERROR(checks_.Rows(x, batch.rows));
  const int64_t hidden = spec_.hidden_size;
  const size_t row_bytes = hidden * sizeof(float);
  float* const mixed = mixed_.as<float>() + at * hidden;
  SLUICE_RETURN_IF_ERROR(Gather(
      reinterpret_cast<std::byte*>(mixed + shard_.hidden.begin), row_bytes,
      reinterpret_cast<std::byte*>(mixed), row_bytes, batch.rows, bounds_.x));
  const LayerLayout& w = weights_.layer(layer);
  const bool sum = spec_.norm_place == NormPlace::kSum;
  NormLayout norm;
  norm.weight = {0, (sum ? w.norm2.weight : w.down_norm).length};
  if (sum) norm.bias = {row_bytes, w.norm2.bias.length};
  const PackedView kept = PackedView::Whole(MixtureNorm(layer));
  ForRows(pool_, batch.rows, [&](int32_t row) {
    float* const made = mixed + row * hidden;
    float* const out = x + row * hidden;
    if (spec_.norms_outputs()) Norm(norm, kept, made, DType::kFloat32, made);
    AddRow(out, made, spec_.hidden_size);
    if (sum) Norm(norm, kept, out, DType::kFloat32, out);
  });
  return absl::OkStatus();
}

}  // namespace sluice
