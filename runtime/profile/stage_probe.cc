#include "runtime/profile/stage_probe.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "common/status_macros.h"
#include "common/step_plan.h"
#include "common/threads/clock.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "runtime/profile/measure.h"
#include "runtime/profile/probe_model.h"
#include "runtime/sample/sampler.h"

namespace sluice {
namespace {

struct Shape {
  int32_t layers, hidden, head_dim, intermediate, rows;

  // Elements of a layer's matrices; a fourth as many KV heads as heads.
  double Elements() const {
    return 1.0 * hidden * (2.5 * hidden + 3.0 * intermediate);
  }
};
// The tiny shape has only the fixed cost of a layer.
constexpr Shape kTiny = {16, 64, 16, 128, 1};
// These shapes differ only in their GEMMs.
constexpr Shape kNarrow = {4, 1024, 64, 256, 256};
constexpr Shape kWide = {2, 1024, 64, 2816, 256};

// The device memory that suffices for each of them.
constexpr uint64_t kMaxDevice = uint64_t{1} << 30;
// The wide shape's share of scarce memory; the narrow one needs nearly as much.
constexpr double kWideShare = 0.55;

// The time of a layer.
struct LayerTime {
  double all = 0;
  double attention = 0;
};

// A stage from the middle of a model, which neither embeds nor samples, and one
// prompt. (Other costs of decoding rows are in the rates of attention.)
class ProbeStage {
 public:
  // Makes a stage with `share` of a device's free memory.
  static absl::StatusOr<std::unique_ptr<ProbeStage>> Create(
      const StageProbeOptions& options, Shape shape, double share,
      const std::atomic<bool>* cancelled) {
    auto self = std::make_unique<ProbeStage>();
    shape.rows = std::min(shape.rows, options.max_rows);
    self->shape_ = shape;
    const DecoderSpec spec = ProbeModel(shape.layers + 2, shape.hidden,
                                        shape.head_dim, shape.intermediate, 64);
    StageOptions stage;
    stage.layers = {1, 1 + shape.layers};
    stage.policy.gbs = 1;
    stage.policy.max_step_tokens = shape.rows;
    stage.policy.dtype = options.dtype;
    stage.max_model_len = shape.rows;
    stage.max_sequences = 1;
    stage.compute_threads = options.threads;
    stage.cores = options.cores;
    stage.device = options.device;
    if (options.device_budget != nullptr) {
      const uint64_t part = std::min(
          kMaxDevice, static_cast<uint64_t>(
                          share * static_cast<double>(
                                      options.device_budget->free_bytes())));
      SLUICE_ASSIGN_OR_RETURN(self->charge_,
                              options.device_budget->Charge("profile", part));
      self->device_ = std::make_unique<MemoryBudget>(Tier::kDevice, part);
      stage.device_budget = self->device_.get();
    }
    stage.host_budget = options.host_budget;
    SLUICE_ASSIGN_OR_RETURN(self->stage_, LoadStage(spec, DummySource(), stage,
                                                    nullptr, cancelled));
    return self;
  }

  absl::StatusOr<LayerTime> Step() {
    stage_->Reset();
    StepPlan plan;
    plan.admit.push_back({SequenceId(0), shape_.rows, shape_.rows});
    MicroBatch& batch = plan.micro_batches.emplace_back();
    batch.segments.push_back({SequenceId(0), 0, shape_.rows, true});
    batch.tokens.resize(static_cast<size_t>(shape_.rows));
    std::shared_ptr<ActivationBuffer> in =
        pool_.Acquire(shape_.rows, shape_.hidden);
    FillFloats(in->data(), in->bytes() / sizeof(float));
    StepResult result;
    const double attended = stage_->stats().attention_seconds;
    const double start = MonotonicSeconds();
    ComputeStopwatch watch(quota_);
    HeldInputs inputs({std::move(in)});
    SLUICE_RETURN_IF_ERROR(stage_->RunStep(
        plan, &inputs,
        [](int32_t, std::shared_ptr<ActivationBuffer>) {
          return absl::OkStatus();
        },
        &result));
    const double all = watch.Lap();
    const double wall = std::max(1e-9, MonotonicSeconds() - start);
    const double attention =
        (stage_->stats().attention_seconds - attended) * all / wall;
    return LayerTime{all / shape_.layers, attention / shape_.layers};
  }

 private:
  Shape shape_;
  const double quota_ = CpuQuota();
  ActivationPool pool_;
  // The charge of the stage, which is destroyed first.
  MemoryCharge charge_;
  std::unique_ptr<MemoryBudget> device_;
  std::unique_ptr<StageExecutor> stage_;
};

constexpr int kMinSteps = 16;

absl::StatusOr<double> MeasureLayer(const StageProbeOptions& options,
                                    double seconds,
                                    const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeStage> stage,
                          ProbeStage::Create(options, kTiny, 1, cancelled));
  return TimeCalls(seconds, kMinSteps, cancelled,
                   [&] { return stage->Step().status(); });
}

// Measures seconds for a row and element, from layers of two widths without
// attention: the intercept of a line through both, at no GEMMs.
absl::StatusOr<double> MeasureRows(const StageProbeOptions& options,
                                   double layer_seconds, double seconds,
                                   const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ProbeStage> wide,
      ProbeStage::Create(options, kWide, kWideShare, cancelled));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeStage> narrow,
                          ProbeStage::Create(options, kNarrow, 1, cancelled));
  std::vector<double> narrow_times, wide_times;
  const double end = MonotonicSeconds() + seconds;
  // The stages take turns, so that a disturbance affects both.
  while (narrow_times.size() < kMinSteps || MonotonicSeconds() < end) {
    SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
    SLUICE_ASSIGN_OR_RETURN(const LayerTime n, narrow->Step());
    SLUICE_ASSIGN_OR_RETURN(const LayerTime w, wide->Step());
    narrow_times.push_back(n.all - n.attention);
    wide_times.push_back(w.all - w.attention);
  }
  const double n = TypicalSeconds(std::move(narrow_times));
  const double w = TypicalSeconds(std::move(wide_times));
  const double share =
      kNarrow.Elements() / (kWide.Elements() - kNarrow.Elements());
  const double rest = n - share * (w - n) - layer_seconds;
  return std::max(0.0, rest) /
         (1.0 * std::min(kNarrow.rows, options.max_rows) * kNarrow.hidden);
}

}  // namespace

absl::StatusOr<LayerOverheads> MeasureLayerOverheads(
    const StageProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled) {
  LayerOverheads overheads;
  SLUICE_ASSIGN_OR_RETURN(const double step,
                          MeasureLayer(options, 0.2 * seconds, cancelled));
  overheads.layer_seconds = step / kTiny.layers;
  SLUICE_ASSIGN_OR_RETURN(
      overheads.row_element_seconds,
      MeasureRows(options, overheads.layer_seconds, 0.8 * seconds, cancelled));
  return overheads;
}

absl::StatusOr<double> MeasureSampling(int threads,
                                       const std::vector<int>& cores,
                                       MemoryBudget* budget, double seconds,
                                       const std::atomic<bool>* cancelled) {
  constexpr int kRows = 64;
  constexpr size_t kVocab = 32000;
  SLUICE_ASSIGN_OR_RETURN(
      const HostBuffer logits,
      HostBuffer::Create("profile", kRows * kVocab * sizeof(float), budget));
  FillFloats(logits.as<float>(), kRows * kVocab);
  ComputePool pool(threads, cores);
  const Sampler sampler(SamplingParams(), 1);
  std::vector<SamplerScratch> scratch(static_cast<size_t>(threads));
  SLUICE_ASSIGN_OR_RETURN(
      const double once, TimeCalls(seconds, 3, cancelled, [&] {
        pool.ParallelFor(kRows, [&](int row, int thread) {
          const std::span<float> of_row(
              logits.as<float>() + static_cast<size_t>(row) * kVocab, kVocab);
          sampler.Sample(of_row, 1, scratch[static_cast<size_t>(thread)]);
        });
        return absl::OkStatus();
      }));
  return once / (kRows * static_cast<double>(kVocab));
}

}  // namespace sluice
