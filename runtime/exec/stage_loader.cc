#include "runtime/exec/stage_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/embedding_store.h"
#include "runtime/exec/image_store.h"
#include "runtime/exec/stage_memory.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/model/dummy_source.h"
#include "runtime/model/tensor_names.h"

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

KvFormat KvFormatOf(const Policy& policy) {
  switch (policy.compress_kv) {
    case WeightFormat::kInt8:
      return KvFormat::kInt8;
    case WeightFormat::kInt4:
      return KvFormat::kInt4;
    case WeightFormat::kFull:
      break;
  }
  return UnquantizedKvFormat(policy.dtype);
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
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageExecutor::Options& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(options.Validate(spec));
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, source, options.layers));
  const Policy& policy = options.policy;
  const int threads = policy.compute_threads > 0 ? policy.compute_threads
                                                 : options.compute_threads;
  MemoryBudget* memory = options.host_budget;
  StageParts parts;
  parts.stats = std::make_unique<SweepStats>();
  const ActivationStager::Shape activations = {
      .num_batches = policy.num_microbatches,
      .max_rows = policy.max_step_tokens,
      .hidden = spec.hidden_size,
      .disk = policy.activations.disk};
  // A single micro-batch has nobody to make room for.
  const bool stage_activations =
      policy.activations.disk > 0 && policy.num_microbatches > 1;
  if (!stage_activations) {
    SLUICE_ASSIGN_OR_RETURN(
        parts.activations,
        memory->Charge("activations", activations.total_bytes()));
  }
  const bool may_use_disk = MayUseDisk(options);
  SLUICE_ASSIGN_OR_RETURN(
      parts.backend,
      Backend::Create(BackendKind::kCpu, spec,
                      {.layers = options.layers,
                       .dtype = policy.dtype,
                       .weight_format = policy.compress_weights,
                       .kv_format = KvFormatOf(policy),
                       .kv_page_alignment = may_use_disk ? kDiskAlignment : 64,
                       .sparsity = policy.sparsity,
                       .max_rows = policy.max_step_tokens,
                       .max_model_len = options.max_model_len,
                       .threads = threads,
                       .cores = options.cores,
                       .budget = memory}));
  Backend& backend = *parts.backend;

  StageNeeds needs;
  needs.layer_bytes = backend.LayerBytes();
  needs.num_layers = options.layers.size();
  if (options.layers.begin == 0) {
    needs.embedding_bytes = backend.EmbeddingBytes();
    needs.embedding_rows_bytes =
        EmbeddingStore::MemoryBytes(backend, policy.max_step_tokens);
  }
  if (options.layers.end == spec.num_layers) {
    needs.head_bytes = backend.HeadBytes();
  }
  // Several micro-batches share one expansion; a single one dequantizes inside
  // its products.
  if (policy.num_microbatches > 1) {
    needs.expanded_bytes = backend.ExpandedLayerBytes();
  }
  needs.part_bytes =
      std::max(LargestPart(backend.LayerParts(), needs.layer_bytes),
               LargestPart(backend.HeadParts(), needs.head_bytes));
  needs.layer_page_bytes = backend.kv_layout().layer_page_bytes();
  needs.max_sequence_pages =
      (int64_t{options.max_model_len} + kPageTokens - 1) / kPageTokens;
  needs.max_sequences = options.max_sequences;
  needs.sequences_per_batch = std::min(policy.gbs, options.max_sequences);
  if (stage_activations) {
    needs.activation_memory_bytes = activations.memory_bytes();
    needs.activation_staging_bytes = activations.staging_bytes();
    needs.activation_disk_bytes = activations.disk_bytes();
  }
  SLUICE_ASSIGN_OR_RETURN(const StageMemory plan,
                          PlanStageMemory(needs, policy, may_use_disk, memory,
                                          options.disk_budget));

  if (plan.uses_disk() || stage_activations) {
    IoEngine::Options io;
    io.tracer = options.tracer;
    SLUICE_ASSIGN_OR_RETURN(parts.io, IoEngine::Create(io));
  }
  if (needs.expanded_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        parts.expanded,
        HostBuffer::Create("expanded layer", needs.expanded_bytes, memory));
  }

  const uint64_t total = needs.weight_bytes();
  uint64_t done = 0;
  const auto report = [&](uint64_t bytes) -> absl::Status {
    done += bytes;
    if (progress) progress(done, total);
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("loading was cancelled");
    }
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(report(0));
  std::unique_ptr<ImageStore> images;
  if (plan.needs_images()) {
    SLUICE_ASSIGN_OR_RETURN(images,
                            ImageStore::Create({.backend = &backend,
                                                .source = &source,
                                                .disk_dir = options.disk_dir,
                                                .memory = memory,
                                                .disk = options.disk_budget}));
  }
  if (options.layers.begin == 0) {
    EmbeddingStore::Options embedding;
    embedding.backend = &backend;
    embedding.source = &source;
    embedding.max_rows = policy.max_step_tokens;
    embedding.memory = memory;
    if (plan.embedding_on_disk) embedding.images = images.get();
    embedding.io = parts.io.get();
    embedding.stall_seconds = &parts.stats->weight_stall_seconds;
    embedding.read_bytes = &parts.stats->weight_read_bytes;
    SLUICE_ASSIGN_OR_RETURN(parts.embedding,
                            EmbeddingStore::Load(embedding, report));
    parts.placement.embedding_bytes = parts.embedding->bytes();
    parts.placement.embedding_host_bytes = parts.embedding->resident_bytes();
  }
  WeightStore::Options weights;
  weights.backend = &backend;
  weights.source = &source;
  weights.layers = options.layers;
  weights.num_layers = spec.num_layers;
  weights.fractions = plan.weights;
  weights.slots = plan.weight_slots;
  weights.overlap = policy.overlap;
  weights.memory = memory;
  if (plan.weights.disk > 0) weights.images = images.get();
  weights.io = parts.io.get();
  weights.stall_seconds = &parts.stats->weight_stall_seconds;
  weights.read_bytes = &parts.stats->weight_read_bytes;
  SLUICE_ASSIGN_OR_RETURN(parts.weights, WeightStore::Load(weights, report));

  parts.pages[static_cast<size_t>(Tier::kHost)] = plan.host_pages;
  parts.pages[static_cast<size_t>(Tier::kDisk)] = plan.disk_pages;
  if (plan.host_pages > 0) {
    SLUICE_ASSIGN_OR_RETURN(parts.kv, KvArena::Create(backend.kv_layout(),
                                                      plan.host_pages, memory));
  }
  if (plan.disk_pages > 0) {
    KvStager::Options stager;
    stager.layout = backend.kv_layout();
    stager.num_pages = plan.disk_pages;
    stager.staging_bytes = plan.kv_staging_bytes;
    stager.disk_dir = options.disk_dir;
    stager.memory = memory;
    stager.disk = options.disk_budget;
    stager.io = parts.io.get();
    stager.overlap = policy.overlap;
    stager.stall_seconds = &parts.stats->kv_stall_seconds;
    stager.read_bytes = &parts.stats->kv_read_bytes;
    stager.write_bytes = &parts.stats->kv_write_bytes;
    SLUICE_ASSIGN_OR_RETURN(parts.stager, KvStager::Create(stager));
  }
  if (stage_activations) {
    ActivationStager::Options stager;
    stager.shape = activations;
    stager.disk_dir = options.disk_dir;
    stager.memory = memory;
    stager.disk = options.disk_budget;
    stager.io = parts.io.get();
    stager.overlap = policy.overlap;
    stager.stall_seconds = &parts.stats->activation_stall_seconds;
    stager.read_bytes = &parts.stats->activation_read_bytes;
    stager.write_bytes = &parts.stats->activation_write_bytes;
    SLUICE_ASSIGN_OR_RETURN(parts.activation_stager,
                            ActivationStager::Create(stager));
  }
  parts.placement.activation_bytes = activations.total_bytes();
  parts.placement.activation_host_bytes = stage_activations
                                              ? activations.memory_bytes()
                                              : activations.total_bytes();
  parts.placement.weight_bytes =
      parts.placement.embedding_bytes + parts.weights->bytes();
  parts.placement.weight_host_bytes =
      parts.placement.embedding_host_bytes + parts.weights->resident_bytes();
  const uint64_t page_bytes = backend.kv_layout().page_bytes();
  parts.placement.kv_bytes =
      static_cast<uint64_t>(plan.host_pages + plan.disk_pages) * page_bytes;
  parts.placement.kv_host_bytes =
      static_cast<uint64_t>(plan.host_pages) * page_bytes;
  return std::make_unique<StageSweep>(spec, options, std::move(parts), threads);
}

}  // namespace sluice
