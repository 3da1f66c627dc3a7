#include "runtime/exec/stage_loader.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "runtime/exec/device_plan.h"
#include "runtime/exec/stage_memory.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/image_store.h"
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
    parts_.stats = std::make_unique<SweepStats>();
    parts_.trace_row = AddTraceRow(options_.tracer, "compute");
    SLUICE_RETURN_IF_ERROR(MakeBackends());
    SLUICE_RETURN_IF_ERROR(Place(FindNeeds()));
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
  absl::Status MakeBackends();
  StageNeeds FindNeeds() const;
  // Decides what lies where, before anything is loaded, and charges what is
  // charged at once.
  absl::Status Place(StageNeeds needs);
  absl::Status OpenImages();
  absl::Status LoadEmbedding();
  absl::Status LoadWeights();
  absl::Status MakeKv();
  absl::Status MakeActivations();
  absl::Status MakeDeviceParts();
  void ReportPlacement();

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
  uint64_t total_bytes_ = 0;       // of weights
  uint64_t done_bytes_ = 0;
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

absl::Status StageLoader::MakeBackends() {
  Backend::Options backend = {
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
        parts_.device,
        CreateDevice(options_.device, options_.device_budget, options_.tracer));
    backend.device = parts_.device.get();
    backend.attention_slots = AttentionSlots(policy_);
  }
  SLUICE_ASSIGN_OR_RETURN(
      parts_.backend, Backend::Create(options_.device.backend, spec_, backend));
  if (parts_.device != nullptr) {
    // It has the embedding, but never the head.
    backend.layers.end = std::min(options_.layers.end, spec_.num_layers - 1);
    backend.beside = std::exchange(backend.device, nullptr);
    // These threads and the device's would be in each other's way.
    backend.cores.clear();
    SLUICE_ASSIGN_OR_RETURN(parts_.host_backend,
                            Backend::Create(BackendKind::kCpu, spec_, backend));
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

StageNeeds StageLoader::FindNeeds() const {
  const Backend& backend = *parts_.backend;
  StageNeeds needs;
  needs.layer_bytes = backend.LayerBytes();
  needs.num_layers = options_.layers.size();
  if (first_) {
    needs.embedding_bytes = embedder().EmbeddingBytes();
    needs.embedding_rows_bytes =
        EmbeddingStore::MemoryBytes(embedder(), policy_.max_step_tokens);
  }
  needs.part_bytes = LargestPart(backend.LayerParts(), needs.layer_bytes);
  for (int s = 0; last_ && s < backend.num_head_sections(); ++s) {
    needs.head_sections.push_back(backend.HeadBytes(s));
    needs.part_bytes =
        std::max(needs.part_bytes,
                 LargestPart(backend.HeadParts(s), needs.head_sections.back()));
  }
  // Several micro-batches share one expansion; a single one dequantizes inside
  // its products.
  if (policy_.num_microbatches > 1) {
    needs.expanded_bytes = backend.ExpandedLayerBytes();
  }
  needs.layer_page_bytes = backend.kv_layout().layer_page_bytes();
  needs.max_sequence_pages =
      (int64_t{options_.max_model_len} + kPageTokens - 1) / kPageTokens;
  needs.kv_pages = needs.max_sequence_pages * options_.max_sequences;
  needs.sequences_per_batch = std::min(policy_.gbs, options_.max_sequences);
  needs.activation_bytes = uint64_t{sizeof(float)} * policy_.max_step_tokens *
                           static_cast<uint64_t>(spec_.hidden_size);
  return needs;
}

absl::Status StageLoader::Place(StageNeeds needs) {
  MemoryBudget* const memory = options_.host_budget;
  activation_bytes_ = needs.activation_bytes;
  total_bytes_ = needs.weight_bytes();
  const uint64_t expanded_bytes = needs.expanded_bytes;
  Policy rest = policy_;
  if (parts_.device != nullptr) {
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
      parts_.activations,
      memory->Charge("activations", needs.activation_bytes * in_memory));
  SLUICE_ASSIGN_OR_RETURN(
      plan_, PlanStageMemory(needs, rest, MayUseDisk(options_), memory,
                             options_.disk_budget));
  plan_.weights = WithDevice(on_device_, plan_.weights);

  if (plan_.uses_disk() || stage_activations_) {
    IoEngine::Options io;
    io.tracer = options_.tracer;
    io.marks = options_.marks;
    SLUICE_ASSIGN_OR_RETURN(parts_.io, IoEngine::Create(io));
  }
  if (expanded_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts_.expanded,
                            WorkBuffer::Create("expanded layer", expanded_bytes,
                                               memory, parts_.device.get()));
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
  weights.num_layers = spec_.num_layers;
  weights.fractions = plan_.weights;
  weights.slots = plan_.weight_slots;
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
            .backend = parts_.backend.get(),
            .compute = parts_.device_compute.get(),
            .num_layers = options_.layers.size(),
            .slots = on_device_.weight_slots,
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
      on_device_.staging_slots > 0 ? parts_.device.get() : nullptr;
  parts_.pages[static_cast<size_t>(Tier::kDevice)] = on_device_.kv_pages;
  parts_.pages[static_cast<size_t>(Tier::kHost)] = plan_.host_pages;
  parts_.pages[static_cast<size_t>(Tier::kDisk)] = plan_.disk_pages;
  if (plan_.host_pages > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts_.kv,
                            KvArena::Create(layout, plan_.host_pages,
                                            options_.host_budget, copies));
  }
  if (plan_.disk_pages == 0) return absl::OkStatus();
  KvStager::Options stager;
  stager.layout = layout;
  stager.num_pages = plan_.disk_pages;
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
  if (!stage_activations_) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(
      parts_.activation_stager,
      ActivationStager::Create(
          {.shape = activations_,
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
  if (on_device_.kv_pages > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        parts_.device_kv,
        KvArena::CreateOn(device, layout, on_device_.kv_pages));
  }
  SLUICE_ASSIGN_OR_RETURN(
      parts_.device_activations,
      DeviceActivations::Create(
          {.device = device,
           .compute = parts_.device_compute.get(),
           .hidden_size = spec_.hidden_size,
           .max_rows = policy_.max_step_tokens,
           .num_batches = policy_.num_microbatches,
           .resident = on_device_.resident_batches,
           .slots = on_device_.activation_slots,
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
  attention.slots = AttentionSlots(policy_);
  attention.overlap = policy_.overlap;
  if (on_device_.staging_slots > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        attention.staged,
        DeviceKvStager::Create(
            {.device = device,
             .compute = parts_.device_compute.get(),
             .layout = layout,
             .group_pages = on_device_.staging_pages,
             .slots = on_device_.staging_slots,
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
  placement.weight_bytes = placement.embedding_bytes + parts_.weights->bytes();
  placement.weight_host_bytes =
      placement.embedding_host_bytes + parts_.weights->resident_bytes();
  placement.weight_device_bytes = parts_.weights->device_bytes();
  const auto pages = [&](int64_t count) {
    return static_cast<uint64_t>(count) *
           parts_.backend->kv_layout().page_bytes();
  };
  placement.kv_device_bytes = pages(on_device_.kv_pages);
  placement.kv_host_bytes = pages(
      plan_.host_pages - (plan_.disk_pages > 0 ? 0 : plan_.stranded_pages));
  placement.kv_bytes = pages(on_device_.kv_pages + plan_.host_pages +
                             plan_.disk_pages - plan_.stranded_pages);
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
