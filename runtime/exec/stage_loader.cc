#include "runtime/exec/stage_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/activations/activations.h"
#include "runtime/exec/activations/device_activations.h"
#include "runtime/exec/attention/attention.h"
#include "runtime/exec/attention/host_attention.h"
#include "runtime/exec/kv/device_kv_stager.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/stage_sweep.h"
#include "runtime/exec/tensor_stage.h"
#include "runtime/exec/weights/device_weights.h"
#include "runtime/exec/weights/embedding_store.h"
#include "runtime/exec/weights/packed_store.h"
#include "runtime/exec/weights/weight_store.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/model/checkpoint/dummy_source.h"
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
              const StageOptions& options, const StageRank& rank,
              const StageExecutor::Progress& progress,
              const std::atomic<bool>* cancelled)
      : spec_(spec),
        source_(source),
        options_(options),
        rank_(rank),
        policy_(options.policy),
        progress_(progress),
        cancelled_(cancelled),
        embeds_(options.layers.begin == 0 && rank.tensor.leads()),
        last_(options.layers.end == spec.num_layers),
        sizes_(options.ShapeOf(spec, rank.tensor)) {}

  absl::StatusOr<std::unique_ptr<StageExecutor>> Load() {
    SLUICE_RETURN_IF_ERROR(Place());
    SLUICE_RETURN_IF_ERROR(MakeBackends());
    SLUICE_RETURN_IF_ERROR(MakeSpace());
    SLUICE_RETURN_IF_ERROR(Report(0));
    SLUICE_RETURN_IF_ERROR(OpenPackedFiles());
    SLUICE_RETURN_IF_ERROR(LoadEmbedding());
    SLUICE_RETURN_IF_ERROR(LoadWeights());
    SLUICE_RETURN_IF_ERROR(MakeAttention());
    SLUICE_RETURN_IF_ERROR(MakeActivations());
    MakeHead();
    ReportPlacement();
    return std::make_unique<StageSweep>(spec_, options_, rank_.tensor,
                                        std::move(parts_));
  }

 private:
  // Decides what lies where, before anything is loaded. All that follows keeps
  // to it, and to its order.
  absl::Status Place() {
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

  absl::Status MakeBackends() {
    parts_.units = std::make_unique<WeightUnits>(sizes_.weights);
    parts_.stats = std::make_unique<SweepStats>();
    parts_.trace_row = AddTraceRow(
        options_.tracer, rank_.tensor.ranks == 1
                             ? "compute"
                             : absl::StrCat("compute ", rank_.tensor.rank));
    BackendOptions backend = {sizes_.shape.backend()};
    backend.cores = options_.cores;
    backend.budget = options_.host_budget;
    backend.marks = options_.marks;
    backend.collective = rank_.columns;
    if (options_.device_budget != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.device, CreateDevice(options_.device, options_.device_budget,
                                      options_.tracer));
      backend.device = parts_.device.get();
    }
    SLUICE_ASSIGN_OR_RETURN(
        parts_.backend, CreateBackend(options_.device.backend, spec_, backend));
    if (has_device()) {
      // These threads and the device's would be in each other's way: no cores.
      BackendOptions beside = {sizes_.shape.beside()};
      beside.budget = options_.host_budget;
      beside.beside = parts_.device.get();
      beside.marks = options_.marks;
      SLUICE_ASSIGN_OR_RETURN(parts_.host,
                              CreateBackend(BackendKind::kCpu, spec_, beside));
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
                .units = parts_.units.get(),
                .host_backend = host.backend.get(),
                .packed_embedding = host.weights.get(),
                .pool = host.pool.get(),
                .compute = parts_.compute.get(),
                .layers = options_.layers,
                .hidden_size = spec_.hidden_size,
                .max_rows = policy_.max_step_tokens,
                .streams = rank_.streams,
                .buffers = parts_.buffers.get(),
                .stats = parts_.stats.get(),
                .row = parts_.trace_row,
                .tracer = options_.tracer};
    return absl::OkStatus();
  }

  // Charges activations and links, makes the disk's queue and room to
  // dequantize a layer.
  absl::Status MakeSpace() {
    SLUICE_ASSIGN_OR_RETURN(
        parts_.activation_charge,
        options_.host_budget->Charge("activations",
                                     sizes_.activation * plan_.host_batches));
    SLUICE_ASSIGN_OR_RETURN(
        parts_.link_charge,
        options_.host_budget->Charge("link buffers", sizes_.link_buffers));
    if (plan_.uses_disk()) {
      IoEngine::Options io;
      io.tracer = options_.tracer;
      io.marks = options_.marks;
      SLUICE_ASSIGN_OR_RETURN(parts_.io, IoEngine::Create(io));
      context_.io = parts_.io.get();
    }
    parts_.dequantizes = sizes_.dequantized > 0;
    if (parts_.dequantizes) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.dequantized,
          WorkBuffer::Create("dequantized layer", sizes_.dequantized,
                             options_.host_budget, parts_.device.get()));
    }
    return absl::OkStatus();
  }

  absl::Status OpenPackedFiles() {
    const auto open = [&](const PackedWeights& packed) {
      return PackedStore::Create({.weights = &packed,
                                  .source = &source_,
                                  .disk_dir = options_.disk_dir,
                                  .memory = options_.host_budget,
                                  .disk = options_.disk_budget},
                                 [&](uint64_t) { return GoOn(); });
    };
    if (plan_.needs_packed_files()) {
      SLUICE_ASSIGN_OR_RETURN(packed_files_, open(*parts_.backend.weights));
    }
    if (plan_.embedding_on_disk) {
      SLUICE_ASSIGN_OR_RETURN(embedding_packed_files_,
                              open(*context_.packed_embedding));
    }
    return absl::OkStatus();
  }

  absl::Status LoadEmbedding() {
    if (!embeds_) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(
        parts_.embedding,
        EmbeddingStore::Load({.weights = context_.packed_embedding,
                              .source = &source_,
                              .max_rows = policy_.max_step_tokens,
                              .memory = options_.host_budget,
                              .packed_files = embedding_packed_files_.get(),
                              .io = parts_.io.get()},
                             [&](uint64_t bytes) { return Report(bytes); }));
    context_.embedding = parts_.embedding.get();
    return absl::OkStatus();
  }

  absl::Status LoadWeights() {
    const WeightStore::Options store = {
        .context = context_,
        .source = &source_,
        .units = plan_.units,
        .slots = plan_.host_slots,
        .slot_bytes = plan_.host_slot_bytes,
        .packed_files = plan_.weights.disk > 0 ? packed_files_.get() : nullptr};
    const auto report = [&](uint64_t bytes) { return Report(bytes); };
    if (has_device()) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.weights, DeviceWeights::Load(store, plan_.device_slots,
                                              plan_.device_slot_bytes, report));
    } else {
      SLUICE_ASSIGN_OR_RETURN(parts_.weights, WeightStore::Load(store, report));
    }
    return absl::OkStatus();
  }

  // Makes a tier's arenas, each by create(layout of the group, pages).
  template <typename Create>
  absl::StatusOr<KvArenas> MakeArenas(Tier tier, Create create) {
    KvArenas arenas;
    for (const KvGroup group : kKvGroups) {
      KvLayout layout = parts_.backend.kv_layout;
      layout.num_layers = sizes_.kv_groups.sizes[group];
      if (layout.num_layers == 0 || pages(group, tier) == 0) continue;
      SLUICE_ASSIGN_OR_RETURN(arenas.of[group],
                              create(layout, pages(group, tier)));
    }
    return arenas;
  }

  // Makes the KV streams for a device's backend and for the host's.
  absl::Status MakeKv(KvStreams* device_kv, KvStreams* host_kv) {
    const KvLayout& layout = parts_.backend.kv_layout;
    parts_.kv_groups = sizes_.kv_groups;
    parts_.pages = plan_.pages;
    // KV goes to the device only for attention there.
    StreamContext through = context_;
    if (attends_on_host()) through.device = nullptr;
    SLUICE_ASSIGN_OR_RETURN(
        KvArenas on_host,
        MakeArenas(Tier::kHost, [&](const KvLayout& of_group, int64_t count) {
          return KvArena::Create(of_group, count, options_.host_budget,
                                 through.device);
        }));
    std::unique_ptr<KvStager> on_disk;
    if (pages(KvGroup::kAll, Tier::kDisk) > 0) {
      SLUICE_ASSIGN_OR_RETURN(
          on_disk,
          KvStager::Create({.layout = layout,
                            .layers = sizes_.kv_groups.sizes,
                            .num_pages = {pages(KvGroup::kAll, Tier::kDisk),
                                          pages(KvGroup::kWindow, Tier::kDisk)},
                            .staging_bytes = plan_.kv_staging_bytes,
                            .context = through}));
    }
    SLUICE_ASSIGN_OR_RETURN(
        KvArenas on_device,
        MakeArenas(Tier::kDevice, [&](const KvLayout& of_group, int64_t count) {
          return KvArena::CreateOn(parts_.device.get(), of_group, count);
        }));
    if (!on_device.empty()) {
      device_kv->Add(std::make_unique<ResidentKv>(std::move(on_device)),
                     Tier::kDevice, Tier::kDevice);
    }
    if (!attends_on_host()) {
      SLUICE_ASSIGN_OR_RETURN(
          std::unique_ptr<DeviceKvStager> staged,
          DeviceKvStager::Create({.context = context_,
                                  .layout = layout,
                                  .group_pages = sizes_.group_pages,
                                  .slots = plan_.staging_slots,
                                  .host = std::move(on_host),
                                  .disk = std::move(on_disk)}));
      device_kv->Add(std::move(staged), Tier::kHost, Tier::kDisk);
      return absl::OkStatus();
    }
    if (!on_host.empty()) {
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
      const int slots = sizes_.shape.backend().attention_slots;
      // Streams on disk are held one at a time.
      const bool defer = slots > 1 && !plan_.stages_activations();
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
    if (plan_.stages_activations()) {
      SLUICE_ASSIGN_OR_RETURN(
          stager, ActivationStager::Create(
                      {.shape = plan_.activations, .context = context_}));
    }
    if (has_device()) {
      SLUICE_ASSIGN_OR_RETURN(
          parts_.activations,
          DeviceActivations::Create(context_,
                                    {.num_batches = policy_.num_microbatches,
                                     .resident = plan_.resident_batches,
                                     .slots = plan_.activation_slots,
                                     .disk = std::move(stager)}));
    } else if (plan_.stages_activations()) {
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
                           .head_rows = sizes_.head_rows,
                           .headless = spec_.headless,
                           .weights = parts_.weights.get(),
                           .answers = rank_.tensor.leads(),
                           .logits_observer = options_.logits_observer});
  }

  void ReportPlacement() {
    RealisedPlacement& placement = parts_.placement;
    placement.activation_bytes = sizes_.activation * policy_.num_microbatches;
    placement.activation_device_bytes =
        sizes_.activation * plan_.resident_batches;
    placement.activation_host_bytes = plan_.stages_activations()
                                          ? plan_.activations.memory_bytes()
                                          : plan_.activations.total_bytes();
    for (const UnitPlacement& unit : plan_.units) {
      placement.weight_bytes += unit.bytes;
      placement.weight_host_bytes += unit.host_end - unit.device_end;
      placement.weight_device_bytes += unit.device_end;
    }
    if (embeds_) {
      placement.embedding_bytes = parts_.embedding->bytes();
      placement.embedding_host_bytes = parts_.embedding->resident_bytes();
    }
    placement.weight_bytes += placement.embedding_bytes;
    placement.weight_host_bytes += placement.embedding_host_bytes;
    for (const KvGroup group : kKvGroups) {
      const int64_t device = pages(group, Tier::kDevice);
      const int64_t disk = pages(group, Tier::kDisk);
      const int64_t host = pages(group, Tier::kHost);
      const int64_t stranded = plan_.stranded[group];
      const uint64_t page = sizes_.page(group);
      placement.kv_device_bytes += device * page;
      placement.kv_host_bytes += (host - (disk > 0 ? 0 : stranded)) * page;
      placement.kv_bytes += (device + host + disk - stranded) * page;
    }
  }

  int64_t pages(KvGroup group, Tier tier) const {
    return plan_.pages[group][static_cast<size_t>(tier)];
  }
  bool has_device() const { return parts_.device != nullptr; }
  // Whether KV that is not on a device is attended on the host.
  bool attends_on_host() const { return plan_.staging_slots == 0; }
  // Must be called after each piece of work, of a few MiB.
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
  const StageOptions& options_;
  const StageRank rank_;
  const Policy& policy_;
  const StageExecutor::Progress& progress_;
  const std::atomic<bool>* const cancelled_;
  const bool embeds_, last_;

  const StageSizes sizes_;
  StagePlacement plan_;
  uint64_t done_bytes_ = 0;  // of weights
  StreamContext context_;    // once MakeSpace() is done
  // The packed units of the layers and the head, and of the embedding: for
  // different backends, if there are two. Null if nothing of that is on disk.
  std::unique_ptr<PackedStore> packed_files_, embedding_packed_files_;
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

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadRank(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const StageRank& rank,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(CheckDevice(options.device));
  return StageLoader(spec, source, options, rank, progress, cancelled).Load();
}

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(options.Validate(spec));
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, source, options.layers));
  if (options.ranks.size() > 1) {
    return TensorStage::Load(spec, source, options, progress, cancelled);
  }
  return LoadRank(spec, source, options, {}, progress, cancelled);
}

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const ModelDir& model, const StageOptions& options,
    const StageExecutor::Progress& progress, const std::atomic<bool>* cancelled,
    const KnownPieces& known) {
  if (options.dummy_weights) {
    return LoadStage(model.spec(), DummySource(), options, progress, cancelled);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> source,
                          model.OpenTensors(known));
  DecoderSpec spec = model.spec();
  if (options.layers.end == spec.num_layers) {
    SLUICE_ASSIGN_OR_RETURN(spec, model.SpecOf(*source));
  }
  return LoadStage(spec, *source, options, progress, cancelled);
}

}  // namespace sluice
