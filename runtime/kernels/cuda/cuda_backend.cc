#include "runtime/kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/blocks.h"
#include "common/status_macros.h"
#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/kernels/cuda/device/cuda_device.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/device/dtype_dispatch.h"
#include "runtime/kernels/cuda/gemm/device_matrices.h"
#include "runtime/kernels/cuda/rows.h"
#include "runtime/kernels/rotary_table.h"

namespace sluice {
namespace {

// Returns the epilogue that cuBLASLt has for an activation.
std::optional<Epilogue> FusedActivation(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return Epilogue::kRelu;
    case Activation::kGeluTanh:
      return Epilogue::kGeluTanh;
    case Activation::kSilu:
    case Activation::kGelu:
      break;
  }
  return std::nullopt;
}

}  // namespace

CudaBackend::CudaBackend(const DecoderSpec& spec, const BackendOptions& options,
                         const Place& place, const AttentionDevice& device,
                         const BackendParts& parts)
    : spec_(spec),
      options_(options),
      place_(place),
      kv_layout_(parts.kv_layout),
      checks_(options.device, spec.hidden_size),
      shard_(options.shard(spec)),
      bounds_(ExchangeBounds::Of(spec, options.weight_format,
                                 options.tensor.ranks, options.dtype)),
      q_width_(shard_.heads.size() * spec.head_dim),
      kv_width_(shard_.kv_heads.size() * spec.head_dim),
      device_(device),
      weights_(*parts.weights),
      pool_(*parts.pool),
      graphs_(place.stream) {}

CudaBackend::~CudaBackend() {
  // Kernels under way use memory that is given back.
  Finish().IgnoreError();
  if (step_copied_ != nullptr) (void)cudaEventDestroy(step_copied_);
}

absl::StatusOr<BackendParts> CudaBackend::Create(const DecoderSpec& spec,
                                                 const BackendOptions& options,
                                                 const Place& place) {
  if (options.device == nullptr) {
    return absl::InvalidArgumentError(
        "the CUDA backend needs a device for its memory");
  }
  if (spec.has_mixtures()) {
    return absl::UnimplementedError(
        "GPUs do not compute mixtures of experts: say --device cpu");
  }
  SLUICE_RETURN_IF_ERROR(CheckRotaries(spec));
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(place.ordinal), "turning to the device"));
  SLUICE_ASSIGN_OR_RETURN(AttentionDevice device, CurrentAttentionDevice());
  device.processors = std::min(device.processors, GpuSpace::kMaxProcessors);
  if (options.dtype == DType::kBFloat16 && device.capability < 80) {
    return absl::UnimplementedError(
        "this GPU has no products in bfloat16, which came with compute "
        "capability 8.0: say --dtype float16, which is as small, or float32");
  }
  BackendParts parts;
  parts.kv_layout = options.kv_layout(spec);
  parts.pool = std::make_unique<ComputePool>(options.threads, options.cores,
                                             options.marks);
  SLUICE_ASSIGN_OR_RETURN(
      parts.weights,
      PackedWeights::Create(spec, options,
                            std::make_unique<DeviceMatrices>(options.dtype),
                            parts.pool.get(), options.budget));
  std::unique_ptr<CudaBackend> self(
      new CudaBackend(spec, options, place, device, parts));
  SLUICE_RETURN_IF_ERROR(self->Initialize(*parts.pool));
  parts.backend = std::move(self);
  return parts;
}

absl::StatusOr<BackendParts> CreateCudaBackend(const DecoderSpec& spec,
                                               const BackendOptions& options) {
  const auto* const device = dynamic_cast<CudaDevice*>(options.device);
  if (device == nullptr) {
    return absl::InvalidArgumentError(
        "the CUDA backend needs a CUDA device for its memory");
  }
  return CudaBackend::Create(
      spec, options,
      {.ordinal = device->ordinal(), .stream = device->compute_stream()});
}

absl::Status CudaBackend::Enter() const {
  return CudaStatus(cudaSetDevice(place_.ordinal), "turning to the device");
}

absl::Status CudaBackend::Initialize(ComputePool& pool) {
  const GpuSpace space(spec_, options_, weights_.layouts());
  SLUICE_ASSIGN_OR_RETURN(normed_, Allocate(space.normed));
  for (int slot = 0; slot < options_.attention_slots; ++slot) {
    SLUICE_ASSIGN_OR_RETURN(attention_out_.emplace_back(),
                            Allocate(space.attention));
    if (options_.attention_slots == 1) break;
    SLUICE_ASSIGN_OR_RETURN(qkv_.emplace_back(), Allocate(space.qkv));
  }
  SLUICE_ASSIGN_OR_RETURN(wide_, Allocate(space.wide));
  if (space.inner > 0) {
    SLUICE_ASSIGN_OR_RETURN(inner_, Allocate(space.inner));
  }
  if (space.gathered > 0) {
    SLUICE_ASSIGN_OR_RETURN(gathered_, Allocate(space.gathered));
    SLUICE_ASSIGN_OR_RETURN(exchange_, Allocate(space.exchange));
  }
  if (space.logits > 0) SLUICE_RETURN_IF_ERROR(MakeHead(space));
  SLUICE_RETURN_IF_ERROR(MakeRotaryTable(space, pool));
  return MakeAttention(space);
}

absl::Status CudaBackend::MakeHead(const GpuSpace& space) {
  SLUICE_ASSIGN_OR_RETURN(logits_, Allocate(space.logits));
  if (!options_.tensor.leads()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(answers_, Allocate(space.answers));
  SLUICE_ASSIGN_OR_RETURN(
      host_logits_, HostBuffer::Create("logits", space.logits, options_.budget,
                                       options_.device));
  SLUICE_ASSIGN_OR_RETURN(host_answers_,
                          HostBuffer::Create("logits", space.host_answers,
                                             options_.budget, options_.device));
  samples_.reserve(options_.head_rows);
  return absl::OkStatus();
}

absl::Status CudaBackend::MakeAttention(const GpuSpace& space) {
  AttentionShape shape;
  shape.kv = kv_layout_;
  shape.num_heads = shard_.heads.size();
  shape.dtype = options_.dtype;
  shape.scale = spec_.attention_scale;
  shape.cap = spec_.attention_cap;
  shape.alibi_heads = spec_.alibi_heads();
  shape.rounded_alibi = spec_.positions == PositionKind::kRoundedAlibi;
  shape.first_head = shard_.heads.begin;
  SLUICE_ASSIGN_OR_RETURN(
      const size_t for_products,
      PackedGemm::WorkspaceBytes(weights_.layouts().Matrices(),
                                 options_.max_rows, device_.processors));
  SLUICE_ASSIGN_OR_RETURN(const size_t for_attention,
                          BatchAttention::WorkspaceBytes(
                              shape, device_, options_.sparsity,
                              options_.max_rows, options_.max_model_len));
  const size_t wanted = std::max(for_products, for_attention);
  if (wanted > space.workspace) {
    return Internal("the kernels want ", wanted, " bytes of work space, not ",
                    space.workspace, " as was planned");
  }
  SLUICE_ASSIGN_OR_RETURN(workspace_, Allocate(space.workspace));
  SLUICE_ASSIGN_OR_RETURN(ring_,
                          UploadRing::Create({.device = options_.device,
                                              .host = options_.budget,
                                              .stream = place_.stream,
                                              .max_bytes = space.upload_part}));
  SLUICE_ASSIGN_OR_RETURN(
      gemm_, PackedGemm::Create({.device = options_.device,
                                 .stream = place_.stream,
                                 .dtype = options_.dtype,
                                 .processors = device_.processors,
                                 .workspace = workspace_.data(),
                                 .workspace_bytes = wanted,
                                 .dequantized_bytes = space.dequantized,
                                 .counter_bytes = space.counters}));
  BatchAttention::Options attention;
  attention.shape = shape;
  attention.device = device_;
  attention.sparsity = options_.sparsity;
  attention.ring = ring_.get();
  attention.workspace = workspace_.data();
  attention.workspace_bytes = wanted;
  attention.stream = place_.stream;
  SLUICE_ASSIGN_OR_RETURN(attention_, BatchAttention::Create(attention));
  SLUICE_ASSIGN_OR_RETURN(step_data_, Allocate(space.step_data));
  SLUICE_ASSIGN_OR_RETURN(step_host_,
                          HostBuffer::Create("workspace", space.step_data,
                                             options_.budget, options_.device));
  return CudaStatus(
      cudaEventCreateWithFlags(&step_copied_, cudaEventDisableTiming),
      "making an event");
}

absl::Status CudaBackend::MakeRotaryTable(const GpuSpace& space,
                                          ComputePool& pool) {
  if (spec_.rotaries.empty()) return absl::OkStatus();
  const size_t bytes = space.rotary;
  SLUICE_ASSIGN_OR_RETURN(rotary_cos_,
                          options_.device->Allocate("rotary table", bytes));
  SLUICE_ASSIGN_OR_RETURN(rotary_sin_,
                          options_.device->Allocate("rotary table", bytes));
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer table,
      HostBuffer::Create("load staging", std::max<size_t>(bytes, 1),
                         options_.budget));
  const std::pair<DeviceBuffer*, double (*)(double)> tables[] = {
      {&rotary_cos_, std::cos}, {&rotary_sin_, std::sin}};
  for (const auto& [to, function] : tables) {
    FillRotaryTables(spec_, options_.max_model_len, function, pool,
                     table.as<float>());
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to->data(), table.as<float>(), bytes,
                                   cudaMemcpyHostToDevice, place_.stream),
                   "copying the angles of positions"));
    SLUICE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(place_.stream),
                                      "copying the angles of positions"));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::DequantizeLayer(int index, const PackedView& packed,
                                          std::byte* out) {
  const LayerLayout& layer = weights_.layer(index);
  const LayerLayout& dequantized = weights_.dequantized();
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(checks_.Packed("weights", packed, layer.bytes));
  SLUICE_RETURN_IF_ERROR(
      checks_.Check("a dequantized layer", out, dequantized.bytes));
  for (size_t i = 0; i < layer.vectors().size(); ++i) {
    const VectorLayout& from = *layer.vectors()[i];
    if (from.length == 0) continue;
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(out + dequantized.vectors()[i]->offset,
                                   packed.At(from.offset), from.bytes(),
                                   cudaMemcpyDeviceToDevice, place_.stream),
                   "copying a layer's vectors"));
  }
  for (size_t i = 0; i < layer.matrices().size(); ++i) {
    SLUICE_RETURN_IF_ERROR(gemm_->Dequantize(
        *layer.matrices()[i], packed, out + dequantized.matrices()[i]->offset));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::CheckCall(int layer, const PackedLayer& packed,
                                    const BatchView& batch,
                                    const float* x) const {
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("weights", packed.view, LayoutOf(layer, packed).bytes));
  return checks_.Rows(x, batch.rows);
}

absl::Status CudaBackend::Norm(const NormLayout* norm, const PackedView& packed,
                               const float* x, const int32_t* rows_of_x,
                               int32_t rows, DType dtype, void* out) const {
  NormRowsArgs args;
  args.x = x;
  args.rows_of_x = rows_of_x;
  args.rows = rows;
  args.n = spec_.hidden_size;
  args.eps = spec_.norm_eps;
  return WithElement(dtype, [&](auto* type) {
    auto* const to = static_cast<decltype(type)>(out);
    if (norm == nullptr) return ConvertRows(args, to, place_.stream);
    args.weight = norm->weight.In(packed);
    args.bias = norm->bias.In(packed);
    return spec_.norm == NormKind::kRmsNorm
               ? RmsNormRows(args, to, place_.stream)
               : LayerNormRows(args, to, place_.stream);
  });
}

absl::Status CudaBackend::Embed(const PackedView& packed,
                                const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("the embedding", packed, weights_.embedding().bytes));
  SLUICE_RETURN_IF_ERROR(checks_.Rows(x, batch.rows));
  // The numbers are tokens, then positions.
  const int32_t rows = batch.rows;
  numbers_.assign(batch.tokens.begin(), batch.tokens.begin() + rows);
  numbers_.resize(2 * rows);
  for (const SegmentView& segment : batch.segments) {
    for (int32_t i = 0; i < segment.num_tokens; ++i) {
      numbers_[rows + segment.row + i] = segment.start + i;
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::byte* const uploaded,
                          ring_->Put(std::as_bytes(std::span(numbers_))));
  const auto* const tokens = reinterpret_cast<const int32_t*>(uploaded);
  const bool project = weights_.embedding().project_in.n > 0;
  SLUICE_RETURN_IF_ERROR(WithElement(options_.dtype, [&](auto* type) {
    using T = ElementOf<decltype(type)>;
    const auto* const table =
        reinterpret_cast<const T*>(packed.At(weights_.embedding().table));
    if (project) {
      return GatherRows(table, tokens, rows, spec_.embed_dim, normed_.as<T>(),
                        place_.stream);
    }
    return GatherRows(table, tokens, rows, spec_.embed_dim, x, place_.stream);
  }));
  if (project) {
    SLUICE_RETURN_IF_ERROR(gemm_->ToFloat(
        GemmOf(weights_.embedding().project_in, packed, rows, normed_.data()),
        nullptr, false, x));
  }
  if (spec_.positions == PositionKind::kLearned) {
    SLUICE_RETURN_IF_ERROR(WithElement(options_.dtype, [&](auto* type) {
      using T = ElementOf<decltype(type)>;
      return AddGatheredRows(
          reinterpret_cast<const T*>(packed.At(weights_.embedding().positions)),
          tokens + rows, spec_.position_offset, rows, spec_.hidden_size, x,
          place_.stream);
    }));
  }
  if (!spec_.embed_norm) return absl::OkStatus();
  return Norm(&weights_.embedding().norm, packed, x, nullptr, rows,
              DType::kFloat32, x);
}

absl::Status CudaBackend::ProjectQkv(int layer, const PackedLayer& packed,
                                     const BatchView& batch, const float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  const LayerLayout& w = LayoutOf(layer, packed);
  SLUICE_RETURN_IF_ERROR(Norm(spec_.norms_inputs() ? &w.norm1 : nullptr,
                              packed.view, x, nullptr, batch.rows,
                              options_.dtype, normed_.data()));
  float* const qkv = Qkv(batch.attention_slot);
  SLUICE_RETURN_IF_ERROR(
      gemm_->ToFloat(GemmOf(w.qkv, packed.view, batch.rows, normed_.data()),
                     w.qkv_bias.In(packed.view), false, qkv));
  if (spec_.qk_norm == QkNorm::kNone) return absl::OkStatus();
  if (spec_.qk_norm == QkNorm::kAllHeads) {
    return NormAllHeads(w, packed.view, batch.rows, qkv);
  }
  const auto norm = [&](const VectorLayout& weight, int32_t heads, float* x) {
    NormRowsArgs args;
    args.x = x;
    args.rows = batch.rows * heads;
    args.n = spec_.head_dim;
    args.weight = weight.In(packed.view);
    args.eps = spec_.norm_eps;
    args.heads = heads;
    args.stride = q_width_ + 2 * kv_width_;
    args.own_weights = spec_.qk_norm == QkNorm::kEachHeadOwnWeight;
    return args.own_weights ? LayerNormRows(args, x, place_.stream)
                            : RmsNormRows(args, x, place_.stream);
  };
  SLUICE_RETURN_IF_ERROR(norm(w.q_norm, shard_.heads.size(), qkv));
  return norm(w.k_norm, shard_.kv_heads.size(), qkv + q_width_);
}

absl::Status CudaBackend::NormAllHeads(const LayerLayout& w,
                                       const PackedView& packed, int32_t rows,
                                       float* qkv) {
  const auto norm = [&](const VectorLayout& weight, ColumnRange heads,
                        int32_t all_heads, const std::vector<size_t>& bounds,
                        float* x, float* squares) -> absl::Status {
    HeadNormArgs args;
    args.x = x;
    args.stride = q_width_ + 2 * kv_width_;
    args.rows = rows;
    args.heads = heads.size();
    args.head_dim = spec_.head_dim;
    args.weight = weight.In(packed);
    args.eps = spec_.norm_eps;
    args.squares = squares;
    args.all_heads = all_heads;
    args.first_head = heads.begin;
    SLUICE_RETURN_IF_ERROR(SumHeadSquares(args, place_.stream));
    if (!bounds.empty()) {
      const size_t row_bytes = all_heads * sizeof(float);
      const auto* const from = reinterpret_cast<const std::byte*>(squares);
      SLUICE_RETURN_IF_ERROR(Gather(from + bounds[shard_.of.rank], row_bytes,
                                    squares, row_bytes, rows, bounds));
    }
    return NormHeadsBySquares(args, place_.stream);
  };
  // What was normed before is not needed any more.
  float* const squares = normed_.as<float>();
  SLUICE_RETURN_IF_ERROR(norm(w.q_norm, shard_.heads, spec_.num_heads,
                              bounds_.q_squares, qkv, squares));
  return norm(w.k_norm, shard_.kv_heads, spec_.num_kv_heads, bounds_.k_squares,
              qkv + q_width_, squares + int64_t{rows} * spec_.num_heads);
}

absl::Status CudaBackend::Attend(int layer, const BatchView& batch,
                                 int32_t first_segment, int32_t count) {
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(
      checks_.Pages(kv_layout_, batch, first_segment, count));
  const LayerSpec described = spec_.layer(layer);
  BatchAttention::Layer of_layer = {.window = described.window,
                                    .scale = described.attention_scale};
  if (const RotarySpec* const rotary = spec_.rotary(layer)) {
    const int64_t at = RotaryTableOffset(spec_, options_.max_model_len,
                                         spec_.layer(layer).rotary);
    of_layer.rotary = {rotary_cos_.as<float>() + at,
                       rotary_sin_.as<float>() + at, rotary->dim / 2};
  }
  return attention_->Attend(batch, first_segment, count, of_layer,
                            Qkv(batch.attention_slot),
                            attention_out_[batch.attention_slot].data());
}

absl::Status CudaBackend::Gather(const void* from, size_t from_stride, void* to,
                                 size_t to_stride, int32_t rows,
                                 std::span<const size_t> bounds, int to_rank) {
  if (!is_rank()) return absl::OkStatus();
  ColumnGather gather;
  gather.from = static_cast<const std::byte*>(from);
  gather.from_stride = from_stride;
  gather.to = static_cast<std::byte*>(to);
  gather.to_stride = to_stride;
  gather.rows = rows;
  gather.bounds = bounds;
  gather.to_rank = to_rank;
  gather.stream = place_.stream;
  gather.staging = exchange_.as<std::byte>();
  gather.staging_bytes = exchange_.bytes();
  return options_.collective->Gather(gather, pool_);
}

absl::Status CudaBackend::AddOutput(PackedGemm::Call gemm,
                                    const VectorLayout& bias,
                                    const NormLayout& sum_norm,
                                    const VectorLayout& output_norm, float* x) {
  const bool norms = spec_.norms_outputs();
  // The product's input is not in normed_.
  float* const sum = norms ? normed_.as<float>() : x;
  const size_t row_bytes = spec_.hidden_size * sizeof(float);
  float* const columns = sum + shard_.hidden.begin;
  gemm.y_stride = spec_.hidden_size;
  if (norms && gemm.spare == normed_.data()) gemm.spare_bytes = 0;
  SLUICE_RETURN_IF_ERROR(
      gemm_->ToFloat(gemm, bias.In(gemm.packed), !norms, columns));
  SLUICE_RETURN_IF_ERROR(
      Gather(columns, row_bytes, sum, row_bytes, gemm.rows, bounds_.x));
  if (norms) {
    const NormLayout norm = {output_norm, {}};
    SLUICE_RETURN_IF_ERROR(Norm(&norm, gemm.packed, sum, nullptr, gemm.rows,
                                DType::kFloat32, sum));
    return AddRows<float>(sum, nullptr, gemm.rows, spec_.hidden_size, x,
                          place_.stream);
  }
  if (spec_.norm_place != NormPlace::kSum) return absl::OkStatus();
  return Norm(&sum_norm, gemm.packed, x, nullptr, gemm.rows, DType::kFloat32,
              x);
}

absl::Status CudaBackend::ProjectOut(int layer, const PackedLayer& packed,
                                     const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  if (spec_.parallel) SLUICE_RETURN_IF_ERROR(AddMlp(layer, packed, batch, x));
  const LayerLayout& w = LayoutOf(layer, packed);
  const void* attention = attention_out_[batch.attention_slot].data();
  if (shard_.divides_heads) {
    SLUICE_RETURN_IF_ERROR(Gather(
        attention, q_width_ * ElementBytes(options_.dtype), gathered_.data(),
        bounds_.heads.back(), batch.rows, bounds_.heads));
    attention = gathered_.data();
  }
  PackedGemm::Call gemm = GemmOf(w.out, packed.view, batch.rows, attention);
  // Q, k and v, if they are there, are done with.
  gemm.spare = wide_.data();
  gemm.spare_bytes = wide_.bytes();
  return AddOutput(gemm, w.out_bias, w.norm1, w.out_norm, x);
}

absl::StatusOr<const void*> CudaBackend::MlpUp(const LayerLayout& w,
                                               const PackedView& packed,
                                               int32_t rows) {
  const PackedGemm::Call gemm = GemmOf(w.up, packed, rows, normed_.data());
  const auto activate = [&](const auto* from, auto* to) {
    const float* const bias = w.up_bias.In(packed);
    const int32_t n = shard_.inner.size();
    return spec_.gated_mlp ? GateRows(spec_.activation, from, bias, rows, n, to,
                                      place_.stream)
                           : ActivateRows(spec_.activation, from, bias, rows, n,
                                          to, place_.stream);
  };
  if (PackedGemm::OnlyToFloat(w.up, rows)) {
    SLUICE_RETURN_IF_ERROR(
        gemm_->ToFloat(gemm, nullptr, false, wide_.as<float>()));
    SLUICE_RETURN_IF_ERROR(WithElement(options_.dtype, [&](auto* type) {
      return activate(wide_.as<const float>(),
                      static_cast<decltype(type)>(inner_.data()));
    }));
    return inner_.data();
  }
  const std::optional<Epilogue> fused =
      spec_.gated_mlp ? std::nullopt : FusedActivation(spec_.activation);
  if (fused.has_value()) {
    const VectorLayout& bias =
        options_.dtype == DType::kFloat32 ? w.up_bias : w.up_bias_typed;
    SLUICE_RETURN_IF_ERROR(
        gemm_->ToTyped(gemm, *fused, bias.In(packed), wide_.data()));
    return wide_.data();
  }
  SLUICE_RETURN_IF_ERROR(
      gemm_->ToTyped(gemm, Epilogue::kNone, nullptr, wide_.data()));
  void* const to = spec_.gated_mlp ? inner_.data() : wide_.data();
  SLUICE_RETURN_IF_ERROR(WithElement(options_.dtype, [&](auto* type) {
    using T = ElementOf<decltype(type)>;
    return activate(wide_.as<const T>(), static_cast<T*>(to));
  }));
  return to;
}

absl::Status CudaBackend::Mlp(int layer, const PackedLayer& packed,
                              const BatchView& batch, float* x) {
  SLUICE_RETURN_IF_ERROR(CheckCall(layer, packed, batch, x));
  return spec_.parallel ? absl::OkStatus() : AddMlp(layer, packed, batch, x);
}

absl::Status CudaBackend::AddMlp(int layer, const PackedLayer& packed,
                                 const BatchView& batch, float* x) {
  const LayerLayout& w = LayoutOf(layer, packed);
  const NormLayout& norm = spec_.shared_norm ? w.norm1 : w.norm2;
  SLUICE_RETURN_IF_ERROR(Norm(spec_.norms_inputs() ? &norm : nullptr,
                              packed.view, x, nullptr, batch.rows,
                              options_.dtype, normed_.data()));
  const void* inner = nullptr;
  if (shard_.inner.size() > 0) {
    SLUICE_ASSIGN_OR_RETURN(inner, MlpUp(w, packed.view, batch.rows));
  }
  if (is_rank()) {
    SLUICE_RETURN_IF_ERROR(Gather(
        inner, shard_.inner.size() * ElementBytes(options_.dtype),
        gathered_.data(), bounds_.inner.back(), batch.rows, bounds_.inner));
    inner = gathered_.data();
  }
  PackedGemm::Call gemm = GemmOf(w.down, packed.view, batch.rows, inner);
  // The up matrix's inputs and, if they are not these, its results are done
  // with.
  const DeviceBuffer& spare = inner == wide_.data() ? normed_ : wide_;
  gemm.spare = spare.data();
  gemm.spare_bytes = spare.bytes();
  return AddOutput(gemm, w.down_bias, w.norm2, w.down_norm, x);
}

Backend::AttentionRows CudaBackend::attention_rows(int32_t slot) {
  return {reinterpret_cast<std::byte*>(Qkv(slot)),
          (q_width_ + 2 * kv_width_) * sizeof(float),
          attention_out_[slot].as<std::byte>(),
          q_width_ * ElementBytes(options_.dtype)};
}

absl::Status CudaBackend::HeadInput(const PackedView& packed,
                                    std::span<const int32_t> rows_of_x,
                                    const float* x, int32_t at) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("the head", packed, weights_.head()[0].bytes));
  SLUICE_RETURN_IF_ERROR(checks_.HeadRows(x, rows_of_x));
  SLUICE_ASSIGN_OR_RETURN(const std::byte* const rows,
                          ring_->Put(std::as_bytes(rows_of_x)));
  return Norm(spec_.final_norm ? &weights_.head()[0].norm : nullptr, packed, x,
              reinterpret_cast<const int32_t*>(rows),
              static_cast<int32_t>(rows_of_x.size()), options_.dtype,
              normed_.as<std::byte>() +
                  at * spec_.hidden_size * ElementBytes(options_.dtype));
}

absl::Status CudaBackend::FinalRows(const PackedView& packed,
                                    std::span<const int32_t> rows_of_x,
                                    const float* x, float* out) {
  if (rows_of_x.empty()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(Enter());
  SLUICE_RETURN_IF_ERROR(
      checks_.Packed("the head", packed, weights_.head()[0].bytes));
  SLUICE_RETURN_IF_ERROR(checks_.HeadRows(x, rows_of_x));
  // The logits' space is free until there are some.
  const size_t hidden = spec_.hidden_size;
  const size_t floats = logits_.bytes() / sizeof(float);
  SLUICE_RETURN_IF_ERROR(checks_.RoomForRow(floats));
  for (size_t begin = 0; begin < rows_of_x.size(); begin += floats / hidden) {
    const auto some = rows_of_x.subspan(
        begin, std::min(floats / hidden, rows_of_x.size() - begin));
    SLUICE_ASSIGN_OR_RETURN(const std::byte* const rows,
                            ring_->Put(std::as_bytes(some)));
    SLUICE_RETURN_IF_ERROR(Norm(
        spec_.final_norm ? &weights_.head()[0].norm : nullptr, packed, x,
        reinterpret_cast<const int32_t*>(rows),
        static_cast<int32_t>(some.size()), DType::kFloat32, logits_.data()));
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(out + begin * hidden, logits_.data(),
                                   some.size() * hidden * sizeof(float),
                                   cudaMemcpyDeviceToHost, place_.stream),
                   "copying hidden states to the host"));
    SLUICE_RETURN_IF_ERROR(Finish());
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::HeadLogits(const PackedView& packed, int section,
                                     int32_t rows) {
  SLUICE_RETURN_IF_ERROR(Enter());
  const HeadSectionLayout& layout = weights_.head()[section];
  SLUICE_RETURN_IF_ERROR(checks_.Packed("the head", packed, layout.bytes));
  const bool project = weights_.head()[0].project_out.n > 0;
  if (section == 0 && project) {
    SLUICE_RETURN_IF_ERROR(
        gemm_->ToTyped(GemmOf(layout.project_out, packed, rows, normed_.data()),
                       Epilogue::kNone, nullptr, wide_.data()));
  }
  PackedGemm::Call gemm = GemmOf(layout.head, packed, rows,
                                 project ? wide_.data() : normed_.data());
  // The leading rank gets whole rows, in which its columns come first.
  const bool leads = options_.tensor.leads();
  gemm.y_stride = leads ? spec_.vocab_size : shard_.vocab.size();
  float* const logits = logits_.as<float>() + layout.first_column;
  SLUICE_RETURN_IF_ERROR(
      gemm_->ToFloat(gemm, layout.head_bias.In(packed), false, logits));
  if (spec_.logit_cap != 0) {
    SLUICE_RETURN_IF_ERROR(CapRows(spec_.logit_cap, rows, layout.head.n,
                                   gemm.y_stride, logits, place_.stream));
  }
  if (section + 1 < weights_.num_head_sections()) return absl::OkStatus();
  return Gather(logits_.data(), gemm.y_stride * sizeof(float),
                leads ? logits_.data() : nullptr, bounds_.logits.back(), rows,
                bounds_.logits, /*to_rank=*/0);
}

absl::Status CudaBackend::TakeLogits(std::span<LogitRow> rows) {
  SLUICE_RETURN_IF_ERROR(Enter());
  samples_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].request.has_value()) continue;
    samples_.push_back({*rows[i].request, static_cast<int32_t>(i)});
  }
  if (!samples_.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const std::byte* const samples,
                            ring_->Put(std::as_bytes(std::span(samples_))));
    SLUICE_RETURN_IF_ERROR(
        SampleTokens(logits_.as<float>(), spec_.vocab_size,
                     reinterpret_cast<const RowSample*>(samples),
                     static_cast<int32_t>(samples_.size()),
                     answers_.as<TokenSample>(), place_.stream));
    SLUICE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(host_answers_.data(), answers_.data(),
                                   samples_.size() * sizeof(TokenSample),
                                   cudaMemcpyDeviceToHost, place_.stream),
                   "copying tokens to the host"));
  }
  SLUICE_RETURN_IF_ERROR(CopyLogits(rows));
  SLUICE_RETURN_IF_ERROR(Finish());
  for (size_t i = 0; i < samples_.size(); ++i) {
    LogitRow& row = rows[samples_[i].row];
    row.sample = host_answers_.as<TokenSample>()[i];
    row.logits = {};
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::CopyLogits(std::span<LogitRow> rows) {
  const size_t vocab = spec_.vocab_size;
  float* to = host_logits_.as<float>();
  for (size_t i = 0; i < rows.size();) {
    // Neighbouring rows are copied together.
    size_t end = i;
    for (; end < rows.size() && !rows[end].request.has_value(); ++end) {
      rows[end].logits = {to + (end - i) * vocab, vocab};
    }
    if (end > i) {
      const size_t count = (end - i) * vocab;
      SLUICE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(to, logits_.as<float>() + i * vocab,
                                     count * sizeof(float),
                                     cudaMemcpyDeviceToHost, place_.stream),
                     "copying logits to the host"));
      to += count;
    }
    i = end + 1;
  }
  return absl::OkStatus();
}

StepGraphs::Key CudaBackend::KeyOf(std::span<const BatchView> batches,
                                   std::span<float* const> x) const {
  StepGraphs::Key key;
  // Exchanges are not recorded: what ends one must not end in a recording.
  if (is_rank()) return key;
  for (size_t k = 0; k < batches.size(); ++k) {
    const BatchView& batch = batches[k];
    if (batch.rows == 0 ||
        static_cast<size_t>(batch.rows) != batch.segments.size()) {
      return {};
    }
    int32_t longest = 0;
    for (const SegmentView& segment : batch.segments) {
      if (segment.num_tokens != 1) return {};
      longest = std::max(longest, segment.start + 1);
    }
    key.push_back(batch.rows);
    key.push_back(GpuSpace::PlannedContext(longest));
    key.push_back(reinterpret_cast<intptr_t>(x[k]));
  }
  return key;
}

absl::StatusOr<bool> CudaBackend::BringStepData(
    std::span<const BatchView> batches, const StepGraphs::Key& key) {
  constexpr size_t kAlignment = 256;
  size_t bytes = 0;
  for (size_t i = 0; i < key.size(); i += 3) {
    bytes += BatchAttention::UploadBound(static_cast<int32_t>(key[i]),
                                         static_cast<int32_t>(key[i + 1]));
    bytes = RoundUpTo(bytes, kAlignment);
  }
  if (bytes > step_data_.bytes()) return false;
  // The last step's data is read already where logits were waited for.
  SLUICE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(step_copied_),
                                    "waiting for a step's data to be read"));
  placed_.clear();
  size_t at = 0;
  size_t end = 0;
  for (size_t k = 0; k < batches.size(); ++k) {
    SLUICE_ASSIGN_OR_RETURN(const std::span<const std::byte> content,
                            attention_->UploadOf(batches[k]));
    if (content.empty()) return false;
    placed_.push_back(
        {{content.begin(), content.end()}, step_data_.as<std::byte>() + at});
    std::copy(content.begin(), content.end(), step_host_.as<std::byte>() + at);
    end = at + content.size();
    at += BatchAttention::UploadBound(static_cast<int32_t>(key[3 * k]),
                                      static_cast<int32_t>(key[3 * k + 1]));
    at = RoundUpTo(at, kAlignment);
  }
  SLUICE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(step_data_.data(), step_host_.data(), end,
                                 cudaMemcpyHostToDevice, place_.stream),
                 "copying a step's data"));
  SLUICE_RETURN_IF_ERROR(CudaStatus(
      cudaEventRecord(step_copied_, place_.stream), "recording an event"));
  return true;
}

absl::StatusOr<bool> CudaBackend::ReplayLayers(
    std::span<const BatchView> batches, std::span<float* const> x) {
  SLUICE_RETURN_IF_ERROR(Enter());
  LeaveRecording();
  const StepGraphs::Key key = KeyOf(batches, x);
  if (key.empty()) return false;
  const bool has = graphs_.Has(key);
  if (!has && !graphs_.Wants(key)) return false;
  SLUICE_ASSIGN_OR_RETURN(const bool brought, BringStepData(batches, key));
  if (!brought) return false;
  if (has) {
    SLUICE_RETURN_IF_ERROR(graphs_.Launch(key));
    return true;
  }
  SLUICE_RETURN_IF_ERROR(graphs_.Begin(key));
  ring_->PutAmong(&placed_);
  gemm_->AllowTiming(false);
  return false;
}

void CudaBackend::LeaveRecording() {
  if (ring_ != nullptr) ring_->PutAmong(nullptr);
  if (gemm_ != nullptr) gemm_->AllowTiming(true);
  graphs_.Abort();
}

absl::Status CudaBackend::EndLayers() {
  if (!graphs_.recording()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(Enter());
  const absl::Status status = graphs_.End();
  LeaveRecording();
  return status;
}

absl::Status CudaBackend::Finish() {
  SLUICE_RETURN_IF_ERROR(Enter());
  // A step that broke off may still be recording.
  LeaveRecording();
  return CudaStatus(cudaStreamSynchronize(place_.stream),
                    "computing on the device");
}

}  // namespace sluice
