#include "runtime/exec/stage_loader.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "runtime/exec/activations/activations.h"
#include "runtime/exec/activations/device_activations.h"
#include "runtime/exec/attention/attention.h"
#include "runtime/exec/attention/host_attention.h"
#include "runtime/exec/device_plan.h"
#include "runtime/exec/kv/device_kv_stager.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/stage_memory.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/exec/weights/device_weights.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/exec/weights/weight_store.h"
#include "runtime/kernels/backend_factory.h"
#include "runtime/model/checkpoint/tensor_names.h"

namespace sluice {
namespace {

absl::Status CheckTensors(const DecoderSpec& spec, const TensorSource& source,
                          LayerRange layers) {
  const auto check = [&](const std::vector<TensorRef>& tensors) {
    for (const TensorRef& tensor : tensors) {
      SLUICE_RETURN_IF_ERROR(source.Check(tensor));
    }
    return absl::OkStatus();
  };
  if (layers.begin == 0) {
    SLUICE_RETURN_IF_ERROR(check(EmbeddingTensors(spec)));
  }
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    SLUICE_RETURN_IF_ERROR(check(LayerTensors(spec, layer)));
  }
  if (layers.end == spec.num_layers) {
    SLUICE_RETURN_IF_ERROR(check(HeadTensors(spec)));
  }
  return absl::OkStatus();
}

// A large vocabulary's logits take memory: no more rows of them than there are
// sequences to be sampled, if those are not few, for which scoring would wait.
int32_t HeadRows(const StageExecutor::Options& options) {
  return std::min({128, options.policy.max_step_tokens,
                   std::max(32, options.max_sequences)});
}

uint64_t LargestPart(std::span<const size_t> begins, uint64_t end) {
  uint64_t largest = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    largest = std::max<uint64_t>(
        largest, (i + 1 < begins.size() ? begins[i + 1] : end) - begins[i]);
  }
  return largest;
}

bool MayUseDisk(const StageExecutor::Options& options) {
  const Policy& policy = options.policy;
  return options.disk_budget != nullptr && !options.disk_dir.empty() &&
         (policy.automatic_weights || policy.automatic_kv_cache ||
          policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
          policy.activations.disk > 0);
}

// Micro-batches between ProjectQkv and ProjectOut at a time: two, if one is
// projected while the host attends for another.
int AttentionSlots(const Policy& policy) {
  return policy.overlap && policy.attention_site == AttentionSite::kHost ? 2
                                                                         : 1;
}

// Loads one stage, step by step; each step builds on the ones before it.
class StageLoader {
 public:
  StageLoader(const DecoderSpec& spec, const TensorSource& source,
              const StageExecutor::Options& options,
              const StageExecutor::Progress& progress,
              const std::atomic<bool>* cancelled)
      : spec_(spec),
        source_(source),
        options_(options),
        policy_(options.policy),
        progress_(progress),
        cancelled_(cancelled),
        threads_(policy_.compute_threads > 0 ? policy_.compute_threads
                                             : options.compute_threads),
        first_(options.layers.begin == 0),
        last_(options.layers.end == spec.num_layers) {}

  absl::StatusOr<std::unique_ptr<StageExecutor>> Load() {
    SLUICE_RETURN_IF_ERROR(MakeBackends());
    SLUICE_RETURN_IF_ERROR(Place(FindNeeds()));
    SLUICE_RETURN_IF_ERROR(MakeSpace());
    SLUICE_RETURN_IF_ERROR(Report(0));
    SLUICE_RETURN_IF_ERROR(OpenImages());
    SLUICE_RETURN_IF_ERROR(LoadEmbedding());
    SLUICE_RETURN_IF_ERROR(LoadWeights());
    SLUICE_RETURN_IF_ERROR(MakeAttention());
    SLUICE_RETURN_IF_ERROR(MakeActivations());
    MakeHead();
    ReportPlacement();
    return std::make_unique<StageSweep>(spec_, options_, std::move(parts_));
  }

 private:
  absl::Status MakeBackends() {
    parts_.stats = std::make_unique<SweepStats>();
    parts_.trace_row = AddTraceRow(options_.tracer, "compute");
    BackendOptions backend = {
        .layers = options_.layers,
        .dtype = policy_.dtype,
        .weight_format = policy_.compress_weights,
        .kv_format = KvFormatOf(policy_),
        .kv_page_alignment = MayUseDisk(options_) ? kDiskAlignment : 64,
        .sparsity = policy_.sparsity,
        .max_rows = policy_.max_step_tokens,
        .head_rows = HeadRows(options_),
        .max_model_len = options_.max_model_len,
        .threads = threads_,
        .cores = options_.cores,
        .budget = options_.host_budget,
        .marks = options_.marks};
    if (options_.device_budget != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.device, CreateDevice(options_.device, options_.device_budget,
                                      options_.tracer));
      backend.device = parts_.device.get();
      backend.attention_slots = AttentionSlots(policy_);
    }
    SLUICE_ASSIGN_OR_RETURN(
        parts_.backend, CreateBackend(options_.device.backend, spec_, backend));
    if (has_device()) {
      // It has the embedding, but never the head.
      backend.layers.end = std::min(options_.layers.end, spec_.num_layers - 1);
      backend.beside = std::exchange(backend.device, nullptr);
      // These threads and the device's would be in each other's way.
      backend.cores.clear();
      SLUICE_ASSIGN_OR_RETURN(parts_.host,
                              CreateBackend(BackendKind::kCpu, spec_, backend));
    }
    if (options_.wrap_backend) {
      options_.wrap_backend(parts_.backend, parts_.device.get());
    }
    parts_.compute = std::make_unique<DeviceCompute>(
        parts_.backend.backend.get(), &parts_.stats->projection_seconds,
        parts_.trace_row);
    parts_.buffers = std::make_shared<ActivationPool>(parts_.device.get());
    const BackendParts& host = has_device() ? parts_.host : parts_.backend;
    context_ = {.memory = options_.host_budget,
                .disk = options_.disk_budget,
                .disk_dir = options_.disk_dir,
                .device = parts_.device.get(),
                .overlap = policy_.overlap,
                .backend = parts_.backend.backend.get(),
                .packed = parts_.backend.weights.get(),
                .host_backend = host.backend.get(),
                .packed_embedding = host.weights.get(),
                .pool = host.pool.get(),
                .compute = parts_.compute.get(),
                .layers = options_.layers,
                .hidden_size = spec_.hidden_size,
                .max_rows = policy_.max_step_tokens,
                .buffers = parts_.buffers.get(),
                .stats = parts_.stats.get(),
                .row = parts_.trace_row,
                .tracer = options_.tracer};
    return absl::OkStatus();
  }

  StageNeeds FindNeeds() const {
    const PackedWeights& packed = *parts_.backend.weights;
    StageNeeds needs;
    needs.layer_bytes = packed.LayerBytes();
    needs.num_layers = options_.layers.size();
    if (first_) {
      needs.embedding_bytes = context_.packed_embedding->EmbeddingBytes();
      needs.embedding_rows_bytes = EmbeddingStore::MemoryBytes(
          *context_.packed_embedding, policy_.max_step_tokens);
    }
    needs.part_bytes = LargestPart(packed.LayerParts(), needs.layer_bytes);
    for (int s = 0; last_ && s < packed.num_head_sections(); ++s) {
      needs.head_sections.push_back(packed.HeadBytes(s));
      needs.part_bytes = std::max(
          needs.part_bytes,
          LargestPart(packed.HeadParts(s), needs.head_sections.back()));
    }
    // Several micro-batches share one expansion; a single one dequantizes
    // inside its products.
    if (policy_.num_microbatches > 1) {
      needs.expanded_bytes = packed.ExpandedLayerBytes();
    }
    needs.layer_page_bytes = parts_.backend.kv_layout.layer_page_bytes();
    needs.max_sequence_pages =
        (int64_t{options_.max_model_len} + kPageTokens - 1) / kPageTokens;
    needs.kv_pages = needs.max_sequence_pages * options_.max_sequences;
    needs.sequences_per_batch = std::min(policy_.gbs, options_.max_sequences);
    needs.activation_bytes = uint64_t{sizeof(float)} * policy_.max_step_tokens *
                             static_cast<uint64_t>(spec_.hidden_size);
    return needs;
  }

  // Decides what lies where, before anything is loaded, and charges what is
  // charged at once.
  absl::Status Place(StageNeeds needs) {
    MemoryBudget* const memory = options_.host_budget;
    activation_bytes_ = needs.activation_bytes;
    total_bytes_ = needs.weight_bytes();
    expanded_bytes_ = needs.expanded_bytes;
    Policy rest = policy_;
    if (has_device()) {
      SLUICE_ASSIGN_OR_RETURN(
          on_device_, PlanDevice(needs, policy_, *options_.device_budget));
      needs = NeedsBesideDevice(needs, on_device_);
      rest = PolicyBesideDevice(policy_, on_device_);
    }
    activations_ = {
        .num_batches = policy_.num_microbatches - on_device_.resident_batches,
        .max_rows = policy_.max_step_tokens,
        .hidden = spec_.hidden_size,
        .disk = rest.activations.disk};
    // A single micro-batch has nobody to make room for.
    stage_activations_ =
        rest.activations.disk > 0 && activations_.num_batches > 1;
    if (stage_activations_) {
      needs.activation_memory_bytes = activations_.memory_bytes();
      needs.activation_staging_bytes = activations_.staging_bytes();
      needs.activation_disk_bytes = activations_.disk_bytes();
    }
    // The others are in host memory; those of a device begin and end there.
    const int in_memory = stage_activations_ ? on_device_.resident_batches
                                             : policy_.num_microbatches;
    SLUICE_ASSIGN_OR_RETURN(
        parts_.activation_charge,
        memory->Charge("activations", needs.activation_bytes * in_memory));
    SLUICE_ASSIGN_OR_RETURN(
        plan_, PlanStageMemory(needs, rest, MayUseDisk(options_), memory,
                               options_.disk_budget));
    plan_.weights = WithDevice(on_device_, plan_.weights);
    return absl::OkStatus();
  }

  // The disk's wire, and room for expanded layers.
  absl::Status MakeSpace() {
    if (plan_.uses_disk() || stage_activations_) {
      IoEngine::Options io;
      io.tracer = options_.tracer;
      io.marks = options_.marks;
      SLUICE_ASSIGN_OR_RETURN(parts_.io, IoEngine::Create(io));
      context_.io = parts_.io.get();
    }
    parts_.expands = expanded_bytes_ > 0;
    if (parts_.expands) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.expanded,
          WorkBuffer::Create("expanded layer", expanded_bytes_,
                             options_.host_budget, parts_.device.get()));
    }
    return absl::OkStatus();
  }

  absl::Status OpenImages() {
    const auto open = [&](const PackedWeights& packed) {
      return ImageStore::Create({.weights = &packed,
                                 .source = &source_,
                                 .disk_dir = options_.disk_dir,
                                 .memory = options_.host_budget,
                                 .disk = options_.disk_budget},
                                [&](uint64_t) { return GoOn(); });
    };
    if (plan_.needs_images()) {
      SLUICE_ASSIGN_OR_RETURN(images_, open(*parts_.backend.weights));
    }
    if (plan_.embedding_on_disk) {
      SLUICE_ASSIGN_OR_RETURN(embedding_images_,
                              open(*context_.packed_embedding));
    }
    return absl::OkStatus();
  }

  absl::Status LoadEmbedding() {
    if (!first_) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(
        parts_.embedding,
        EmbeddingStore::Load({.weights = context_.packed_embedding,
                              .source = &source_,
                              .max_rows = policy_.max_step_tokens,
                              .memory = options_.host_budget,
                              .images = embedding_images_.get(),
                              .io = parts_.io.get()},
                             [&](uint64_t bytes) { return Report(bytes); }));
    context_.embedding = parts_.embedding.get();
    return absl::OkStatus();
  }

  absl::Status LoadWeights() {
    const WeightStore::Options store = {
        .context = context_,
        .source = &source_,
        .num_layers = spec_.num_layers,
        .fractions = plan_.weights,
        .slots = plan_.weight_slots,
        .images = plan_.weights.disk > 0 ? images_.get() : nullptr,
        .placement = &parts_.placement};
    const auto report = [&](uint64_t bytes) { return Report(bytes); };
    if (has_device()) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.weights,
          DeviceWeights::Load(store, on_device_.weight_slots, report));
    } else {
      SLUICE_ASSIGN_OR_RETURN(parts_.weights, WeightStore::Load(store, report));
    }
    return absl::OkStatus();
  }

  // For a device's backend, and for the host's.
  absl::Status MakeKv(KvStreams* device_kv, KvStreams* host_kv) {
    const KvLayout& layout = parts_.backend.kv_layout;
    parts_.pages[static_cast<size_t>(Tier::kDevice)] = on_device_.kv_pages;
    parts_.pages[static_cast<size_t>(Tier::kHost)] = plan_.host_pages;
    parts_.pages[static_cast<size_t>(Tier::kDisk)] = plan_.disk_pages;
    // On its way to the device only with attention there.
    StreamContext through = context_;
    if (attends_on_host()) through.device = nullptr;
    std::unique_ptr<KvArena> on_host;
    std::unique_ptr<KvStager> on_disk;
    if (plan_.host_pages > 0) {
      SLUICE_ASSIGN_OR_RETURN(
          on_host, KvArena::Create(layout, plan_.host_pages,
                                   options_.host_budget, through.device));
    }
    if (plan_.disk_pages > 0) {
      SLUICE_ASSIGN_OR_RETURN(
          on_disk, KvStager::Create({.layout = layout,
                                     .num_pages = plan_.disk_pages,
                                     .staging_bytes = plan_.kv_staging_bytes,
                                     .context = through}));
    }
    if (on_device_.kv_pages > 0) {
      SLUICE_ASSIGN_OR_RETURN(
          std::unique_ptr<KvArena> arena,
          KvArena::CreateOn(parts_.device.get(), layout, on_device_.kv_pages));
      device_kv->Add(std::make_unique<ResidentKv>(std::move(arena)),
                     Tier::kDevice, Tier::kDevice);
    }
    if (!attends_on_host()) {
      SLUICE_ASSIGN_OR_RETURN(
          std::unique_ptr<DeviceKvStager> staged,
          DeviceKvStager::Create({.context = context_,
                                  .layout = layout,
                                  .group_pages = on_device_.staging_pages,
                                  .slots = on_device_.staging_slots,
                                  .host = std::move(on_host),
                                  .disk = std::move(on_disk)}));
      device_kv->Add(std::move(staged), Tier::kHost, Tier::kDisk);
    }
    if (on_host != nullptr) {
      host_kv->Add(std::make_unique<ResidentKv>(std::move(on_host)),
                   Tier::kHost, Tier::kHost);
    }
    if (on_disk != nullptr) {
      host_kv->Add(std::move(on_disk), Tier::kDisk, Tier::kDisk);
    }
    return absl::OkStatus();
  }

  absl::Status MakeAttention() {
    KvStreams device_kv, host_kv;
    SLUICE_RETURN_IF_ERROR(MakeKv(&device_kv, &host_kv));
    if (has_device() && !host_kv.empty()) {
      const int slots = AttentionSlots(policy_);
      // Streams on disk are held one at a time.
      const bool defer = slots > 1 && !stage_activations_;
      parts_.attention = std::make_unique<HostAttention>(
          context_, slots, defer, std::move(device_kv), std::move(host_kv));
    } else {
      parts_.attention = std::make_unique<LocalAttention>(
          context_.backend, options_.layers.begin,
          &parts_.stats->attention_seconds, parts_.trace_row,
          std::move(has_device() ? device_kv : host_kv));
    }
    return absl::OkStatus();
  }

  absl::Status MakeActivations() {
    std::unique_ptr<ActivationStager> stager;
    if (stage_activations_) {
      SLUICE_ASSIGN_OR_RETURN(
          stager, ActivationStager::Create(
                      {.shape = activations_, .context = context_}));
    }
    if (has_device()) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.activations,
          DeviceActivations::Create(context_,
                                    {.num_batches = policy_.num_microbatches,
                                     .resident = on_device_.resident_batches,
                                     .slots = on_device_.activation_slots,
                                     .disk = std::move(stager)}));
    } else if (stage_activations_) {
      parts_.activations =
          std::make_unique<StagedActivations>(context_, std::move(stager));
    } else {
      parts_.activations = std::make_unique<ResidentActivations>(context_);
    }
    return absl::OkStatus();
  }

  void MakeHead() {
    if (!last_) return;
    parts_.head = std::make_unique<StageHead>(
        StageHead::Options{.context = context_,
                           .head_rows = HeadRows(options_),
                           .weights = parts_.weights.get(),
                           .logits_observer = options_.logits_observer});
  }

  void ReportPlacement() {
    RealisedPlacement& placement = parts_.placement;
    placement.activation_bytes = activation_bytes_ * policy_.num_microbatches;
    placement.activation_device_bytes =
        activation_bytes_ * on_device_.resident_batches;
    placement.activation_host_bytes = stage_activations_
                                          ? activations_.memory_bytes()
                                          : activations_.total_bytes();
    if (first_) {
      placement.embedding_bytes = parts_.embedding->bytes();
      placement.embedding_host_bytes = parts_.embedding->resident_bytes();
    }
    placement.weight_bytes += placement.embedding_bytes;
    placement.weight_host_bytes += placement.embedding_host_bytes;
    const auto pages = [&](int64_t count) {
      return static_cast<uint64_t>(count) *
             parts_.backend.kv_layout.page_bytes();
    };
    placement.kv_device_bytes = pages(on_device_.kv_pages);
    placement.kv_host_bytes = pages(
        plan_.host_pages - (plan_.disk_pages > 0 ? 0 : plan_.stranded_pages));
    placement.kv_bytes = pages(on_device_.kv_pages + plan_.host_pages +
                               plan_.disk_pages - plan_.stranded_pages);
  }

  bool has_device() const { return parts_.device != nullptr; }
  // Where KV that is not on a device goes on its way to attention.
  bool attends_on_host() const { return on_device_.staging_slots == 0; }
  // To be called after each piece of work, of a few MiB.
  absl::Status GoOn() {
    AddMark(options_.marks);
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed)) {
      return absl::CancelledError("loading was cancelled");
    }
    return absl::OkStatus();
  }
  absl::Status Report(uint64_t bytes) {
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
    return GoOn();
  }

  const DecoderSpec& spec_;
  const TensorSource& source_;
  const StageExecutor::Options& options_;
  const Policy& policy_;
  const StageExecutor::Progress& progress_;
  const std::atomic<bool>* const cancelled_;
  const int threads_;
  const bool first_, last_;

  uint64_t activation_bytes_ = 0;  // of a micro-batch
  uint64_t expanded_bytes_ = 0;    // of a layer, or none
  uint64_t total_bytes_ = 0;       // of weights
  uint64_t done_bytes_ = 0;
  StreamContext context_;  // once Place() is done
  DevicePlan on_device_;
  StageMemory plan_;
  // Of micro-batches that don't stay on a device; whether they are staged.
  ActivationStager::Shape activations_;
  bool stage_activations_ = false;
  // For the layers and the head, and for the embedding: of different backends,
  // if there are two. Null if nothing of that is on disk.
  std::unique_ptr<ImageStore> images_, embedding_images_;
  StageParts parts_;
};

}  // namespace

SweepStats StageParts::Totals() const {
  SweepStats sum = *stats;
  StreamTotals moved = weights->totals();
  if (embedding != nullptr) moved += embedding->totals();
  sum.weight_stall_seconds = moved.stall_seconds;
  sum.weight_read_bytes = moved.read_bytes;
  moved = activations->totals();
  sum.activation_stall_seconds = moved.stall_seconds;
  sum.activation_read_bytes = moved.read_bytes;
  sum.activation_write_bytes = moved.write_bytes;
  attention->AddTo(&sum);
  if (io != nullptr) {
    const IoEngine::Totals totals = io->totals();
    sum.disk_read_seconds = totals.read_busy_seconds;
    sum.disk_write_seconds = totals.write_busy_seconds;
    sum.disk_read_bytes = totals.bytes_read;
    sum.disk_write_bytes = totals.bytes_written;
  }
  if (device != nullptr) {
    const Device::Totals totals = device->totals();
    sum.h2d_seconds = totals.h2d_busy_seconds;
    sum.d2h_seconds = totals.d2h_busy_seconds;
    sum.h2d_bytes = totals.h2d_bytes;
    sum.d2h_bytes = totals.d2h_bytes;
  }
  return sum;
}

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageExecutor::Options& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.device));
  SLUICE_RETURN_IF_ERROR(options.Validate(spec));
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, source, options.layers));
  return StageLoader(spec, source, options, progress, cancelled).Load();
}

}  // namespace sluice
