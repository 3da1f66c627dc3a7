#include "runtime/exec/stage_loader.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/model/checkpoint/tensor_names.h"
#include "runtime/placement/stage_placement.h"

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
        sizes_(Shape()) {}

  absl::StatusOr<std::unique_ptr<StageExecutor>> Load() {
    parts_.stats = std::make_unique<SweepStats>();
    parts_.trace_row = AddTraceRow(options_.tracer, "compute");
    SLUICE_RETURN_IF_ERROR(Place());
    SLUICE_RETURN_IF_ERROR(MakeBackends());
    SLUICE_RETURN_IF_ERROR(ChargeWorkSpace());
    SLUICE_RETURN_IF_ERROR(Report(0));
    SLUICE_RETURN_IF_ERROR(OpenImages());
    SLUICE_RETURN_IF_ERROR(LoadEmbedding());
    SLUICE_RETURN_IF_ERROR(LoadWeights());
    SLUICE_RETURN_IF_ERROR(MakeKv());
    SLUICE_RETURN_IF_ERROR(MakeActivations());
    if (parts_.device != nullptr) SLUICE_RETURN_IF_ERROR(MakeDeviceParts());
    ReportPlacement();
    return std::make_unique<StageSweep>(spec_, options_, std::move(parts_),
                                        threads_);
  }

 private:
  StageShape Shape() const;
  // Decides what lies where, before anything is loaded. All that follows keeps
  // to it, and to its order.
  absl::Status Place();
  absl::Status MakeBackends();
  absl::Status ChargeWorkSpace();
  absl::Status OpenImages();
  absl::Status LoadEmbedding();
  absl::Status LoadWeights();
  absl::Status MakeKv();
  absl::Status MakeActivations();
  absl::Status MakeDeviceParts();
  void ReportPlacement();

  int64_t pages(Tier tier) const {
    return plan_.pages[static_cast<size_t>(tier)];
  }
  // Tokens are looked up on the host.
  Backend& embedder() const {
    return parts_.host_backend != nullptr ? *parts_.host_backend
                                          : *parts_.backend;
  }
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
    if (progress_)
      progress_(done_bytes_, sizes_.embedding.bytes + sizes_.streamable);
    return GoOn();
  }

  const DecoderSpec& spec_;
  const TensorSource& source_;
  const StageExecutor::Options& options_;
  const Policy& policy_;
  const StageExecutor::Progress& progress_;
  const std::atomic<bool>* const cancelled_;
  const int threads_;
  const bool first_;

  const StageSizes sizes_;
  StagePlacement plan_;
  uint64_t done_bytes_ = 0;
  // For the layers and the head, and for the embedding: of different backends,
  // if there are two. Null if nothing of that is on disk.
  std::unique_ptr<ImageStore> images_, embedding_images_;
  StageParts parts_;
};

StageShape StageLoader::Shape() const {
  const bool has_disk =
      options_.disk_budget != nullptr && !options_.disk_dir.empty();
  return {.model = &spec_,
          .layers = options_.layers,
          .policy = policy_,
          .device = options_.device.backend,
          .max_model_len = options_.max_model_len,
          .max_sequences = options_.max_sequences,
          .threads = options_.compute_threads,
          .may_use_disk = has_disk && MayUseDisk(policy_)};
}

absl::Status StageLoader::Place() {
  TierLimits limits = {};
  const auto limit = [&](Tier tier, const MemoryBudget* budget) {
    if (budget != nullptr) {
      limits[static_cast<size_t>(tier)] = budget->free_bytes();
    }
  };
  limit(Tier::kDevice, options_.device_budget);
  limit(Tier::kHost, options_.host_budget);
  limit(Tier::kDisk, options_.disk_budget);
  plan_ = sluice::Place(sizes_, policy_, limits);
  return CheckFits(sizes_, plan_, limits);
}

absl::Status StageLoader::MakeBackends() {
  Backend::Options backend = {sizes_.shape.backend()};
  backend.cores = options_.cores;
  backend.budget = options_.host_budget;
  backend.marks = options_.marks;
  if (options_.device_budget != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(
        parts_.device,
        CreateDevice(options_.device, options_.device_budget, options_.tracer));
    backend.device = parts_.device.get();
  }
  SLUICE_ASSIGN_OR_RETURN(
      parts_.backend, Backend::Create(options_.device.backend, spec_, backend));
  if (parts_.device != nullptr) {
    // These threads and the device's would be in each other's way: no cores.
    Backend::Options beside = {sizes_.shape.beside()};
    beside.budget = options_.host_budget;
    beside.beside = parts_.device.get();
    beside.marks = options_.marks;
    SLUICE_ASSIGN_OR_RETURN(parts_.host_backend,
                            Backend::Create(BackendKind::kCpu, spec_, beside));
  }
  if (options_.wrap_backend) {
    parts_.backend =
        options_.wrap_backend(std::move(parts_.backend), parts_.device.get());
  }
  if (parts_.device != nullptr) {
    parts_.device_compute = std::make_unique<DeviceCompute>(
        parts_.backend.get(), &parts_.stats->projection_seconds,
        parts_.trace_row);
  }
  return absl::OkStatus();
}

absl::Status StageLoader::ChargeWorkSpace() {
  // Activations in host memory; those of a device begin and end there.
  SLUICE_ASSIGN_OR_RETURN(
      parts_.activations,
      options_.host_budget->Charge(
          "activations", sizes_.activation * (plan_.stages_activations()
                                                  ? plan_.resident_batches
                                                  : policy_.num_microbatches)));
  if (plan_.uses_disk()) {
    IoEngine::Options io;
    io.tracer = options_.tracer;
    io.marks = options_.marks;
    SLUICE_ASSIGN_OR_RETURN(parts_.io, IoEngine::Create(io));
  }
  if (sizes_.expanded > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        parts_.expanded,
        WorkBuffer::Create("expanded layer", sizes_.expanded,
                           options_.host_budget, parts_.device.get()));
  }
  return absl::OkStatus();
}

absl::Status StageLoader::OpenImages() {
  const auto open = [&](const Backend& backend) {
    return ImageStore::Create({.backend = &backend,
                               .source = &source_,
                               .disk_dir = options_.disk_dir,
                               .memory = options_.host_budget,
                               .disk = options_.disk_budget},
                              [&](uint64_t) { return GoOn(); });
  };
  if (plan_.needs_images()) {
    SLUICE_ASSIGN_OR_RETURN(images_, open(*parts_.backend));
  }
  if (plan_.embedding_on_disk) {
    SLUICE_ASSIGN_OR_RETURN(embedding_images_, open(embedder()));
  }
  return absl::OkStatus();
}

absl::Status StageLoader::LoadEmbedding() {
  if (!first_) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      parts_.embedding,
      EmbeddingStore::Load(
          {.backend = &embedder(),
           .source = &source_,
           .max_rows = policy_.max_step_tokens,
           .memory = options_.host_budget,
           .images = embedding_images_.get(),
           .io = parts_.io.get(),
           .stall_seconds = &parts_.stats->weight_stall_seconds,
           .read_bytes = &parts_.stats->weight_read_bytes},
          [&](uint64_t bytes) { return Report(bytes); }));
  return absl::OkStatus();
}

absl::Status StageLoader::LoadWeights() {
  WeightStore::Options weights;
  weights.backend = parts_.backend.get();
  weights.source = &source_;
  weights.layers = options_.layers;
  weights.units = plan_.units;
  weights.slots = plan_.host_slots;
  weights.slot_bytes = plan_.host_slot_bytes;
  weights.overlap = policy_.overlap;
  weights.memory = options_.host_budget;
  weights.copies = parts_.device.get();
  if (plan_.weights.disk > 0) weights.images = images_.get();
  weights.io = parts_.io.get();
  weights.stall_seconds = &parts_.stats->weight_stall_seconds;
  weights.read_bytes = &parts_.stats->weight_read_bytes;
  if (parts_.device != nullptr) {
    parts_.device_weights =
        std::make_unique<DeviceWeights>(DeviceWeights::Options{
            .device = parts_.device.get(),
            .compute = parts_.device_compute.get(),
            .num_layers = options_.layers.size(),
            .slots = plan_.device_slots,
            .slot_bytes = plan_.device_slot_bytes,
            .overlap = policy_.overlap,
            .stall_seconds = &parts_.stats->weight_stall_seconds});
    // It is DeviceWeights' thread that waits for them and reads them.
    weights.stall_seconds = nullptr;
    weights.read_bytes = parts_.device_weights->store_read_bytes();
    weights.to_device = [&](int unit, std::span<const std::byte> bytes) {
      return parts_.device_weights->Keep(unit, bytes);
    };
  }
  SLUICE_ASSIGN_OR_RETURN(parts_.weights,
                          WeightStore::Load(weights, [&](uint64_t bytes) {
                            return Report(bytes);
                          }));
  return absl::OkStatus();
}

absl::Status StageLoader::MakeKv() {
  const KvLayout& layout = parts_.backend->kv_layout();
  // On its way to the device only with attention there.
  Device* const copies =
      plan_.staging_slots > 0 ? parts_.device.get() : nullptr;
  parts_.pages = plan_.pages;
  if (pages(Tier::kHost) > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts_.kv,
                            KvArena::Create(layout, pages(Tier::kHost),
                                            options_.host_budget, copies));
  }
  if (pages(Tier::kDisk) == 0) return absl::OkStatus();
  KvStager::Options stager;
  stager.layout = layout;
  stager.num_pages = pages(Tier::kDisk);
  stager.staging_bytes = plan_.kv_staging_bytes;
  stager.disk_dir = options_.disk_dir;
  stager.memory = options_.host_budget;
  stager.copies = copies;
  stager.disk = options_.disk_budget;
  stager.io = parts_.io.get();
  stager.overlap = policy_.overlap;
  stager.read_bytes = &parts_.stats->kv_read_bytes;
  stager.write_bytes = &parts_.stats->kv_write_bytes;
  // With a device, attention on the host has a thread, and that one waits.
  if (parts_.device == nullptr ||
      policy_.attention_site == AttentionSite::kDevice) {
    stager.stall_seconds = &parts_.stats->kv_stall_seconds;
  }
  SLUICE_ASSIGN_OR_RETURN(parts_.stager, KvStager::Create(stager));
  return absl::OkStatus();
}

absl::Status StageLoader::MakeActivations() {
  if (!plan_.stages_activations()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      parts_.activation_stager,
      ActivationStager::Create(
          {.shape = plan_.activations,
           .disk_dir = options_.disk_dir,
           .memory = options_.host_budget,
           .copies = parts_.device.get(),
           .disk = options_.disk_budget,
           .io = parts_.io.get(),
           .overlap = policy_.overlap,
           .stall_seconds = &parts_.stats->activation_stall_seconds,
           .read_bytes = &parts_.stats->activation_read_bytes,
           .write_bytes = &parts_.stats->activation_write_bytes}));
  return absl::OkStatus();
}

absl::Status StageLoader::MakeDeviceParts() {
  Device* device = parts_.device.get();
  const KvLayout& layout = parts_.backend->kv_layout();
  SLUICE_RETURN_IF_ERROR(parts_.device_weights->Start(parts_.weights.get()));
  if (pages(Tier::kDevice) > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        parts_.device_kv,
        KvArena::CreateOn(device, layout, pages(Tier::kDevice)));
  }
  SLUICE_ASSIGN_OR_RETURN(
      parts_.device_activations,
      DeviceActivations::Create(
          {.device = device,
           .compute = parts_.device_compute.get(),
           .hidden_size = spec_.hidden_size,
           .max_rows = policy_.max_step_tokens,
           .num_batches = policy_.num_microbatches,
           .resident = plan_.resident_batches,
           .slots = plan_.activation_slots,
           .disk = parts_.activation_stager.get(),
           .stall_seconds = &parts_.stats->activation_stall_seconds}));
  DeviceAttention::Options attention;
  attention.backend = parts_.backend.get();
  attention.device_kv = parts_.device_kv.get();
  attention.host_kv = parts_.kv.get();
  attention.disk = parts_.stager.get();
  attention.stats = parts_.stats.get();
  attention.row = parts_.trace_row;
  attention.first_layer = options_.layers.begin;
  attention.slots = sizes_.shape.backend().attention_slots;
  attention.overlap = policy_.overlap;
  if (plan_.staging_slots > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        attention.staged,
        DeviceKvStager::Create(
            {.device = device,
             .compute = parts_.device_compute.get(),
             .layout = layout,
             .group_pages = sizes_.group_pages,
             .slots = plan_.staging_slots,
             .stall_seconds = &parts_.stats->kv_stall_seconds}));
  } else if (parts_.kv != nullptr || parts_.stager != nullptr) {
    attention.on_host = std::make_unique<HostAttention>(HostAttention::Options{
        .device = device,
        .on_device = parts_.backend.get(),
        .compute = parts_.device_compute.get(),
        .on_host = parts_.host_backend.get(),
        .kv = parts_.kv.get(),
        .stager = parts_.stager.get(),
        .slots = attention.slots,
        .tracer = options_.tracer,
        .stall_seconds = &parts_.stats->attention_stall_seconds});
  }
  parts_.device_attention =
      std::make_unique<DeviceAttention>(std::move(attention));
  return absl::OkStatus();
}

void StageLoader::ReportPlacement() {
  RealisedPlacement& placement = parts_.placement;
  const ActivationShape& activations = plan_.activations;
  placement.activation_bytes = sizes_.activation * policy_.num_microbatches;
  placement.activation_device_bytes =
      sizes_.activation * plan_.resident_batches;
  placement.activation_host_bytes = plan_.stages_activations()
                                        ? activations.memory_bytes()
                                        : activations.total_bytes();
  if (first_) {
    placement.embedding_bytes = parts_.embedding->bytes();
    placement.embedding_host_bytes = parts_.embedding->resident_bytes();
  }
  placement.weight_bytes = placement.embedding_bytes + parts_.weights->bytes();
  placement.weight_host_bytes =
      placement.embedding_host_bytes + parts_.weights->resident_bytes();
  placement.weight_device_bytes = parts_.weights->device_bytes();
  const auto bytes = [&](int64_t count) {
    return static_cast<uint64_t>(count) * sizes_.page();
  };
  const int64_t stranded = plan_.stranded_pages;
  placement.kv_device_bytes = bytes(pages(Tier::kDevice));
  placement.kv_host_bytes =
      bytes(pages(Tier::kHost) - (pages(Tier::kDisk) > 0 ? 0 : stranded));
  placement.kv_bytes = bytes(pages(Tier::kDevice) + pages(Tier::kHost) +
                             pages(Tier::kDisk) - stranded);
}

}  // namespace

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
