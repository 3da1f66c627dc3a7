#include "runtime/exec/stage_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/device_plan.h"
#include "runtime/exec/stage_memory.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/image_store.h"
#include "runtime/kernels/backend_factory.h"
#include "runtime/model/checkpoint/dummy_source.h"
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

// What a stage has on a device besides weights that stay.
absl::Status LoadDeviceParts(const DecoderSpec& spec,
                             const StageExecutor::Options& options,
                             const DevicePlan& plan, StageParts* parts) {
  const Policy& policy = options.policy;
  Device* device = parts->device.get();
  const KvLayout& layout = parts->compute.kv_layout;
  SLUICE_RETURN_IF_ERROR(parts->device_weights->Start(parts->weights.get()));
  if (plan.kv_pages > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts->device_kv,
                            KvArena::CreateOn(device, layout, plan.kv_pages));
  }
  SLUICE_ASSIGN_OR_RETURN(
      parts->device_activations,
      DeviceActivations::Create(
          {.device = device,
           .compute = parts->device_compute.get(),
           .hidden_size = spec.hidden_size,
           .max_rows = policy.max_step_tokens,
           .num_batches = policy.num_microbatches,
           .resident = plan.resident_batches,
           .slots = plan.activation_slots,
           .disk = parts->activation_stager.get(),
           .stall_seconds = &parts->stats->activation_stall_seconds}));
  DeviceAttention::Options attention;
  attention.backend = parts->compute.backend.get();
  attention.device_kv = parts->device_kv.get();
  attention.host_kv = parts->kv.get();
  attention.disk = parts->stager.get();
  attention.stats = parts->stats.get();
  attention.row = parts->trace_row;
  attention.first_layer = options.layers.begin;
  attention.slots = AttentionSlots(policy);
  attention.overlap = policy.overlap;
  if (plan.staging_slots > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        attention.staged,
        DeviceKvStager::Create(
            {.device = device,
             .compute = parts->device_compute.get(),
             .layout = layout,
             .group_pages = plan.staging_pages,
             .slots = plan.staging_slots,
             .stall_seconds = &parts->stats->kv_stall_seconds}));
  } else if (parts->kv != nullptr || parts->stager != nullptr) {
    attention.on_host = std::make_unique<HostAttention>(HostAttention::Options{
        .device = device,
        .on_device = parts->compute.backend.get(),
        .compute = parts->device_compute.get(),
        .on_host = parts->host.backend.get(),
        .kv = parts->kv.get(),
        .stager = parts->stager.get(),
        .slots = attention.slots,
        .tracer = options.tracer,
        .stall_seconds = &parts->stats->attention_stall_seconds});
  }
  parts->device_attention =
      std::make_unique<DeviceAttention>(std::move(attention));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageExecutor>> StageExecutor::Load(
    const ModelDir& model, const Options& options, const Progress& progress,
    const std::atomic<bool>* cancelled) {
  if (options.dummy_weights) {
    return LoadStage(model.spec(), DummySource(), options, progress, cancelled);
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> source,
                          model.OpenTensors());
  return LoadStage(model.spec(), *source, options, progress, cancelled);
}

absl::Status StageExecutor::Options::Validate(const DecoderSpec& spec) const {
  if (layers.begin < 0 || layers.size() < 1 || layers.end > spec.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", layers.begin, ", ", layers.end,
                     ") are not a part of the model's ", spec.num_layers));
  }
  if (policy.gbs < 1 || policy.num_microbatches < 1 ||
      policy.max_step_tokens < 1) {
    return absl::InvalidArgumentError(
        "the policy's gbs, num_microbatches and max_step_tokens must be at "
        "least 1");
  }
  const bool disk = policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
                    policy.activations.disk > 0;
  if (disk && (disk_dir.empty() || disk_budget == nullptr)) {
    return absl::InvalidArgumentError(
        "the policy puts data on disk, but this worker has no --disk-dir");
  }
  if (max_model_len < 1) {
    return absl::InvalidArgumentError("max_model_len must be at least 1");
  }
  if (spec.positions == PositionKind::kLearned &&
      max_model_len > spec.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_model_len of ", max_model_len, " exceeds the ",
                     spec.max_positions, " positions that the model has"));
  }
  if (max_sequences < 1) {
    return absl::InvalidArgumentError("max_sequences must be at least 1");
  }
  if (compute_threads < 1 || policy.compute_threads < 0) {
    return absl::InvalidArgumentError("compute_threads must be at least 1");
  }
  if (host_budget == nullptr) {
    return absl::InvalidArgumentError("host_budget is missing");
  }
  if (device.has_memory() != (device_budget != nullptr)) {
    return absl::InvalidArgumentError(
        "a device_budget goes with a device that has memory of its own");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageExecutor::Options& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.device));
  SLUICE_RETURN_IF_ERROR(options.Validate(spec));
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, source, options.layers));
  const Policy& policy = options.policy;
  const int threads = policy.compute_threads > 0 ? policy.compute_threads
                                                 : options.compute_threads;
  MemoryBudget* memory = options.host_budget;
  StageParts parts;
  parts.stats = std::make_unique<SweepStats>();
  parts.trace_row = AddTraceRow(options.tracer, "compute");
  const bool may_use_disk = MayUseDisk(options);
  BackendOptions backend_options = {
      .layers = options.layers,
      .dtype = policy.dtype,
      .weight_format = policy.compress_weights,
      .kv_format = KvFormatOf(policy),
      .kv_page_alignment = may_use_disk ? kDiskAlignment : 64,
      .sparsity = policy.sparsity,
      .max_rows = policy.max_step_tokens,
      .head_rows = HeadRows(options),
      .max_model_len = options.max_model_len,
      .threads = threads,
      .cores = options.cores,
      .budget = memory,
      .marks = options.marks};
  if (options.device_budget != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(
        parts.device,
        CreateDevice(options.device, options.device_budget, options.tracer));
    backend_options.device = parts.device.get();
    backend_options.attention_slots = AttentionSlots(policy);
  }
  SLUICE_ASSIGN_OR_RETURN(parts.compute, CreateBackend(options.device.backend,
                                                       spec, backend_options));
  parts.head_rows = backend_options.head_rows;
  if (parts.device != nullptr) {
    // It has the embedding, but never the head.
    backend_options.layers.end =
        std::min(options.layers.end, spec.num_layers - 1);
    backend_options.beside = std::exchange(backend_options.device, nullptr);
    // These threads and the device's would be in each other's way.
    backend_options.cores.clear();
    SLUICE_ASSIGN_OR_RETURN(
        parts.host, CreateBackend(BackendKind::kCpu, spec, backend_options));
  }
  if (options.wrap_backend) {
    options.wrap_backend(parts.compute, parts.device.get());
  }
  PackedWeights& packed = *parts.compute.weights;
  const KvLayout& kv_layout = parts.compute.kv_layout;
  if (parts.device != nullptr) {
    parts.device_compute = std::make_unique<DeviceCompute>(
        parts.compute.backend.get(), &parts.stats->projection_seconds,
        parts.trace_row);
  }

  // Tokens are looked up on the host.
  PackedWeights& packed_embedding =
      parts.device != nullptr ? *parts.host.weights : packed;

  StageNeeds needs;
  needs.layer_bytes = packed.LayerBytes();
  needs.num_layers = options.layers.size();
  if (options.layers.begin == 0) {
    needs.embedding_bytes = packed_embedding.EmbeddingBytes();
    needs.embedding_rows_bytes =
        EmbeddingStore::MemoryBytes(packed_embedding, policy.max_step_tokens);
  }
  if (options.layers.end == spec.num_layers) {
    for (int s = 0; s < packed.num_head_sections(); ++s) {
      needs.head_sections.push_back(packed.HeadBytes(s));
    }
  }
  // Several micro-batches share one expansion; a single one dequantizes inside
  // its products.
  if (policy.num_microbatches > 1) {
    needs.expanded_bytes = packed.ExpandedLayerBytes();
  }
  const uint64_t expanded_bytes = needs.expanded_bytes;
  needs.part_bytes = LargestPart(packed.LayerParts(), needs.layer_bytes);
  for (size_t s = 0; s < needs.head_sections.size(); ++s) {
    needs.part_bytes = std::max(
        needs.part_bytes, LargestPart(packed.HeadParts(static_cast<int>(s)),
                                      needs.head_sections[s]));
  }
  needs.layer_page_bytes = kv_layout.layer_page_bytes();
  needs.max_sequence_pages =
      (int64_t{options.max_model_len} + kPageTokens - 1) / kPageTokens;
  needs.kv_pages = needs.max_sequence_pages * options.max_sequences;
  needs.sequences_per_batch = std::min(policy.gbs, options.max_sequences);
  needs.activation_bytes = uint64_t{sizeof(float)} * policy.max_step_tokens *
                           static_cast<uint64_t>(spec.hidden_size);
  const uint64_t weight_bytes = needs.weight_bytes();
  DevicePlan on_device;
  Policy rest = policy;
  if (parts.device != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(on_device,
                            PlanDevice(needs, policy, *options.device_budget));
    needs = NeedsBesideDevice(needs, on_device);
    rest = PolicyBesideDevice(policy, on_device);
  }
  // Of micro-batches that don't stay on a device.
  const ActivationStager::Shape activations = {
      .num_batches = policy.num_microbatches - on_device.resident_batches,
      .max_rows = policy.max_step_tokens,
      .hidden = spec.hidden_size,
      .disk = rest.activations.disk};
  // A single micro-batch has nobody to make room for.
  const bool stage_activations =
      rest.activations.disk > 0 && activations.num_batches > 1;
  if (stage_activations) {
    needs.activation_memory_bytes = activations.memory_bytes();
    needs.activation_staging_bytes = activations.staging_bytes();
    needs.activation_disk_bytes = activations.disk_bytes();
  }
  // The others are in host memory; those of a device begin and end there.
  const int in_memory =
      stage_activations ? on_device.resident_batches : policy.num_microbatches;
  SLUICE_ASSIGN_OR_RETURN(
      parts.activations,
      memory->Charge("activations", needs.activation_bytes * in_memory));
  SLUICE_ASSIGN_OR_RETURN(
      StageMemory plan,
      PlanStageMemory(needs, rest, may_use_disk, memory, options.disk_budget));
  plan.weights = WithDevice(on_device, plan.weights);

  if (plan.uses_disk() || stage_activations) {
    IoEngine::Options io;
    io.tracer = options.tracer;
    io.marks = options.marks;
    SLUICE_ASSIGN_OR_RETURN(parts.io, IoEngine::Create(io));
  }
  if (expanded_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts.expanded,
                            WorkBuffer::Create("expanded layer", expanded_bytes,
                                               memory, parts.device.get()));
  }

  const uint64_t total = weight_bytes;
  uint64_t done = 0;
  // To be called after each piece of work, of a few MiB.
  const auto go_on = [&]() -> absl::Status {
    AddMark(options.marks);
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("loading was cancelled");
    }
    return absl::OkStatus();
  };
  const auto report = [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
    return go_on();
  };
  SLUICE_RETURN_IF_ERROR(report(0));
  // For the layers and the head, and for the embedding: of different backends,
  // if there are two.
  std::unique_ptr<ImageStore> images, embedding_images;
  const auto image_store = [&](const PackedWeights& of) {
    return ImageStore::Create({.weights = &of,
                               .source = &source,
                               .disk_dir = options.disk_dir,
                               .memory = memory,
                               .disk = options.disk_budget},
                              [&](uint64_t) { return go_on(); });
  };
  if (plan.needs_images()) {
    SLUICE_ASSIGN_OR_RETURN(images, image_store(packed));
  }
  if (plan.embedding_on_disk) {
    SLUICE_ASSIGN_OR_RETURN(embedding_images, image_store(packed_embedding));
  }
  if (options.layers.begin == 0) {
    EmbeddingStore::Options embedding;
    embedding.weights = &packed_embedding;
    embedding.source = &source;
    embedding.max_rows = policy.max_step_tokens;
    embedding.memory = memory;
    embedding.images = embedding_images.get();
    embedding.io = parts.io.get();
    embedding.stall_seconds = &parts.stats->weight_stall_seconds;
    embedding.read_bytes = &parts.stats->weight_read_bytes;
    SLUICE_ASSIGN_OR_RETURN(parts.embedding,
                            EmbeddingStore::Load(embedding, report));
    parts.placement.embedding_bytes = parts.embedding->bytes();
    parts.placement.embedding_host_bytes = parts.embedding->resident_bytes();
  }
  WeightStore::Options weights;
  weights.weights = &packed;
  // Else it is DeviceWeights' thread that acquires.
  if (parts.device == nullptr) weights.pool = parts.compute.pool.get();
  weights.source = &source;
  weights.layers = options.layers;
  weights.num_layers = spec.num_layers;
  weights.fractions = plan.weights;
  weights.slots = plan.weight_slots;
  weights.overlap = policy.overlap;
  weights.memory = memory;
  weights.copies = parts.device.get();
  if (plan.weights.disk > 0) weights.images = images.get();
  weights.io = parts.io.get();
  weights.stall_seconds = &parts.stats->weight_stall_seconds;
  weights.read_bytes = &parts.stats->weight_read_bytes;
  if (parts.device != nullptr) {
    parts.device_weights =
        std::make_unique<DeviceWeights>(DeviceWeights::Options{
            .device = parts.device.get(),
            .weights = &packed,
            .compute = parts.device_compute.get(),
            .num_layers = options.layers.size(),
            .slots = on_device.weight_slots,
            .overlap = policy.overlap,
            .stall_seconds = &parts.stats->weight_stall_seconds});
    // It is DeviceWeights' thread that waits for them and reads them.
    weights.stall_seconds = nullptr;
    weights.read_bytes = parts.device_weights->store_read_bytes();
    weights.to_device = [&](int unit, std::span<const std::byte> bytes) {
      return parts.device_weights->Keep(unit, bytes);
    };
  }
  SLUICE_ASSIGN_OR_RETURN(parts.weights, WeightStore::Load(weights, report));

  parts.pages[static_cast<size_t>(Tier::kDevice)] = on_device.kv_pages;
  parts.pages[static_cast<size_t>(Tier::kHost)] = plan.host_pages;
  parts.pages[static_cast<size_t>(Tier::kDisk)] = plan.disk_pages;
  if (plan.host_pages > 0) {
    // On its way to the device only with attention there.
    SLUICE_ASSIGN_OR_RETURN(
        parts.kv,
        KvArena::Create(
            kv_layout, plan.host_pages, memory,
            on_device.staging_slots > 0 ? parts.device.get() : nullptr));
  }
  if (plan.disk_pages > 0) {
    KvStager::Options stager;
    stager.layout = kv_layout;
    stager.num_pages = plan.disk_pages;
    stager.staging_bytes = plan.kv_staging_bytes;
    stager.disk_dir = options.disk_dir;
    stager.memory = memory;
    if (on_device.staging_slots > 0) stager.copies = parts.device.get();
    stager.disk = options.disk_budget;
    stager.io = parts.io.get();
    stager.overlap = policy.overlap;
    stager.stall_seconds = &parts.stats->kv_stall_seconds;
    stager.read_bytes = &parts.stats->kv_read_bytes;
    stager.write_bytes = &parts.stats->kv_write_bytes;
    if (parts.device != nullptr &&
        policy.attention_site == AttentionSite::kHost) {
      // It is HostAttention's thread that waits for it.
      stager.stall_seconds = nullptr;
    }
    SLUICE_ASSIGN_OR_RETURN(parts.stager, KvStager::Create(stager));
  }
  if (stage_activations) {
    ActivationStager::Options stager;
    stager.shape = activations;
    stager.disk_dir = options.disk_dir;
    stager.memory = memory;
    stager.copies = parts.device.get();
    stager.disk = options.disk_budget;
    stager.io = parts.io.get();
    stager.overlap = policy.overlap;
    stager.stall_seconds = &parts.stats->activation_stall_seconds;
    stager.read_bytes = &parts.stats->activation_read_bytes;
    stager.write_bytes = &parts.stats->activation_write_bytes;
    SLUICE_ASSIGN_OR_RETURN(parts.activation_stager,
                            ActivationStager::Create(stager));
  }
  if (parts.device != nullptr) {
    SLUICE_RETURN_IF_ERROR(LoadDeviceParts(spec, options, on_device, &parts));
  }
  parts.placement.activation_bytes =
      needs.activation_bytes * policy.num_microbatches;
  parts.placement.activation_device_bytes =
      needs.activation_bytes * on_device.resident_batches;
  parts.placement.activation_host_bytes = stage_activations
                                              ? activations.memory_bytes()
                                              : activations.total_bytes();
  parts.placement.weight_bytes =
      parts.placement.embedding_bytes + parts.weights->bytes();
  parts.placement.weight_host_bytes =
      parts.placement.embedding_host_bytes + parts.weights->resident_bytes();
  parts.placement.weight_device_bytes = parts.weights->device_bytes();
  const uint64_t page_bytes = kv_layout.page_bytes();
  parts.placement.kv_bytes =
      static_cast<uint64_t>(on_device.kv_pages + plan.host_pages +
                            plan.disk_pages - plan.stranded_pages) *
      page_bytes;
  parts.placement.kv_device_bytes =
      static_cast<uint64_t>(on_device.kv_pages) * page_bytes;
  parts.placement.kv_host_bytes =
      static_cast<uint64_t>(plan.host_pages -
                            (plan.disk_pages > 0 ? 0 : plan.stranded_pages)) *
      page_bytes;
  return std::make_unique<StageSweep>(spec, options, std::move(parts));
}

}  // namespace sluice
