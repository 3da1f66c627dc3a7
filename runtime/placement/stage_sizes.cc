#include "runtime/placement/stage_sizes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/blocks.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/placement/weight_placement.h"

namespace sluice {
namespace {

constexpr uint64_t kKvGroupBytes = uint64_t{8} << 20;

constexpr int64_t kMaxHeadRows = 512;
constexpr int64_t kManyHeadRows = 128;
constexpr int64_t kMinHeadRows = 32;

// The rows for which the head's weights are read once: those that a block
// samples in a step, as far as buffers of a micro-batch's rows hold them. A
// large vocabulary's logits take memory: no more rows of them than that, or,
// for scoring, than there are sequences, if those are neither few nor many.
int32_t HeadRows(const StageShape& shape) {
  const int64_t block =
      int64_t{shape.policy.gbs} * shape.policy.num_microbatches;
  const int64_t sequences = shape.max_sequences;
  const int64_t rows =
      std::min(sequences, std::clamp(block, kManyHeadRows, kMaxHeadRows));
  return static_cast<int32_t>(std::min<int64_t>(std::max(rows, kMinHeadRows),
                                                shape.policy.max_step_tokens));
}

// Micro-batches between ProjectQkv and ProjectOut at a time: two, if one is
// projected while the host attends for another.
int AttentionSlots(const StageShape& shape) {
  return shape.has_device() && shape.policy.overlap &&
                 shape.policy.attention_site == AttentionSite::kHost
             ? 2
             : 1;
}

// Returns the bytes of buffers, each of which is whole blocks on a device.
uint64_t Buffers(std::initializer_list<size_t> buffers, bool blocks) {
  uint64_t sum = 0;
  for (const size_t bytes : buffers) {
    sum += blocks ? RoundUpToDiskBlock(bytes) : bytes;
  }
  return sum;
}

// Returns the bytes of a CPU backend, but for its threads' memory.
uint64_t CpuBuffers(const CpuSpace& space, int slots, bool blocks) {
  return Buffers({space.normed, space.wide, space.logits, space.rotary,
                  space.rotary, space.routed, space.mixed},
                 blocks) +
         slots * Buffers({space.attention, space.qkv}, blocks);
}

void AddGpu(const StageShape& shape, StageSizes* sizes) {
  const GpuSpace gpu(*shape.model, shape.backend(), sizes->layouts);
  sizes->device_workspace =
      Buffers({gpu.normed, gpu.rotary, gpu.rotary, gpu.wide, gpu.inner,
               gpu.gathered, gpu.exchange, gpu.logits, gpu.answers,
               gpu.workspace, gpu.dequantized, gpu.counters,
               GpuSpace::kRingParts * gpu.upload_part, gpu.step_data},
              true) +
      AttentionSlots(shape) * Buffers({gpu.attention, gpu.qkv}, true);
  sizes->host_workspace +=
      GpuSpace::kRingParts * gpu.upload_part + gpu.step_data + gpu.host_answers;
  if (shape.tensor.leads()) sizes->host_workspace += gpu.logits;
}

}  // namespace

bool MayUseDisk(const Policy& policy) {
  return policy.automatic_weights || policy.automatic_kv_cache ||
         policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
         policy.activations.disk > 0;
}

BackendShape StageShape::backend() const {
  BackendShape backend;
  backend.layers = layers;
  backend.tensor = tensor;
  backend.dtype = policy.dtype;
  backend.weight_format = policy.compress_weights;
  backend.kv_format = KvFormatOf(policy);
  backend.kv_page_alignment = may_use_disk ? kDiskBlockBytes : 64;
  backend.sparsity = policy.sparsity;
  backend.max_rows = policy.max_step_tokens;
  // Row by row, each micro-batch goes through all layers by itself.
  backend.mixture_rows =
      int64_t{policy.max_step_tokens} *
      (policy.schedule == Schedule::kRowByRow && layers.size() > 1
           ? 1
           : policy.num_microbatches);
  backend.head_rows = HeadRows(*this);
  backend.max_model_len = max_model_len;
  backend.threads =
      policy.compute_threads > 0 ? policy.compute_threads : threads;
  backend.attention_slots = AttentionSlots(*this);
  return backend;
}

BackendShape StageShape::beside() const {
  BackendShape beside = backend();
  beside.layers.end = std::min(layers.end, model->num_layers - 1);
  return beside;
}

PanelRules StageShape::rules() const {
  return device == BackendKind::kCuda ? PanelRules::Gpu(policy.dtype)
                                      : PanelRules::Cpu(policy.dtype);
}

KvGroups MakeKvGroups(const DecoderSpec& spec, LayerRange layers,
                      int32_t max_model_len) {
  const auto saves = [&](int32_t window) {
    return window > 0 && window < max_model_len &&
           KvGroups::PagesOfWindow(window) < PagesOf(max_model_len);
  };
  KvGroups groups;
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    const int32_t window = spec.layer(layer).window;
    const KvGroup group = saves(window) ? KvGroup::kWindow : KvGroup::kAll;
    if (group == KvGroup::kWindow) {
      groups.window = std::max(groups.window, window);
    }
    groups.layers.push_back({group, groups.sizes[group]++});
  }
  return groups;
}

std::vector<const MatrixLayout*> StageSizes::MatricesOf(
    const WeightUnit& unit) const {
  if (unit.packed >= num_layers()) {
    const HeadSectionLayout& section = layouts.head[unit.packed - num_layers()];
    return {&section.head, &section.project_out};
  }
  const LayerLayout& layer = layouts.layer(shape.layers.begin + unit.packed);
  if (unit.expert >= 0) return {&layer.expert.up, &layer.expert.down};
  const auto matrices = layer.matrices();
  return {matrices.begin(), matrices.end()};
}

size_t StageSizes::PartBegin(size_t unit, size_t offset) const {
  const WeightUnit& of = weights.all[unit];
  return of.packed < num_layers()
             ? layouts.layer(shape.layers.begin + of.packed)
                       .PartBegin(of.begin + offset) -
                   of.begin
             : layouts.head[of.packed - num_layers()].PartBegin(offset);
}

int64_t StageSizes::WindowPagesWith(int64_t pages) const {
  if (kv_groups.window == 0 || pages == 0) return 0;
  const int64_t share =
      pages >= kv_pages
          ? window_pages
          : static_cast<int64_t>(std::ceil(static_cast<double>(pages) /
                                           static_cast<double>(kv_pages) *
                                           static_cast<double>(window_pages)));
  return std::max<int64_t>(share, kv_groups.window_pages());
}

StageSizes::StageSizes(const StageShape& of) : shape(of) {
  const DecoderSpec& spec = *shape.model;
  const BackendShape backend = shape.backend();
  const int threads = backend.threads;
  head_rows = backend.head_rows;
  layouts = PackedLayouts::Of(spec, backend, shape.rules());
  embedding = layouts.embedding;
  if (embedding.bytes > 0 && shape.rules().row_major) {
    embedding = MakeEmbeddingLayout(spec, shape.max_model_len,
                                    PanelRules::Cpu(shape.policy.dtype));
  }
  embedding_on_disk = 0;
  embedding_staging = 0;
  if (embedding.bytes > 0) {
    embedding_on_disk = EmbeddingOnDiskBytes(embedding, backend.max_rows);
    const auto table = [&](int64_t columns) {
      return TableStagingBytes(columns, shape.policy.dtype, threads);
    };
    embedding_staging = table(spec.embed_dim);
    if (embedding.position_rows > 0) {
      embedding_staging = std::max(embedding_staging, table(spec.hidden_size));
    }
    if (embedding.project_in.n > 0) {
      embedding_staging = std::max<uint64_t>(
          embedding_staging, MatrixStagingBytes(embedding.project_in, threads));
    }
  }
  dequantized =
      shape.policy.num_microbatches > 1 ? layouts.dequantized.bytes : 0;
  weights = WeightUnits(layouts, shape.layers);
  packed_staging.resize(weights.num_packed());
  for (const WeightUnit& unit : weights.all) {
    units.push_back(unit.bytes);
    granules.push_back(PlacementGranule(weights.packed_bytes(unit.packed)));
    uint64_t& staging = unit_staging.emplace_back(0);
    for (const MatrixLayout* w : MatricesOf(unit)) {
      staging = std::max<uint64_t>(staging, MatrixStagingBytes(*w, threads));
    }
    packed_staging[unit.packed] =
        std::max(packed_staging[unit.packed], staging);
  }
  layer_bytes = expert_bytes = largest_expert = 0;
  for (const WeightUnit& unit : weights.all) {
    if (unit.packed < num_layers()) layer_bytes += unit.bytes;
    if (unit.expert < 0) continue;
    expert_bytes += unit.bytes;
    largest_expert = std::max<uint64_t>(largest_expert, unit.bytes);
  }
  streamable = std::accumulate(units.begin(), units.end(), uint64_t{0});
  largest_unit = *std::max_element(units.begin(), units.end());

  kv = {.num_layers = num_layers(),
        .num_kv_heads = backend.shard(spec).kv_heads.size(),
        .head_dim = spec.head_dim,
        .format = backend.kv_format,
        .page_alignment = backend.kv_page_alignment};
  kv_groups = MakeKvGroups(spec, shape.layers, shape.max_model_len);
  sequence_pages = PagesOf(shape.max_model_len);
  const int32_t pages_each = PagesOf(
      shape.kv_positions > 0 ? shape.kv_positions : shape.max_model_len);
  kv_pages = int64_t{shape.max_sequences} * pages_each;
  window_pages = int64_t{shape.max_sequences} *
                 std::min(pages_each, kv_groups.window_pages());
  const int64_t sequences =
      std::max(1, std::min(shape.policy.gbs, shape.max_sequences));
  group_pages = std::clamp<int64_t>(
      static_cast<int64_t>(kKvGroupBytes / kv.layer_page_bytes()),
      sequence_pages, sequences * sequence_pages);
  activation = uint64_t{sizeof(float)} * backend.max_rows *
               static_cast<uint64_t>(spec.hidden_size);
  const int neighbours = (shape.layers.begin > 0 ? 1 : 0) +
                         (shape.layers.end < spec.num_layers ? 1 : 0);
  link_buffers = shape.tensor.leads()
                     ? neighbours * LinkFrames(shape.policy) * activation
                     : 0;

  // The host's backend, which beside a device has copies of the rows between
  // both; then where the layers are computed.
  const CpuSpace host(spec, shape.has_device() ? shape.beside() : backend);
  const int slots = backend.attention_slots;
  device_workspace = 0;
  host_workspace = host.threads + CpuBuffers(host, slots, false);
  if (shape.device == BackendKind::kCpuDiscrete) {
    const CpuSpace device(spec, backend);
    device_workspace = CpuBuffers(device, slots, true);
    host_workspace += device.threads;
    if (shape.tensor.leads()) host_workspace += device.logits;
  } else if (shape.device == BackendKind::kCuda) {
    AddGpu(shape, this);
  }
}

}  // namespace sluice
