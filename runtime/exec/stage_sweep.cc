#include "runtime/exec/stage_sweep.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/timed.h"

namespace sluice {
StageSweep::StageSweep(const DecoderSpec& spec, const Options& options,
                       StageParts parts)
    : options_(options),
      last_(options.layers.end == spec.num_layers),
      limits_{.max_step_tokens = options.policy.max_step_tokens,
              .max_model_len = options.max_model_len,
              .max_sequences = options.max_sequences,
              .vocab_size = spec.vocab_size,
              .hidden_size = spec.hidden_size,
              .first = options.layers.begin == 0,
              .packing = options.policy.packing},
      parts_(std::move(parts)),
      backend_(parts_.compute.backend.get()),
      host_backend_(parts_.device != nullptr ? parts_.host.backend.get()
                                             : backend_),
      device_compute_(parts_.device_compute.get()),
      device_weights_(parts_.device_weights.get()),
      device_x_(parts_.device_activations.get()),
      device_attention_(parts_.device_attention.get()),
      tables_(parts_.pages, options.max_model_len),
      buffers_(std::make_shared<ActivationPool>(parts_.device.get())),
      row_(parts_.trace_row) {
  if (last_) {
    head_ = std::make_unique<StageHead>(StageHead::Options{
        .backend = backend_,
        .pool = (parts_.device != nullptr ? parts_.host : parts_.compute)
                    .pool.get(),
        .head_rows = parts_.head_rows,
        .sections = parts_.compute.weights->num_head_sections(),
        .acquire = [this](int section) { return AcquireHead(section); },
        .release =
            [this](int section) {
              return ReleaseUnit(options_.layers.size() + section);
            },
        .seconds = &parts_.stats->head_seconds,
        .row = row_,
        .logits_observer = options.logits_observer});
  }
  if (device_weights_ == nullptr) parts_.weights->ReadAhead(1);
}

// Before its memory goes.
StageSweep::~StageSweep() {
  Settle();
  buffers_->Retire();
}

void StageSweep::Settle() {
  if (device_compute_ != nullptr) device_compute_->Finish().IgnoreError();
}

void StageSweep::Reset() {
  Settle();
  if (device_attention_ != nullptr) device_attention_->Reset();
  if (device_x_ != nullptr) device_x_->Reset();
  if (parts_.stager != nullptr) parts_.stager->Reset();
  if (parts_.activation_stager != nullptr) parts_.activation_stager->Reset();
  if (device_weights_ != nullptr) {
    device_weights_->Rewind();
  } else {
    parts_.weights->Rewind();
    parts_.weights->ReadAhead(1);
  }
  tables_.Clear();
  if (parts_.kv != nullptr) parts_.kv->Trim();
  if (last_) head_->Clear();
}

SweepStats StageSweep::stats() const {
  SweepStats stats = *parts_.stats;
  if (parts_.io != nullptr) {
    const IoEngine::Totals totals = parts_.io->totals();
    stats.disk_read_seconds = totals.read_busy_seconds;
    stats.disk_write_seconds = totals.write_busy_seconds;
    stats.disk_read_bytes = totals.bytes_read;
    stats.disk_write_bytes = totals.bytes_written;
  }
  if (parts_.device != nullptr) {
    const Device::Totals totals = parts_.device->totals();
    stats.h2d_seconds = totals.h2d_busy_seconds;
    stats.d2h_seconds = totals.d2h_busy_seconds;
    stats.h2d_bytes = totals.h2d_bytes;
    stats.d2h_bytes = totals.d2h_bytes;
    stats.weight_read_bytes = device_weights_->read_bytes();
    stats.host_attention_seconds = device_attention_->host_seconds();
  }
  return stats;
}

absl::Status StageSweep::ReleaseAndAdmit(const StepPlan& plan) {
  for (const SequenceId id : plan.release) {
    SLUICE_RETURN_IF_ERROR(Annotate(tables_.Release(id), "release"));
    if (last_) head_->Release(id);
  }
  for (const SequenceAdmission& admission : plan.admit) {
    SLUICE_RETURN_IF_ERROR(CheckAdmission(admission, limits_));
    if (tables_.size() >= static_cast<size_t>(options_.max_sequences)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "sequence ", admission.sequence.value(), ": this stage holds its ",
          options_.max_sequences, " sequences already"));
    }
    SLUICE_RETURN_IF_ERROR(
        tables_.Admit(admission.sequence, admission.max_tokens));
    if (last_) head_->Admit(admission);
  }
  return absl::OkStatus();
}

void StageSweep::View(const MicroBatch& batch, StageWork* work,
                      std::vector<KvStager::Group>* groups) {
  work->segments.clear();
  work->runs.clear();
  work->members.clear();
  work->on_host = false;
  groups->clear();
  // Pages that a run may have: a group, where runs are staged.
  const auto limit = [&](Tier tier) {
    int64_t pages = std::numeric_limits<int64_t>::max();
    if (tier == Tier::kDisk) pages = parts_.stager->MaxGroupPages();
    if (device_attention_ != nullptr) {
      pages = std::min(pages, device_attention_->MaxRunPages(tier));
    }
    return pages;
  };
  const SegmentRows rows(batch, limits_.packing);
  work->padded_tokens.clear();
  int32_t row = 0;
  size_t token = 0;
  int64_t run_pages = 0;
  for (const Segment& segment : batch.segments) {
    const SequencePages& table = *tables_.Find(segment.sequence);
    const auto index = static_cast<int32_t>(work->segments.size());
    // Pages up to the last new position: what lies behind is of no use yet.
    const int32_t end = segment.start + segment.num_tokens;
    const auto pages = std::span<const int32_t>(table.pages)
                           .first((end + kPageTokens - 1) / kPageTokens);
    work->segments.push_back({.row = row,
                              .start = segment.start,
                              .num_tokens = segment.num_tokens,
                              .pages = pages});
    row += rows.Of(segment);
    if (!limits_.packing && limits_.first) {
      // Rows of padding compute some token, whose results nobody looks at.
      const auto from = batch.tokens.begin() + token;
      work->padded_tokens.insert(work->padded_tokens.end(), from,
                                 from + segment.num_tokens);
      work->padded_tokens.resize(row, *from);
      token += segment.num_tokens;
    }
    const auto count = static_cast<int64_t>(pages.size());
    if (work->runs.empty() || work->runs.back().tier != table.tier ||
        run_pages + count > limit(table.tier)) {
      work->runs.push_back({index, 0, table.tier});
      run_pages = 0;
      if (table.tier == Tier::kDisk) groups->emplace_back();
    }
    ++work->runs.back().count;
    run_pages += count;
    if (table.tier == Tier::kDisk) {
      groups->back().num_pages += count;
      groups->back().members.push_back(
          {segment.sequence, index, pages, segment.start, segment.num_tokens});
    }
    if (device_attention_ == nullptr) continue;
    work->members.push_back({.sequence = segment.sequence,
                             .segment = index,
                             .pages = pages,
                             .start = segment.start,
                             .num_tokens = segment.num_tokens});
    work->on_host = work->on_host || device_attention_->OnHost(table.tier);
  }
  work->view = {.rows = row,
                .tokens = limits_.packing ? batch.tokens : work->padded_tokens,
                .segments = work->segments};
}

void StageSweep::OrderItems(size_t num_batches) {
  const auto layers = static_cast<int32_t>(options_.layers.size());
  const auto batches = static_cast<int32_t>(num_batches);
  order_.clear();
  if (options_.policy.schedule == Schedule::kRowByRow) {
    for (int32_t k = 0; k < batches; ++k) {
      for (int32_t j = 0; j < layers; ++j) order_.emplace_back(j, k);
    }
  } else {
    for (int32_t j = 0; j < layers; ++j) {
      for (int32_t k = 0; k < batches; ++k) order_.emplace_back(j, k);
    }
  }
}

absl::StatusOr<ImageView> StageSweep::AcquireUnit(int unit) {
  return device_weights_ != nullptr ? device_weights_->Acquire(unit)
                                    : parts_.weights->Acquire(unit);
}

absl::Status StageSweep::ReleaseUnit(int unit) {
  if (device_weights_ != nullptr) return device_weights_->Release(unit);
  parts_.weights->Release(unit);
  return absl::OkStatus();
}

void StageSweep::BeginWeights(const StepPlan& plan) {
  // A single layer stays acquired from row to row.
  const int layer_passes = options_.policy.schedule == Schedule::kRowByRow &&
                                   options_.layers.size() > 1
                               ? static_cast<int>(plan.micro_batches.size())
                               : 1;
  const int head_passes = last_ ? head_->Passes(plan) : 0;
  if (device_weights_ != nullptr) {
    device_weights_->BeginSweep(layer_passes, head_passes);
  } else {
    parts_.weights->BeginSweep(layer_passes, head_passes);
  }
}

absl::StatusOr<ImageView> StageSweep::AcquireHead(int section) {
  SLUICE_ASSIGN_OR_RETURN(const ImageView image,
                          AcquireUnit(options_.layers.size() + section));
  if (device_weights_ == nullptr) parts_.weights->ReadAhead(1);
  return image;
}

absl::StatusOr<Backend::LayerImage> StageSweep::AcquireLayer(int local) {
  SLUICE_ASSIGN_OR_RETURN(const ImageView view, AcquireUnit(local));
  if (parts_.expanded.data() == nullptr) {
    return Backend::LayerImage{view, false};
  }
  const Timed timed(&parts_.stats->expand_seconds, row_, "dequantize",
                    {{{"layer", local}}});
  SLUICE_RETURN_IF_ERROR(
      backend_->ExpandLayer(view, parts_.expanded.as<std::byte>()));
  return Backend::LayerImage{ImageView::Whole(parts_.expanded.data()), true};
}

absl::Status StageSweep::BeginTurns(size_t num_batches) {
  batch_rows_.clear();
  for (size_t k = 0; k < num_batches; ++k) {
    batch_rows_.push_back(work_[k].view.rows);
  }
  if (device_x_ != nullptr) {
    return device_x_->BeginStep(batch_rows_, order_, last_);
  }
  if (parts_.activation_stager == nullptr) return absl::OkStatus();
  turns_.clear();
  for (const auto& [layer, k] : order_) turns_.push_back(k);
  for (size_t k = 0; last_ && k < num_batches; ++k) {
    turns_.push_back(static_cast<int32_t>(k));
  }
  return parts_.activation_stager->BeginStep(turns_, batch_rows_);
}

absl::Status StageSweep::Embed(const BatchView& view, float* x) {
  SLUICE_ASSIGN_OR_RETURN(const EmbeddingStore::Rows embedding,
                          parts_.embedding->Gather(view.tokens));
  BatchView batch = view;
  batch.tokens = embedding.tokens;
  const Timed timed(&parts_.stats->projection_seconds, row_, "embed");
  return host_backend_->Embed(embedding.image, batch, x);
}

absl::Status StageSweep::BringRows(
    size_t item, std::span<std::shared_ptr<ActivationBuffer>> hidden) {
  const auto [layer, k] = order_[item];
  StageWork& work = work_[k];
  if (device_x_ != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(work.rows, device_x_->Acquire(k));
    if (options_.policy.overlap && item + 1 < order_.size()) {
      device_x_->Prefetch(order_[item + 1].second);
    }
    return absl::OkStatus();
  }
  ActivationStager* const stager = parts_.activation_stager.get();
  if (stager != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(work.rows, stager->Take(k));
    stager->ReadAhead();
  }
  if (layer > 0) return absl::OkStatus();
  if (!limits_.first) {
    if (stager == nullptr) {
      work.x = std::move(hidden[k]);
      work.rows = work.x->data();
    } else {
      std::memcpy(work.rows, hidden[k]->data(), hidden[k]->bytes());
      hidden[k].reset();
    }
    return absl::OkStatus();
  }
  if (stager == nullptr) {
    work.x = buffers_->Acquire(work.view.rows, limits_.hidden_size);
    work.rows = work.x->data();
  }
  return Embed(work.view, work.rows);
}

absl::Status StageSweep::Enter(
    std::span<std::shared_ptr<ActivationBuffer>> hidden, size_t num_batches) {
  for (size_t k = 0; k < num_batches; ++k) {
    std::shared_ptr<ActivationBuffer> x;
    if (limits_.first) {
      x = buffers_->Acquire(work_[k].view.rows, limits_.hidden_size);
      SLUICE_RETURN_IF_ERROR(Embed(work_[k].view, x->data()));
    } else {
      x = std::move(hidden[k]);
    }
    SLUICE_RETURN_IF_ERROR(device_x_->Enter(k, std::move(x)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>> StageSweep::Output(
    int32_t k) {
  if (device_x_ != nullptr) return device_x_->Leave(k);
  StageWork& work = work_[k];
  if (parts_.activation_stager == nullptr) return std::move(work.x);
  std::shared_ptr<ActivationBuffer> out =
      buffers_->Acquire(work.view.rows, limits_.hidden_size);
  std::memcpy(out->data(), work.rows, out->bytes());
  return out;
}

absl::Status StageSweep::RunStep(
    const StepPlan& plan, std::span<std::shared_ptr<ActivationBuffer>> hidden,
    const Emit& emit, StepResult* result) {
  const absl::Status status = Sweep(plan, hidden, emit, result);
  if (status.ok() || device_compute_ == nullptr) return status;
  // What is under way must not see another step's work.
  Settle();
  device_attention_->Reset();
  return status;
}

absl::Status StageSweep::CheckStaged(size_t num_batches) {
  staged_.clear();
  for (size_t k = 0; k < num_batches; ++k) {
    for (const KvStager::Group& group : groups_[k]) {
      for (const KvStager::Member& member : group.members) {
        if (staged_.insert(member.sequence).second) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("sequence ", member.sequence.value(),
                         " has two segments in a step, but its KV cache is on "
                         "disk"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StageSweep::Sweep(
    const StepPlan& plan, std::span<std::shared_ptr<ActivationBuffer>> hidden,
    const Emit& emit, StepResult* result) {
  SLUICE_RETURN_IF_ERROR(ReleaseAndAdmit(plan));
  SLUICE_RETURN_IF_ERROR(CheckHidden(plan, hidden, limits_));
  const size_t num_batches = plan.micro_batches.size();
  if (work_.size() < num_batches) {
    work_.resize(num_batches);
    groups_.resize(num_batches);
  }
  for (size_t k = 0; k < num_batches; ++k) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(CheckMicroBatch(plan.micro_batches[k], limits_, &tables_),
                 absl::StrCat("micro-batch ", k)));
    View(plan.micro_batches[k], &work_[k], &groups_[k]);
  }
  SLUICE_RETURN_IF_ERROR(CheckStaged(num_batches));
  if (last_) {
    result->epoch = plan.epoch;
    result->block = plan.block;
    result->step = plan.step;
    head_->Begin(result);
  }
  if (num_batches == 0) return absl::OkStatus();

  OrderItems(num_batches);
  BeginWeights(plan);
  if (parts_.stager != nullptr) parts_.stager->BeginStep(groups_, order_);
  SLUICE_RETURN_IF_ERROR(BeginTurns(num_batches));
  if (device_x_ != nullptr) {
    device_attention_->BeginStep(work_, order_);
    // At once: later the host backend may be busy with attention.
    SLUICE_RETURN_IF_ERROR(Enter(hidden, num_batches));
  }
  SLUICE_RETURN_IF_ERROR(StaysOnDevice(num_batches)
                             ? RunOnDevice(hidden, num_batches, emit)
                             : RunItems(hidden, num_batches, emit));
  if (last_) SLUICE_RETURN_IF_ERROR(RunHead(plan));
  // What went wrong goes wrong in the step that it is part of.
  return device_compute_ != nullptr ? device_compute_->Finish()
                                    : absl::OkStatus();
}

absl::Status StageSweep::RunItems(
    std::span<std::shared_ptr<ActivationBuffer>> hidden, size_t num_batches,
    const Emit& emit) {
  Backend::LayerImage image;
  int held = -1;  // the layer that `image` shows
  const int last_layer = options_.layers.size() - 1;
  const auto finish = [&](size_t item) -> absl::Status {
    SLUICE_RETURN_IF_ERROR(FinishItem(item, image));
    const auto [layer, k] = order_[item];
    if (layer != last_layer || last_ || emits_later_) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<ActivationBuffer> out, Output(k));
    return emit(k, std::move(out));
  };
  bool deferred = false;  // the item before is not finished
  for (size_t item = 0; item < order_.size(); ++item) {
    const auto [layer, k] = order_[item];
    SLUICE_RETURN_IF_ERROR(BringRows(item, hidden));
    if (held != layer) {
      SLUICE_ASSIGN_OR_RETURN(image, AcquireLayer(layer));
      held = layer;
    }
    // While this micro-batch computes, its share of the layers ahead and the
    // KV of the next ones come in.
    const bool row_by_row = options_.policy.schedule == Schedule::kRowByRow;
    if (device_weights_ == nullptr) {
      parts_.weights->ReadAhead(row_by_row
                                    ? 1
                                    : static_cast<double>(k + 1) /
                                          static_cast<double>(num_batches));
    }
    SLUICE_RETURN_IF_ERROR(BeginItem(item, image));
    if (deferred) SLUICE_RETURN_IF_ERROR(finish(item - 1));
    deferred = MayDefer(item);
    if (!deferred) SLUICE_RETURN_IF_ERROR(finish(item));
    if (item + 1 == order_.size() || order_[item + 1].first != layer) {
      SLUICE_RETURN_IF_ERROR(ReleaseUnit(layer));
      held = -1;
    }
  }
  return absl::OkStatus();
}

bool StageSweep::StaysOnDevice(size_t num_batches) const {
  if (device_x_ == nullptr || device_weights_->streams_layers()) return false;
  // The next stage should have the first micro-batch while this one computes
  // the second.
  if (!last_ && num_batches > 1) return false;
  for (size_t k = 0; k < num_batches; ++k) {
    const std::vector<SegmentRun>& runs = work_[k].runs;
    if (!device_x_->resident(k) || runs.size() > 1) return false;
    if (!runs.empty() && runs[0].tier != Tier::kDevice) return false;
  }
  return true;
}

absl::Status StageSweep::RunOnDevice(
    std::span<std::shared_ptr<ActivationBuffer>> hidden, size_t num_batches,
    const Emit& emit) {
  views_.clear();
  rows_of_.clear();
  for (size_t k = 0; k < num_batches; ++k) {
    SLUICE_ASSIGN_OR_RETURN(work_[k].rows, device_x_->Acquire(k));
    views_.push_back(work_[k].view);
    rows_of_.push_back(work_[k].rows);
  }
  bool replayed = false;
  {
    const Timed timed(&parts_.stats->projection_seconds, row_, "layers");
    SLUICE_ASSIGN_OR_RETURN(replayed, backend_->ReplayLayers(views_, rows_of_));
  }
  if (!replayed) {
    emits_later_ = true;
    const absl::Status status = RunItems(hidden, num_batches, emit);
    emits_later_ = false;
    SLUICE_RETURN_IF_ERROR(status);
    SLUICE_RETURN_IF_ERROR(backend_->EndLayers());
  }
  if (last_) return absl::OkStatus();
  for (size_t k = 0; k < num_batches; ++k) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<ActivationBuffer> out,
                            Output(static_cast<int32_t>(k)));
    SLUICE_RETURN_IF_ERROR(emit(static_cast<int32_t>(k), std::move(out)));
  }
  return absl::OkStatus();
}

bool StageSweep::MayDefer(size_t item) const {
  return options_.policy.overlap && work_[order_[item].second].on_host &&
         device_x_->may_hold_two() && item + 1 < order_.size() &&
         order_[item + 1].first == order_[item].first;
}

absl::Status StageSweep::BeginItem(size_t item,
                                   const Backend::LayerImage& image) {
  const auto [local, k] = order_[item];
  const int layer = options_.layers.begin + local;
  StageWork& work = work_[k];
  const TraceArgs args = {{{"layer", layer}, {"micro_batch", k}}};
  if (device_attention_ != nullptr) {
    work.view.attention_slot = device_attention_->Slot(item);
  }
  {
    const Timed timed(&parts_.stats->projection_seconds, row_, "qkv", args);
    SLUICE_RETURN_IF_ERROR(
        backend_->ProjectQkv(layer, image, work.view, work.rows));
  }
  if (device_attention_ == nullptr) return absl::OkStatus();
  return device_attention_->Begin(item);
}

absl::Status StageSweep::FinishItem(size_t item,
                                    const Backend::LayerImage& image) {
  const auto [local, k] = order_[item];
  const int layer = options_.layers.begin + local;
  StageWork& work = work_[k];
  const TraceArgs args = {{{"layer", layer}, {"micro_batch", k}}};
  SLUICE_RETURN_IF_ERROR(device_attention_ != nullptr
                             ? device_attention_->Finish(item)
                             : AttendItem(item));
  if (parts_.activation_stager != nullptr) {
    parts_.activation_stager->ReadAhead();
  }
  {
    const Timed timed(&parts_.stats->projection_seconds, row_, "out and mlp",
                      args);
    SLUICE_RETURN_IF_ERROR(
        backend_->ProjectOut(layer, image, work.view, work.rows));
    SLUICE_RETURN_IF_ERROR(backend_->Mlp(layer, image, work.view, work.rows));
  }
  AddMark(options_.marks);
  if (device_x_ == nullptr) return absl::OkStatus();
  // It stays where it is if its next layer is next.
  const bool stays = item + 1 < order_.size() && order_[item + 1].second == k;
  return stays ? absl::OkStatus() : device_x_->Release(k);
}

absl::Status StageSweep::AttendItem(size_t item) {
  const auto [local, k] = order_[item];
  const int layer = options_.layers.begin + local;
  StageWork& work = work_[k];
  const TraceArgs args = {{{"layer", layer}, {"micro_batch", k}}};
  if (parts_.stager != nullptr) {
    parts_.stager->ReadAhead();
  }
  // Those in memory first: meanwhile the others come.
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    for (const SegmentRun& run : work.runs) {
      if (run.tier != tier) continue;
      const bool staged = tier == Tier::kDisk;
      if (staged) {
        const KvStager::Group* group = nullptr;
        SLUICE_RETURN_IF_ERROR(parts_.stager->Take(work.segments, &group));
      } else {
        for (int32_t s = run.first; s < run.first + run.count; ++s) {
          work.segments[s].kv = parts_.kv->LayerBase(local);
        }
      }
      {
        const Timed timed(&parts_.stats->attention_seconds, row_, "attention",
                          args);
        SLUICE_RETURN_IF_ERROR(
            backend_->Attend(layer, work.view, run.first, run.count));
      }
      if (staged) {
        parts_.stager->Put();
        parts_.stager->ReadAhead();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StageSweep::RunHead(const StepPlan& plan) {
  for (size_t k = 0; k < plan.micro_batches.size(); ++k) {
    if (device_x_ != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(work_[k].rows, device_x_->Acquire(k));
      if (options_.policy.overlap && k + 1 < plan.micro_batches.size()) {
        device_x_->Prefetch(k + 1);
      }
    } else if (parts_.activation_stager != nullptr) {
      SLUICE_ASSIGN_OR_RETURN(work_[k].rows, parts_.activation_stager->Take(
                                                 static_cast<int32_t>(k)));
      parts_.activation_stager->ReadAhead();
    }
    SLUICE_RETURN_IF_ERROR(
        head_->Add(plan.micro_batches[k], work_[k].segments, work_[k].rows));
    work_[k].x.reset();
    if (device_x_ != nullptr) SLUICE_RETURN_IF_ERROR(device_x_->Drop(k));
  }
  SLUICE_RETURN_IF_ERROR(head_->Finish());
  if (device_weights_ == nullptr) parts_.weights->ReadAhead(1);
  return absl::OkStatus();
}

}  // namespace sluice
