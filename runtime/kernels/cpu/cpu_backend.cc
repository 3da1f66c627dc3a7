#include "runtime/kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/gguf/gguf_blocks.h"
#include "runtime/gguf/gguf_types.h"
#include "runtime/kernels/cpu/for_rows.h"
#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/kernels/rotary_table.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/quant/convert_floats.h"

namespace sluice {
CpuBackend::CpuBackend(const DecoderSpec& spec, const BackendOptions& options,
                       const BackendParts& parts, GemmEngine* gemm,
                       const Device* own)
    : spec_(spec),
      options_(options),
      kv_layout_(parts.kv_layout),
      weights_(*parts.weights),
      pool_(*parts.pool),
      checks_(own, spec.hidden_size),
      shard_(options.shard(spec)),
      q_width_(shard_.heads.size() * spec.head_dim),
      kv_width_(shard_.kv_heads.size() * spec.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_ +
                 (spec.attention_sinks ? shard_.heads.size() : 0)),
      clamps_(spec.gated_mlp && (spec.gate_limit != 0 || spec.gate_slope != 1 ||
                                 spec.up_offset != 0)),
      gemm_(gemm),
      bounds_(ExchangeBounds::Of(spec, options.weight_format,
                                 options.tensor.ranks, options.dtype)) {}

absl::StatusOr<BackendParts> CpuBackend::MakeParts(
    const DecoderSpec& spec, const BackendOptions& options, GemmEngine** gemm) {
  if (options.dtype == DType::kFloat16 && options.beside == nullptr) {
    return absl::UnimplementedError(
        "the CPU does not compute in float16: say --dtype bfloat16, which is "
        "as "
        "small, or --dtype float32 (float16 is for --device cuda)");
  }
  if (spec.has_mixtures() && spec.parallel) {
    return absl::UnimplementedError(
        "mixtures of experts in parallel blocks are not supported");
  }
  BackendParts parts;
  parts.kv_layout = options.kv_layout(spec);
  parts.pool = std::make_unique<ComputePool>(options.threads, options.cores,
                                             options.marks);
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<GemmEngine> engine,
      GemmEngine::Create(PanelRules::Cpu(options.dtype), parts.pool.get()));
  *gemm = engine.get();
  SLUICE_ASSIGN_OR_RETURN(
      parts.weights, PackedWeights::Create(spec, options, std::move(engine),
                                           parts.pool.get(), options.budget));
  return parts;
}

absl::StatusOr<BackendParts> CpuBackend::Create(const DecoderSpec& spec,
                                                const BackendOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckRotaries(spec));
  GemmEngine* gemm = nullptr;
  SLUICE_ASSIGN_OR_RETURN(BackendParts parts, MakeParts(spec, options, &gemm));
  std::unique_ptr<CpuBackend> self(new CpuBackend(spec, options, parts, gemm));
  SLUICE_RETURN_IF_ERROR(self->Initialize());
  parts.backend = std::move(self);
  return parts;
}

absl::Status CpuBackend::Initialize() {
  MemoryBudget* budget = options_.budget;
  const CpuSpace space(spec_, options_);
  const auto create = [&](const char* name, size_t bytes) {
    return WorkBuffer::Create(name, bytes, budget, options_.device);
  };
  const auto create_copied = [&](size_t bytes) {
    return WorkBuffer::Create("workspace", bytes, budget, options_.device,
                              options_.beside);
  };
  SLUICE_ASSIGN_OR_RETURN(normed_, create("workspace", space.normed));
  for (int slot = 0; slot < options_.attention_slots; ++slot) {
    SLUICE_ASSIGN_OR_RETURN(attention_.emplace_back(),
                            create_copied(space.attention));
    if (options_.attention_slots == 1) break;
    SLUICE_ASSIGN_OR_RETURN(qkv_.emplace_back(), create_copied(space.qkv));
  }
  SLUICE_ASSIGN_OR_RETURN(wide_, create_copied(space.wide));
  if (spec_.has_mixtures()) {
    SLUICE_ASSIGN_OR_RETURN(routed_, create("workspace", space.routed));
    SLUICE_ASSIGN_OR_RETURN(mixed_, create("workspace", space.mixed));
    const MixtureSpec& mixture = spec_.mixture;
    choices_.resize(options_.mixture_rows * mixture.experts_per_token);
    chosen_.resize(choices_.size());
    begins_.resize(mixture.experts + 1);
    counts_.resize(mixture.experts);
    router_logits_.resize(int64_t{options_.max_rows} * mixture.experts);
  }
  if (space.logits > 0) {
    SLUICE_ASSIGN_OR_RETURN(logits_, create("workspace", space.logits));
  }
  // The threads' own memory is on the heap, and is charged as well.
  const size_t gemm_bytes =
      std::max(gemm_->scratch_bytes(), space.gemm_threads);
  SLUICE_ASSIGN_OR_RETURN(
      thread_scratch_,
      budget->Charge("workspace",
                     space.threads - space.gemm_threads + gemm_bytes));
  const int32_t sparse_context =
      options_.sparsity < 1 ? options_.max_model_len : 0;
  for (int i = 0; i < pool_.num_threads(); ++i) {
    attention_scratch_.emplace_back(spec_.head_dim, sparse_context);
  }
  rotated_.resize(static_cast<size_t>(pool_.num_threads()) * kPageTokens *
                  spec_.head_dim);

  if (spec_.rotaries.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(rotary_cos_, create("rotary table", space.rotary));
  SLUICE_ASSIGN_OR_RETURN(rotary_sin_, create("rotary table", space.rotary));
  FillRotaryTables(spec_, options_.max_model_len, std::cos, pool_,
                   rotary_cos_.as<float>());
  FillRotaryTables(spec_, options_.max_model_len, std::sin, pool_,
                   rotary_sin_.as<float>());
  return absl::OkStatus();
}

CpuBackend::Angles CpuBackend::AnglesOf(int layer) const {
  const RotarySpec* const rotary = spec_.rotary(layer);
  if (rotary == nullptr) return {};
  const int64_t at = RotaryTableOffset(spec_, options_.max_model_len,
                                       spec_.layer(layer).rotary);
  return {rotary_cos_.as<float>() + at, rotary_sin_.as<float>() + at,
          rotary->dim / 2};
}

absl::Status CpuBackend::CheckCall(int layer, const PackedLayer& packed,
                                   const BatchView& batch,
                                   const float* x) const {
  SLUICE_RETURN_IF_ERROR(checks_.Packed("weights", packed.view,
                                        LayoutOf(layer, packed).core_bytes));
  return checks_.Rows(x, batch.rows);
}

absl::Status CpuBackend::DequantizeLayer(int index, const PackedView& packed,
                                         std::byte* out) {
  const LayerLayout& layer = weights_.layer(index);
  const LayerLayout& dequantized = weights_.dequantized();
  SLUICE_RETURN_IF_ERROR(checks_.Packed("weights", packed, layer.bytes));
  SLUICE_RETURN_IF_ERROR(
      checks_.Check("a dequantized layer", out, dequantized.bytes));
  for (size_t i = 0; i < layer.vectors().size(); ++i) {
    const VectorLayout& from = *layer.vectors()[i];
    if (from.length == 0) continue;
    std::memcpy(out + dequantized.vectors()[i]->offset, packed.At(from.offset),
                from.bytes());
  }
  for (size_t i = 0; i < layer.matrices().size(); ++i) {
    const MatrixLayout& from = *layer.matrices()[i];
    if (from.n == 0) continue;
    const MatrixLayout& to = *dequantized.matrices()[i];
    if (from.quantized()) {
      SLUICE_RETURN_IF_ERROR(
          gemm_->Dequantize(from, packed, to, out, 0, from.num_panels()));
      continue;
    }
    for (int panel = 0; panel < from.num_panels(); ++panel) {
      std::memcpy(out + to.panel_offset(panel),
                  packed.At(from.panel_offset(panel)), from.panel_bytes(panel));
    }
  }
  return absl::OkStatus();
}

void CpuBackend::Norm(const NormLayout& norm, const PackedView& packed,
                      const float* x, DType dtype, void* out) const {
  if (spec_.norm == NormKind::kRmsNorm) {
    RmsNorm(x, norm.weight.In(packed), spec_.hidden_size, spec_.norm_eps, dtype,
            out);
  } else {
    LayerNorm(x, norm.weight.In(packed), norm.bias.In(packed),
              spec_.hidden_size, spec_.norm_eps, dtype, out);
  }
}

void CpuBackend::NormRows(const NormLayout* norm, const PackedView& packed,
                          const float* x, int32_t rows) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t row_bytes = hidden * gemm_->element_bytes();
  ForRows(pool_, rows, [&](int32_t row) {
    void* out = normed_.as<std::byte>() + row * row_bytes;
    if (norm != nullptr) {
      Norm(*norm, packed, x + row * hidden, options_.dtype, out);
    } else if (options_.dtype == DType::kFloat32) {
      std::memcpy(out, x + row * hidden, row_bytes);
    } else {
      FloatToBf16(x + row * hidden, hidden, static_cast<uint16_t*>(out));
    }
  });
}

void CpuBackend::NormRowsInPlace(const NormLayout& norm,
                                 const PackedView& packed, float* x,
                                 int32_t rows) {
  const int64_t hidden = spec_.hidden_size;
  ForRows(pool_, rows, [&](int32_t row) {
    Norm(norm, packed, x + row * hidden, DType::kFloat32, x + row * hidden);
  });
}

void CpuBackend::NormHeads(const LayerLayout& w, const PackedView& packed,
                           int32_t rows, float* qkv) {
  const int32_t head_dim = spec_.head_dim;
  const bool own = spec_.qk_norm == QkNorm::kEachHeadOwnWeight;
  const auto norm = [&](const VectorLayout& weights, int32_t heads, float* x) {
    for (int32_t head = 0; head < heads; ++head, x += head_dim) {
      const float* const weight =
          weights.In(packed, own ? int64_t{head} * head_dim : 0);
      if (own) {
        LayerNorm(x, weight, nullptr, head_dim, spec_.norm_eps, DType::kFloat32,
                  x);
      } else {
        RmsNorm(x, weight, head_dim, spec_.norm_eps, DType::kFloat32, x);
      }
    }
  };
  ForRows(pool_, rows, [&](int32_t row) {
    float* const q = qkv + int64_t{row} * qkv_width_;
    norm(w.q_norm, shard_.heads.size(), q);
    norm(w.k_norm, shard_.kv_heads.size(), q + q_width_);
  });
}

absl::Status CpuBackend::NormAllHeads(const LayerLayout& w,
                                      const PackedView& packed, int32_t rows,
                                      float* qkv) {
  // A head's squares are summed where it is, and the heads' sums in their
  // order, so that the result does not depend on the ranks.
  const int64_t stride = qkv_width_;
  const auto norm = [&](const VectorLayout& weight, ColumnRange heads,
                        int32_t all_heads, const std::vector<size_t>& bounds,
                        float* x, float* squares) -> absl::Status {
    ForRows(pool_, rows, [&](int32_t row) {
      for (int32_t head = 0; head < heads.size(); ++head) {
        squares[int64_t{row} * all_heads + heads.begin + head] = SumOfSquares(
            x + row * stride + int64_t{head} * spec_.head_dim, spec_.head_dim);
      }
    });
    if (!bounds.empty()) {
      const size_t row_bytes = all_heads * sizeof(float);
      auto* const to = reinterpret_cast<std::byte*>(squares);
      SLUICE_RETURN_IF_ERROR(Gather(to + bounds[shard_.of.rank], row_bytes, to,
                                    row_bytes, rows, bounds));
    }
    ForRows(pool_, rows, [&](int32_t row) {
      float sum = 0;
      for (int32_t head = 0; head < all_heads; ++head) {
        sum += squares[int64_t{row} * all_heads + head];
      }
      const auto width = static_cast<float>(all_heads * spec_.head_dim);
      float* const values = x + row * stride;
      ScaleRow(values, weight.In(packed), heads.size() * spec_.head_dim,
               1.0f / std::sqrt(sum / width + spec_.norm_eps), values);
    });
    return absl::OkStatus();
  };
  // What was normed before is not needed any more.
  float* const squares = normed_.as<float>();
  SLUICE_RETURN_IF_ERROR(norm(w.q_norm, shard_.heads, spec_.num_heads,
                              bounds_.q_squares, qkv, squares));
  return norm(w.k_norm, shard_.kv_heads, spec_.num_kv_heads, bounds_.k_squares,
              qkv + q_width_, squares + int64_t{rows} * spec_.num_heads);
}

void CpuBackend::DecodeRow(const std::byte* codes, int32_t row, float* out) {
  const CodeFormat& format = *weights_.embedding().codes;
  const int64_t dim = spec_.embed_dim;
  DequantizeGguf(*FindGgufType(format.name),
                 reinterpret_cast<const char*>(codes), dim / format.block, out);
  if (spec_.embedding_scale != 1) {
    for (int64_t i = 0; i < dim; ++i) out[i] *= spec_.embedding_scale;
  }
  if (options_.dtype == DType::kFloat32) return;
  // Rounded, as a table of numbers has it.
  std::byte* const rounded =
      normed_.as<std::byte>() + row * dim * ElementBytes(options_.dtype);
  ConvertFloats(out, dim, options_.dtype, rounded);
  ToFloats(rounded, dim, options_.dtype, out);
}

absl::Status CpuBackend::Embed(const PackedView& packed, const BatchView& batch,
                               float* x) {
  const EmbeddingLayout& layout = weights_.embedding();
  SLUICE_RETURN_IF_ERROR(checks_.Packed("the embedding", packed, layout.bytes));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(x, batch.rows));
  const std::byte* table = packed.At(layout.table);
  const std::byte* positions =
      layout.position_rows > 0 ? packed.At(layout.positions) : nullptr;
  const int64_t hidden = spec_.hidden_size;
  const int64_t dim = spec_.embed_dim;
  const DType dtype = options_.dtype;
  const auto row_of = [&](const std::byte* rows, int64_t row, int64_t width) {
    return rows + row * width * ElementBytes(dtype);
  };
  const bool project = layout.project_in.n > 0;
  if (project) {
    const int64_t row_bytes = dim * gemm_->element_bytes();
    for (int32_t row = 0; row < batch.rows; ++row) {
      const std::byte* const from = row_of(table, batch.tokens[row], dim);
      std::byte* const to = normed_.as<std::byte>() + row * row_bytes;
      if (dtype == gemm_->dtype()) {
        std::memcpy(to, from, row_bytes);
      } else {
        ToFloats(from, dim, dtype, reinterpret_cast<float*>(to));
      }
    }
    SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
        layout.project_in, packed, normed_.data(), batch.rows,
        [&](int32_t row, int32_t rows, int32_t col, int32_t cols, float* tile) {
          for (int32_t i = 0; i < rows; ++i) {
            std::memcpy(x + (row + i) * hidden + col, tile + i * cols,
                        cols * sizeof(float));
          }
        }));
  }
  const int32_t num_segments = static_cast<int32_t>(batch.segments.size());
  pool_.ParallelFor(num_segments, [&](int task, int) {
    const SegmentView& segment = batch.segments[task];
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      const int32_t row = segment.row + i;
      float* out = x + row * hidden;
      if (layout.codes != nullptr) {
        DecodeRow(table + batch.tokens[row] * layout.row_bytes, row, out);
      } else if (!project) {
        ToFloats(row_of(table, batch.tokens[row], dim), dim, dtype, out);
      }
      if (spec_.positions == PositionKind::kLearned) {
        AddRowOf(
            dtype,
            row_of(positions,
                   int64_t{segment.start} + i + spec_.position_offset, hidden),
            hidden, out);
      }
      if (spec_.embed_norm) {
        Norm(layout.norm, packed, out, DType::kFloat32, out);
      }
    }
  });
  return absl::OkStatus();
}

void CpuBackend::StoreKvOf(int layer, const BatchView& batch,
                           int32_t first_segment, int32_t count) {
  parts_.clear();
  for (int32_t s = first_segment; s < first_segment + count; ++s) {
    const SegmentView& segment = batch.segments[s];
    for (int32_t i = 0; i < segment.num_tokens;) {
      const int32_t tokens =
          std::min(segment.num_tokens - i,
                   kPageTokens - (segment.start + i) % kPageTokens);
      parts_.push_back({s, i, tokens});
      i += tokens;
    }
  }
  const int32_t head_dim = spec_.head_dim;
  const int32_t stride = qkv_width_;
  const Angles angles = AnglesOf(layer);
  const int32_t half = angles.half;
  pool_.ParallelFor(parts_.size(), [&](int task, int thread) {
    const SegmentPart& part = parts_[task];
    const SegmentView& segment = batch.segments[part.segment];
    const int32_t position = segment.start + part.first;
    std::byte* page = segment.kv + segment.pages[position / kPageTokens] *
                                       kv_layout_.layer_page_bytes();
    float* rotated =
        rotated_.data() + static_cast<size_t>(thread) * kPageTokens * head_dim;
    const float* rows = Qkv(batch.attention_slot) +
                        (int64_t{segment.row} + part.first) * stride + q_width_;
    for (int32_t head = 0; head < shard_.kv_heads.size(); ++head) {
      const float* k = rows + head * head_dim;
      int32_t k_stride = stride;
      if (half > 0) {
        for (int32_t i = 0; i < part.count; ++i) {
          const int64_t angle = (int64_t{position} + i) * half;
          RotateHead(k + int64_t{i} * stride, angles.cos + angle,
                     angles.sin + angle, half, head_dim, 1.0f,
                     rotated + i * head_dim);
        }
        k = rotated;
        k_stride = head_dim;
      }
      StoreKv(k, k_stride, rows + kv_width_ + head * head_dim, stride,
              position % kPageTokens, part.count, head_dim, kv_layout_.format,
              page + kv_layout_.head_offset(head));
    }
  });
}

void CpuBackend::AttendOf(int layer, const BatchView& batch,
                          int32_t first_segment, int32_t count) {
  const int32_t group = shard_.heads.size() / shard_.kv_heads.size();
  // A row is a query head at a position; rows are numbered by position first.
  parts_.clear();
  for (int32_t s = first_segment; s < first_segment + count; ++s) {
    const int32_t rows = batch.segments[s].num_tokens * group;
    for (int32_t i = 0; i < rows; i += kAttentionRows) {
      parts_.push_back({s, i, std::min(kAttentionRows, rows - i)});
    }
  }
  const int32_t head_dim = spec_.head_dim;
  const int64_t stride = qkv_width_;
  const Angles angles = AnglesOf(layer);
  const int32_t kv_heads = shard_.kv_heads.size();
  const int32_t window = spec_.layer(layer).window;
  const float scale =
      spec_.attention_scale * spec_.layer(layer).attention_scale;
  const size_t element = ElementBytes(options_.dtype);
  // The heads of a page are neighbours in memory: one thread takes them all if
  // there is enough else for the other threads.
  const bool all_heads =
      parts_.size() >= size_t{4} * static_cast<size_t>(pool_.num_threads());
  const float* qkv = Qkv(batch.attention_slot);
  std::byte* out = attention_[batch.attention_slot].as<std::byte>();
  const int32_t heads_per_task = all_heads ? kv_heads : 1;
  const int32_t tasks_per_part = kv_heads / heads_per_task;
  pool_.ParallelFor(parts_.size() * tasks_per_part, [&](int task, int thread) {
    const SegmentPart& part = parts_[task / tasks_per_part];
    const SegmentView& segment = batch.segments[part.segment];
    AttentionScratch& scratch = attention_scratch_[thread];
    AttentionCall call;
    call.format = kv_layout_.format;
    call.head_dim = head_dim;
    call.page_stride = kv_layout_.layer_page_bytes();
    call.pages = segment.pages;
    call.rows = part.count;
    call.cap = spec_.attention_cap;
    call.alibi = spec_.alibi();
    if (spec_.positions == PositionKind::kRoundedAlibi) {
      call.rounded_alibi_scale = scale;
    }
    call.sinks = spec_.attention_sinks;
    call.out_dtype = options_.dtype;
    // Prefill attends to all positions (FlexGen, section 5).
    if (segment.num_tokens == 1) call.sparsity = options_.sparsity;
    const int32_t first_head = task % tasks_per_part * heads_per_task;
    for (int32_t kv_head = first_head; kv_head < first_head + heads_per_task;
         ++kv_head) {
      for (int32_t r = 0; r < part.count; ++r) {
        const int32_t token = (part.first + r) / group;
        const int32_t head = kv_head * group + (part.first + r) % group;
        const int32_t position = segment.start + token;
        const int64_t row = segment.row + token;
        const int64_t angle = int64_t{position} * angles.half;
        RotateHead(qkv + row * stride + head * head_dim, angles.cos + angle,
                   angles.sin + angle, angles.half, head_dim, scale,
                   scratch.query(r));
        call.begin[r] = window > 0 ? std::max(0, position + 1 - window) : 0;
        call.end[r] = position + 1;
        call.slope[r] = spec_.alibi_slope(shard_.heads.begin + head);
        if (call.sinks) {
          call.sink[r] = qkv[row * stride + q_width_ + 2 * kv_width_ + head];
        }
        call.out[r] = out + (row * q_width_ + head * head_dim) * element;
      }
      call.head = segment.kv + kv_layout_.head_offset(kv_head);
      call.next = nullptr;
      if (kv_head + 1 < first_head + heads_per_task) {
        call.next = segment.kv +
                    segment.pages[call.begin[0] / kPageTokens] *
                        kv_layout_.layer_page_bytes() +
                    kv_layout_.head_offset(kv_head + 1);
      }
      sluice::Attend(call, scratch);
    }
  });
}

absl::Status CpuBackend::AddOutput(const MatrixLayout& w,
                                   const VectorLayout& bias,
                                   const NormLayout& sum_norm,
                                   const VectorLayout& output_norm,
                                   const PackedView& packed, const void* a,
                                   int32_t rows, float* x) {
  const int64_t width = spec_.hidden_size;
  const bool norms = spec_.norms_outputs();
  // The product's input is not in normed_.
  float* const sum = norms ? normed_.as<float>() : x;
  float* const columns = sum + shard_.hidden.begin;
  SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
      w, packed, a, rows,
      [&](int32_t row, int32_t count, int32_t col, int32_t cols, float* tile) {
        (norms ? StoreTile : AddTile)(tile, count, cols, bias.In(packed, col),
                                      columns + row * width + col, width);
      }));
  const size_t row_bytes = width * sizeof(float);
  SLUICE_RETURN_IF_ERROR(Gather(reinterpret_cast<const std::byte*>(columns),
                                row_bytes, reinterpret_cast<std::byte*>(sum),
                                row_bytes, rows, bounds_.x));
  if (norms) {
    ForRows(pool_, rows, [&](int32_t row) {
      float* const output = sum + row * width;
      Norm({output_norm, {}}, packed, output, DType::kFloat32, output);
      AddRow(x + row * width, output, spec_.hidden_size);
    });
  } else if (spec_.norm_place == NormPlace::kSum) {
    NormRowsInPlace(sum_norm, packed, x, rows);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Gather(const std::byte* from, size_t from_stride,
                                std::byte* to, size_t to_stride, int32_t rows,
                                std::span<const size_t> bounds, int to_rank) {
  if (!is_rank()) return absl::OkStatus();
  return options_.collective->Gather(
      {from, from_stride, to, to_stride, rows, bounds, to_rank}, pool_);
}

absl::Status CpuBackend::ProjectQkv(int layer, const PackedLayer& packed,
                                    const BatchView& batch, const float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  const LayerLayout& w = LayoutOf(layer, packed);
  NormRows(spec_.norms_inputs() ? &w.norm1 : nullptr, packed.view, x,
           batch.rows);
  const int64_t width = qkv_width_;
  float* qkv = Qkv(batch.attention_slot);
  SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
      w.qkv, packed.view, normed_.data(), batch.rows,
      [&](int32_t row, int32_t rows, int32_t col, int32_t cols, float* tile) {
        StoreTile(tile, rows, cols, w.qkv_bias.In(packed.view, col),
                  qkv + row * width + col, width);
      }));
  for (int32_t row = 0; row < batch.rows && spec_.attention_sinks; ++row) {
    std::memcpy(qkv + row * width + w.qkv.n, w.sinks.In(packed.view),
                w.sinks.bytes());
  }
  if (spec_.qk_norm == QkNorm::kAllHeads) {
    return NormAllHeads(w, packed.view, batch.rows, qkv);
  }
  if (spec_.qk_norm != QkNorm::kNone) {
    NormHeads(w, packed.view, batch.rows, qkv);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::Attend(int layer, const BatchView& batch,
                                int32_t first_segment, int32_t count) {
  SLUICE_RETURN_IF_ERROR(
      checks_.Pages(kv_layout_, batch, first_segment, count));
  StoreKvOf(layer, batch, first_segment, count);
  AttendOf(layer, batch, first_segment, count);
  return absl::OkStatus();
}

absl::Status CpuBackend::ProjectOut(int layer, const PackedLayer& packed,
                                    const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  if (spec_.parallel) SLUICE_RETURN_IF_ERROR(AddMlp(layer, packed, batch, x));
  const LayerLayout& w = LayoutOf(layer, packed);
  const std::byte* attention = attention_[batch.attention_slot].as<std::byte>();
  if (shard_.divides_heads) {
    // What was q, k and v is not needed any more.
    std::byte* const all = wide_.as<std::byte>();
    SLUICE_RETURN_IF_ERROR(
        Gather(attention, q_width_ * ElementBytes(options_.dtype), all,
               bounds_.heads.back(), batch.rows, bounds_.heads));
    attention = all;
  }
  return AddOutput(w.out, w.out_bias, w.norm1, w.out_norm, packed.view,
                   attention, batch.rows, x);
}

absl::Status CpuBackend::Mlp(int layer, const PackedLayer& packed,
                             const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  return spec_.parallel ? absl::OkStatus() : AddMlp(layer, packed, batch, x);
}

absl::Status CpuBackend::Inside(const MatrixLayout& up,
                                const VectorLayout& bias,
                                const PackedView& packed, int32_t rows,
                                int32_t inner, ColumnRange columns,
                                std::span<const size_t> bounds) {
  const size_t element = gemm_->element_bytes();
  const size_t row_bytes = inner * element;
  std::byte* const own = wide_.as<std::byte>() + columns.begin * element;
  SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
      up, packed, normed_.data(), rows,
      [&](int32_t row, int32_t count, int32_t col, int32_t cols, float* tile) {
        const float* const biases = bias.In(packed, col);
        std::byte* const out = own + row * row_bytes;
        if (clamps_) {
          ClampedTile({spec_.gate_limit, spec_.gate_slope, spec_.up_offset},
                      tile, count, cols, biases, options_.dtype,
                      out + col / 2 * element, inner);
        } else if (spec_.gated_mlp) {
          GatedTile(spec_.activation, tile, count, cols, biases, options_.dtype,
                    out + col / 2 * element, inner);
        } else {
          PlainTile(spec_.activation, tile, count, cols, biases, options_.dtype,
                    out + col * element, inner);
        }
      }));
  return Gather(own, row_bytes, wide_.as<std::byte>(), row_bytes, rows, bounds);
}

absl::Status CpuBackend::AddMlp(int layer, const PackedLayer& packed,
                                const BatchView& batch, float* x) {
  const LayerLayout& w = LayoutOf(layer, packed);
  const NormLayout& norm = spec_.shared_norm ? w.norm1 : w.norm2;
  NormRows(spec_.norms_inputs() ? &norm : nullptr, packed.view, x, batch.rows);
  SLUICE_RETURN_IF_ERROR(Inside(w.up, w.up_bias, packed.view, batch.rows,
                                spec_.intermediate_size, shard_.inner,
                                bounds_.inner));
  return AddOutput(w.down, w.down_bias, w.norm2, w.down_norm, packed.view,
                   wide_.data(), batch.rows, x);
}

absl::Status CpuBackend::HeadInput(const PackedView& packed,
                                   std::span<const int32_t> rows_of_x,
                                   const float* x, int32_t at) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("the head", packed, weights_.head()[0].bytes));
  SLUICE_RETURN_IF_ERROR(checks_.HeadRows(x, rows_of_x));
  const int64_t hidden = spec_.hidden_size;
  const int64_t row_bytes = hidden * gemm_->element_bytes();
  pool_.ParallelFor(rows_of_x.size(), [&](int task, int) {
    const float* in = x + rows_of_x[task] * hidden;
    void* out = normed_.as<std::byte>() + (at + task) * row_bytes;
    if (spec_.final_norm) {
      Norm(weights_.head()[0].norm, packed, in, options_.dtype, out);
    } else if (options_.dtype == DType::kFloat32) {
      std::memcpy(out, in, hidden * sizeof(float));
    } else {
      FloatToBf16(in, hidden, static_cast<uint16_t*>(out));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::FinalRows(const PackedView& packed,
                                   std::span<const int32_t> rows_of_x,
                                   const float* x, float* out) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("the head", packed, weights_.head()[0].bytes));
  SLUICE_RETURN_IF_ERROR(checks_.HeadRows(x, rows_of_x));
  const int64_t hidden = spec_.hidden_size;
  pool_.ParallelFor(rows_of_x.size(), [&](int task, int) {
    const float* const in = x + rows_of_x[task] * hidden;
    float* const to = out + task * hidden;
    if (spec_.final_norm) {
      Norm(weights_.head()[0].norm, packed, in, DType::kFloat32, to);
    } else {
      std::memcpy(to, in, hidden * sizeof(float));
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::HeadLogits(const PackedView& packed, int section,
                                    int32_t rows) {
  const HeadSectionLayout& layout = weights_.head()[section];
  SLUICE_RETURN_IF_ERROR(checks_.Packed("the head", packed, layout.bytes));
  // The leading rank gets whole rows, in which its columns come first.
  const bool leads = options_.tensor.leads();
  const int64_t width = leads ? spec_.vocab_size : shard_.vocab.size();
  const MatrixLayout& project_out = weights_.head()[0].project_out;
  const void* input = normed_.data();
  if (project_out.n > 0) input = wide_.data();
  if (section == 0 && project_out.n > 0) {
    // attention_ is free here, and may be narrower than embed_dim: the
    // projection goes through wide_.
    const int64_t dim = spec_.embed_dim;
    SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
        project_out, packed, normed_.data(), rows,
        [&](int32_t row, int32_t count, int32_t col, int32_t cols,
            float* tile) {
          for (int32_t i = 0; i < count; ++i) {
            const int64_t to = (row + i) * dim + col;
            if (options_.dtype == DType::kFloat32) {
              std::memcpy(wide_.as<float>() + to, tile + i * cols,
                          cols * sizeof(float));
            } else {
              FloatToBf16(tile + i * cols, cols, wide_.as<uint16_t>() + to);
            }
          }
        }));
  }
  float* logits = logits_.as<float>();
  SLUICE_RETURN_IF_ERROR(gemm_->Multiply(
      layout.head, packed, input, rows,
      [&](int32_t row, int32_t count, int32_t col, int32_t cols, float* tile) {
        float* const out = logits + row * width + layout.first_column + col;
        StoreTile(tile, count, cols, layout.head_bias.In(packed, col), out,
                  width);
        if (spec_.logit_cap == 0) return;
        for (int32_t i = 0; i < count; ++i) {
          CapRow(spec_.logit_cap, cols, out + i * width);
        }
      }));
  const bool last = section + 1 == weights_.num_head_sections();
  if (!last) return absl::OkStatus();
  std::byte* const all = reinterpret_cast<std::byte*>(logits);
  return Gather(all, width * sizeof(float), leads ? all : nullptr,
                bounds_.logits.back(), rows, bounds_.logits, /*to_rank=*/0);
}

absl::Status CpuBackend::TakeLogits(std::span<LogitRow> rows) {
  const size_t vocab = spec_.vocab_size;
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = {logits_.as<float>() + i * vocab, vocab};
  }
  return absl::OkStatus();
}

}  // namespace sluice
