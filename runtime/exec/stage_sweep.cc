#include "runtime/exec/stage_sweep.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"

namespace sluice {

StageSweep::StageSweep(const DecoderSpec& spec, const StageOptions& options,
                       TensorRank rank, StageParts parts)
    : options_(options),
      last_(options.layers.end == spec.num_layers),
      row_by_row_(options.policy.schedule == Schedule::kRowByRow &&
                  options.layers.size() > 1),
      limits_{.max_step_tokens = options.policy.max_step_tokens,
              .max_model_len = options.max_model_len,
              .max_sequences = options.max_sequences,
              .vocab_size = spec.vocab_size,
              .hidden_size = spec.hidden_size,
              .first = options.layers.begin == 0 || !rank.leads(),
              .packing = options.policy.packing},
      parts_(std::move(parts)),
      backend_(*parts_.backend.backend),
      weights_(*parts_.weights),
      activations_(*parts_.activations),
      attention_(*parts_.attention),
      tables_(parts_.pages, options.max_model_len,
              parts_.kv_groups.window_pages()),
      work_(&parts_.kv_groups),
      mixture_(spec.has_mixtures() ? spec.mixture : MixtureSpec()),
      mixture_rows_(options.ShapeOf(spec, rank).backend().mixture_rows) {
  for (size_t t = 0; t < kNumTiers; ++t) {
    max_run_pages_[t] = attention_.max_run_pages(static_cast<Tier>(t));
  }
}

// Computing must end before its memory goes.
StageSweep::~StageSweep() {
  parts_.compute->Finish().IgnoreError();
  parts_.buffers->Retire();
}

void StageSweep::Reset() {
  parts_.compute->Finish().IgnoreError();
  attention_.Reset();
  activations_.Reset();
  weights_.Reset();
  tables_.Clear();
  if (last_) parts_.head->Clear();
}

uint64_t StageSweep::kv_host_used_bytes() const {
  uint64_t bytes = 0;
  for (const KvGroup group : kKvGroups) {
    bytes += static_cast<uint64_t>(tables_.pool(group, Tier::kHost).touched()) *
             static_cast<uint64_t>(parts_.kv_groups.sizes[group]) *
             parts_.backend.kv_layout.layer_page_bytes();
  }
  return bytes;
}

absl::Status StageSweep::RunStep(const StepPlan& plan, StepInputs* inputs,
                                 const Emit& emit, StepResult* result) {
  const absl::Status status = Sweep(plan, inputs, emit, result);
  if (!status.ok()) {
    // Work that is under way must not see another step's.
    parts_.compute->Finish().IgnoreError();
    attention_.Reset();
  }
  return status;
}

absl::Status StageSweep::Sweep(const StepPlan& plan, StepInputs* inputs,
                               const Emit& emit, StepResult* result) {
  SLUICE_RETURN_IF_ERROR(Admit(plan, inputs));
  if (last_) {
    result->epoch = plan.epoch;
    result->block = plan.block;
    result->step = plan.step;
    parts_.head->Begin(result);
  }
  if (work_.num_batches == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(BeginStep(plan));
  SLUICE_RETURN_IF_ERROR(RunLayers(emit));
  if (last_) SLUICE_RETURN_IF_ERROR(RunHead(plan));
  // A fault of the device must show in the step that it is part of.
  return parts_.compute->Finish();
}

absl::Status StageSweep::Admit(const StepPlan& plan, StepInputs* inputs) {
  SLUICE_RETURN_IF_ERROR(CheckInputs(inputs, limits_));
  for (const KeptPrefix& keep : plan.keep) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(tables_.Keep(keep.id, keep.prefix), "keep"));
    if (last_) parts_.head->Keep(keep);
  }
  for (const SequenceId id : plan.release) {
    SLUICE_RETURN_IF_ERROR(Annotate(tables_.Release(id), "release"));
    if (last_) parts_.head->Release(id);
  }
  for (const SequenceAdmission& admission : plan.admit) {
    SLUICE_RETURN_IF_ERROR(CheckAdmission(admission, limits_));
    if (tables_.size() >= static_cast<size_t>(options_.max_sequences)) {
      return ResourceExhausted("sequence ", admission.sequence.value(),
                               ": this stage holds its ",
                               options_.max_sequences, " sequences already");
    }
    SLUICE_RETURN_IF_ERROR(tables_.Admit(
        admission.sequence, admission.max_positions, admission.prefix));
    if (last_) parts_.head->Admit(admission);
  }
  work_.Begin(inputs);
  for (size_t k = 0; k < plan.micro_batches.size(); ++k) {
    SLUICE_RETURN_IF_ERROR(Annotate(
        work_.Admit(plan.micro_batches[k], limits_, max_run_pages_, &tables_),
        absl::StrCat("micro-batch ", k)));
  }
  const int32_t layers = options_.layers.size();
  work_.Order(layers, row_by_row_, last_, SharesExperts(layers - 1));
  int64_t rows = 0;
  first_rows_.clear();
  for (size_t k = 0; k < work_.num_batches; ++k) {
    first_rows_.push_back(static_cast<int32_t>(rows));
    rows += work_.batches[k].view.rows;
  }
  if (mixture_.experts > 0 && !row_by_row_ && rows > mixture_rows_) {
    return InvalidArgument("a step of ", rows,
                           " rows, but this stage has room "
                           "for ",
                           mixture_rows_, " in its mixtures");
  }
  return absl::OkStatus();
}

bool StageSweep::IsMixture(int layer) const {
  return Layout(layer).experts > 0;
}

bool StageSweep::SharesExperts(int layer) const {
  return IsMixture(layer) && !row_by_row_ && work_.num_batches > 1;
}

absl::Status StageSweep::BeginStep(const StepPlan& plan) {
  weights_.BeginStep(row_by_row_ ? static_cast<int>(work_.num_batches) : 1,
                     last_ ? parts_.head->Passes(plan) : 0);
  attention_.BeginStep(&work_);
  return activations_.BeginStep(&work_);
}

absl::Status StageSweep::RunItems(const Emit& emit, bool emits) {
  Backend::PackedLayer packed;
  int32_t held = -1;    // the layer that `packed` shows
  size_t finished = 0;  // items
  const auto batches = static_cast<double>(work_.num_batches);
  for (size_t item = 0; item < work_.items.size(); ++item) {
    const auto [layer, k] = work_.items[item];
    BatchWork& work = work_.batches[k];
    SLUICE_ASSIGN_OR_RETURN(work.rows, activations_.Acquire(item));
    if (layer > 0 && SharesExperts(layer - 1)) {
      SLUICE_RETURN_IF_ERROR(AddExperts(layer - 1, k));
    }
    if (held != layer) {
      SLUICE_ASSIGN_OR_RETURN(packed, AcquireLayer(layer));
      held = layer;
      HoldBackExperts(layer, /*next_time=*/false);
    }
    // While this micro-batch computes, its share of the layers ahead comes in.
    weights_.ReadAhead(row_by_row_ ? 1 : (k + 1) / batches);
    // After the rows of its embedding, which are few and wanted at once.
    attention_.ReadAhead();
    {
      const int model_layer = options_.layers.begin + layer;
      const Timed timed(&parts_.stats->projection_seconds, parts_.trace_row,
                        "qkv", {{{"layer", model_layer}, {"micro_batch", k}}});
      SLUICE_RETURN_IF_ERROR(
          backend_.ProjectQkv(model_layer, packed, work.view, work.rows));
    }
    SLUICE_ASSIGN_OR_RETURN(const size_t ready, attention_.Begin(item));
    for (; finished < ready; ++finished) {
      SLUICE_RETURN_IF_ERROR(ComputeItem(finished, packed));
      if (IsMixture(layer) && !SharesExperts(layer)) continue;
      SLUICE_RETURN_IF_ERROR(EndItem(finished, emit, emits));
    }
    if (item + 1 < work_.items.size() && work_.items[item + 1].layer == layer) {
      continue;
    }
    SLUICE_RETURN_IF_ERROR(weights_.Release(parts_.units->first[layer]));
    held = -1;
    if (!IsMixture(layer)) continue;
    SLUICE_RETURN_IF_ERROR(RunExperts(layer));
    if (SharesExperts(layer)) continue;
    SLUICE_RETURN_IF_ERROR(AddExperts(layer, k));
    SLUICE_RETURN_IF_ERROR(EndItem(item, emit, emits));
  }
  return last_ ? absl::OkStatus() : EndStreams(emit, emits);
}

absl::Status StageSweep::ComputeItem(size_t item,
                                     const Backend::PackedLayer& packed) {
  const auto [local, k] = work_.items[item];
  const int layer = options_.layers.begin + local;
  const BatchWork& work = work_.batches[k];
  SLUICE_RETURN_IF_ERROR(attention_.Finish(item));
  activations_.ReadAhead();
  const Timed timed(&parts_.stats->projection_seconds, parts_.trace_row,
                    "out and mlp", {{{"layer", layer}, {"micro_batch", k}}});
  SLUICE_RETURN_IF_ERROR(
      backend_.ProjectOut(layer, packed, work.view, work.rows));
  attention_.ReadAhead();  // what attention changed may be away by now
  return IsMixture(local)
             ? backend_.Route(layer, packed, work.view, work.rows, FirstRow(k))
             : backend_.Mlp(layer, packed, work.view, work.rows);
}

absl::Status StageSweep::EndItem(size_t item, const Emit& emit, bool emits) {
  const auto [layer, k] = work_.items[item];
  AddMark(options_.marks);
  SLUICE_RETURN_IF_ERROR(activations_.Release(item));
  return emits && layer + 1 == options_.layers.size() && !SharesExperts(layer)
             ? EmitStream(k, emit)
             : absl::OkStatus();
}

absl::Status StageSweep::EndStreams(const Emit& emit, bool emits) {
  const int last = options_.layers.size() - 1;
  for (size_t k = 0; SharesExperts(last) && k < work_.num_batches; ++k) {
    const size_t turn = work_.items.size() + k;
    SLUICE_ASSIGN_OR_RETURN(work_.batches[k].rows, activations_.Acquire(turn));
    SLUICE_RETURN_IF_ERROR(AddExperts(last, static_cast<int32_t>(k)));
    SLUICE_RETURN_IF_ERROR(activations_.Release(turn));
    if (!emits) continue;
    SLUICE_RETURN_IF_ERROR(EmitStream(static_cast<int32_t>(k), emit));
  }
  return absl::OkStatus();
}

absl::Status StageSweep::EmitStream(int32_t k, const Emit& emit) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<ActivationBuffer> out,
                          activations_.Leave(k));
  return emit(k, std::move(out));
}

void StageSweep::HoldBackExperts(int layer, bool next_time) {
  int64_t rows = 0;
  for (size_t k = 0; k < work_.num_batches; ++k) {
    const int64_t of_batch = work_.batches[k].view.rows;
    rows = row_by_row_ ? std::max(rows, of_batch) : rows + of_batch;
  }
  const bool few =
      rows * mixture_.experts_per_token < 2 * int64_t{mixture_.experts};
  const int core = parts_.units->first[layer];
  weights_.HoldBack(core + 1, core + 1 + (few ? Layout(layer).experts : 0),
                    next_time);
}

absl::Status StageSweep::RunExperts(int layer) {
  const int model_layer = options_.layers.begin + layer;
  SLUICE_ASSIGN_OR_RETURN(const std::span<const int32_t> rows,
                          backend_.RowsOfExperts());
  const int first = parts_.units->first[layer] + 1;
  for (int expert = 0; expert < mixture_.experts; ++expert) {
    if (rows[expert] > 0) continue;
    SLUICE_RETURN_IF_ERROR(weights_.Skip(first + expert));
  }
  // A single layer is the next one, too.
  HoldBackExperts((layer + 1) % options_.layers.size(), /*next_time=*/true);
  weights_.ReadAhead(1);
  for (int expert = 0; expert < mixture_.experts; ++expert) {
    if (rows[expert] == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(const PackedView packed,
                            weights_.Acquire(first + expert));
    {
      const Timed timed(&parts_.stats->projection_seconds, parts_.trace_row,
                        "expert",
                        {{{"layer", model_layer}, {"expert", expert}}});
      SLUICE_RETURN_IF_ERROR(backend_.RunExpert(model_layer, expert, packed));
    }
    AddMark(options_.marks);
    SLUICE_RETURN_IF_ERROR(weights_.Release(first + expert));
    weights_.ReadAhead(1);
  }
  return absl::OkStatus();
}

absl::Status StageSweep::AddExperts(int layer, int32_t k) {
  const BatchWork& work = work_.batches[k];
  const Timed timed(
      &parts_.stats->projection_seconds, parts_.trace_row, "add experts",
      {{{"layer", options_.layers.begin + layer}, {"micro_batch", k}}});
  return backend_.AddExperts(options_.layers.begin + layer, work.view,
                             FirstRow(k), work.rows);
}

absl::StatusOr<Backend::PackedLayer> StageSweep::AcquireLayer(int layer) {
  SLUICE_ASSIGN_OR_RETURN(const PackedView view,
                          weights_.Acquire(parts_.units->first[layer]));
  if (!parts_.dequantizes) return Backend::PackedLayer{view, false};
  const Timed timed(&parts_.stats->dequantize_seconds, parts_.trace_row,
                    "dequantize", {{{"layer", layer}}});
  SLUICE_RETURN_IF_ERROR(backend_.DequantizeLayer(
      options_.layers.begin + layer, view, parts_.dequantized.as<std::byte>()));
  return Backend::PackedLayer{PackedView::Whole(parts_.dequantized.data()),
                              true};
}

bool StageSweep::IsFixed() const {
  // The next stage should have the first micro-batch while this one computes
  // the second, and this one compute it while the second arrives.
  const bool alone = options_.layers.begin == 0 && last_;
  if (!alone && work_.num_batches > 1) return false;
  for (size_t k = 0; k < work_.num_batches; ++k) {
    if (!activations_.fixed(k) || !attention_.fixed(k)) return false;
  }
  return weights_.layers_stay();
}

absl::StatusOr<bool> StageSweep::Replay() {
  views_.clear();
  rows_of_.clear();
  for (size_t item = 0; item < work_.items.size(); ++item) {
    if (!work_.begins(item)) continue;
    BatchWork& work = work_.batch_of(item);
    SLUICE_ASSIGN_OR_RETURN(work.rows, activations_.Acquire(item));
    views_.push_back(work.view);
    rows_of_.push_back(work.rows);
  }
  const Timed timed(&parts_.stats->projection_seconds, parts_.trace_row,
                    "layers");
  return backend_.ReplayLayers(views_, rows_of_);
}

absl::Status StageSweep::RunLayers(const Emit& emit) {
  if (!IsFixed()) return RunItems(emit, !last_);
  SLUICE_ASSIGN_OR_RETURN(const bool replayed, Replay());
  if (!replayed) {
    SLUICE_RETURN_IF_ERROR(RunItems(emit, false));
    SLUICE_RETURN_IF_ERROR(backend_.EndLayers());
  }
  for (size_t k = 0; !last_ && k < work_.num_batches; ++k) {
    SLUICE_RETURN_IF_ERROR(EmitStream(static_cast<int32_t>(k), emit));
  }
  return absl::OkStatus();
}

absl::Status StageSweep::RunHead(const StepPlan& plan) {
  for (size_t k = 0; k < work_.num_batches; ++k) {
    const size_t turn = work_.items.size() + k;
    BatchWork& work = work_.batches[k];
    SLUICE_ASSIGN_OR_RETURN(work.rows, activations_.Acquire(turn));
    const int last = options_.layers.size() - 1;
    if (SharesExperts(last)) {
      SLUICE_RETURN_IF_ERROR(AddExperts(last, static_cast<int32_t>(k)));
    }
    SLUICE_RETURN_IF_ERROR(
        parts_.head->Add(plan.micro_batches[k], work.segments, work.rows));
    SLUICE_RETURN_IF_ERROR(activations_.Release(turn));
  }
  SLUICE_RETURN_IF_ERROR(parts_.head->Finish());
  weights_.ReadAhead(1);
  return absl::OkStatus();
}

}  // namespace sluice
