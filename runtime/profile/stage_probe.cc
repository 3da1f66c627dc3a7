#include "runtime/profile/stage_probe.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/step_plan.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/kernels/cpu/compute_pool.h"
#include "runtime/memory/host_buffer.h"
#include "runtime/model/dummy_source.h"
#include "runtime/profile/measure.h"
#include "runtime/profile/probe_model.h"
#include "runtime/sample/sampler.h"

namespace sluice {
namespace {

// Steps before the sequences begin anew: few, so that attention counts little.
constexpr int32_t kPositions = 8;

struct Shape {
  int32_t layers, hidden, head_dim, intermediate, rows;
};
constexpr Shape kTiny = {16, 64, 16, 128, 1};
constexpr Shape kMiddle = {2, 1024, 64, 2816, 256};

// A stage from the middle of a model, which neither embeds nor samples, and
// sequences that all decode.
class ProbeStage {
 public:
  static absl::StatusOr<std::unique_ptr<ProbeStage>> Create(
      const StageProbeOptions& options, const Shape& shape,
      const std::atomic<bool>* cancelled) {
    auto self = std::make_unique<ProbeStage>();
    self->shape_ = shape;
    const DecoderSpec spec = ProbeModel(shape.layers + 2, shape.hidden,
                                        shape.head_dim, shape.intermediate, 64);
    StageExecutor::Options stage;
    stage.layers = {1, 1 + shape.layers};
    stage.policy.gbs = shape.rows;
    stage.policy.max_step_tokens = shape.rows;
    stage.policy.dtype = options.dtype;
    stage.max_model_len = kPositions;
    stage.max_sequences = shape.rows;
    stage.compute_threads = options.threads;
    stage.cores = options.cores;
    stage.backend = options.backend;
    stage.device_budget = options.device_budget;
    stage.host_budget = options.host_budget;
    SLUICE_ASSIGN_OR_RETURN(self->stage_, LoadStage(spec, DummySource(), stage,
                                                    nullptr, cancelled));
    return self;
  }

  // Seconds that a layer of a step takes.
  absl::StatusOr<double> LayerSeconds(double seconds,
                                      const std::atomic<bool>* cancelled) {
    std::vector<double> times;
    const double end = MonotonicSeconds() + seconds;
    for (int step = 0; step < 3 * kPositions || MonotonicSeconds() < end;
         ++step) {
      SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
      SLUICE_ASSIGN_OR_RETURN(const double took, Step());
      if (step >= kPositions) times.push_back(took);  // the first ones warm up
    }
    return TypicalSeconds(std::move(times)) / shape_.layers;
  }

 private:
  absl::StatusOr<double> Step() {
    if (position_ == kPositions) {
      stage_->Reset();
      position_ = 0;
    }
    StepPlan plan;
    MicroBatch& batch = plan.micro_batches.emplace_back();
    for (int32_t s = 0; s < shape_.rows; ++s) {
      if (position_ == 0) plan.admit.push_back({SequenceId(s), 1, kPositions});
      batch.segments.push_back({SequenceId(s), position_, 1, true});
      batch.tokens.push_back(0);
    }
    ++position_;
    std::shared_ptr<ActivationBuffer> in =
        pool_.Acquire(shape_.rows, shape_.hidden);
    FillFloats(in->data(), in->bytes() / sizeof(float));
    StepResult result;
    const double start = MonotonicSeconds();
    SLUICE_RETURN_IF_ERROR(stage_->RunStep(
        plan, std::span(&in, 1),
        [](int32_t, std::shared_ptr<ActivationBuffer>) {
          return absl::OkStatus();
        },
        &result));
    return MonotonicSeconds() - start;
  }

  Shape shape_;
  ActivationPool pool_;
  std::unique_ptr<StageExecutor> stage_;
  int32_t position_ = 0;
};

absl::StatusOr<double> LayerSeconds(const StageProbeOptions& options,
                                    const Shape& shape, double seconds,
                                    const std::atomic<bool>* cancelled) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeStage> stage,
                          ProbeStage::Create(options, shape, cancelled));
  return stage->LayerSeconds(seconds, cancelled);
}

}  // namespace

absl::Status MeasureLayerOverheads(const StageProbeOptions& options,
                                   double seconds,
                                   const std::atomic<bool>* cancelled,
                                   ComputeProfile* compute) {
  const ProductRate* products =
      compute->Products(options.dtype, WeightFormat::kFull);
  const AttentionRate* attention =
      compute->Attention(UnquantizedKvFormat(options.dtype));
  if (products == nullptr || attention == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no products or attention measured in ", DTypeName(options.dtype)));
  }
  SLUICE_ASSIGN_OR_RETURN(
      compute->layer_seconds,
      LayerSeconds(options, kTiny, 0.3 * seconds, cancelled));
  SLUICE_ASSIGN_OR_RETURN(
      const double whole,
      LayerSeconds(options, kMiddle, 0.7 * seconds, cancelled));
  const double hidden = kMiddle.hidden;
  const double kv_width = hidden / 4;
  const double elements =
      hidden * (2 * hidden + 2 * kv_width) + 3 * hidden * kMiddle.intermediate;
  const double rows = kMiddle.rows;
  const double multiplying =
      2 * rows * elements / products->flops_by_rows.At(rows);
  const double element_bytes = options.dtype == DType::kFloat32 ? 4 : 2;
  const double positions = (kPositions + 1) / 2.0;
  const double attending = rows * positions * 2 * kv_width * element_bytes /
                           attention->decode_bytes_by_context.At(positions);
  const double rest = whole - multiplying - attending - compute->layer_seconds;
  compute->row_element_seconds = std::max(0.0, rest) / (rows * hidden);
  return absl::OkStatus();
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
