#include "runtime/exec/stage_executor.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/exec/plan_check.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/kernels/backend.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/model/tensor_names.h"
#include "runtime/sample/distribution.h"
#include "runtime/sample/sampler.h"

namespace sluice {
namespace {

// The sweep over one backend.
class Stage : public StageExecutor {
 public:
  Stage(const DecoderSpec& spec, const Options& options,
        std::unique_ptr<Backend> backend, MemoryCharge activations,
        int64_t kv_pages, uint64_t weight_bytes, int threads)
      : options_(options),
        first_(options.layers.begin == 0),
        last_(options.layers.end == spec.num_layers),
        limits_{.max_step_tokens = options.policy.max_step_tokens,
                .max_model_len = options.max_model_len,
                .max_sequences = options.max_sequences,
                .vocab_size = spec.vocab_size,
                .hidden_size = spec.hidden_size,
                .first = first_},
        weight_bytes_(weight_bytes),
        activations_(std::move(activations)),
        backend_(std::move(backend)),
        tables_(kv_pages),
        scratch_(threads) {}

  int64_t kv_pages() const override { return tables_.pool().num_pages(); }
  int64_t kv_pages_used() const override { return tables_.pool().num_used(); }
  int32_t page_tokens() const override { return kPageTokens; }
  uint64_t weight_bytes() const override { return weight_bytes_; }
  bool is_first() const override { return first_; }
  bool is_last() const override { return last_; }

  absl::Status RunStep(const StepPlan& plan,
                       std::span<std::shared_ptr<ActivationBuffer>> hidden,
                       const Emit& emit, StepResult* result) override;

  void Reset() override {
    tables_.Clear();
    samplers_.clear();
  }

 private:
  // A micro-batch of the step at hand.
  struct Work {
    std::vector<SegmentView> segments;
    BatchView view;
    std::shared_ptr<ActivationBuffer> x;
  };

  // A row whose logits are wanted.
  struct HeadRow {
    SequenceId sequence;
    int32_t position;  // that its logits predict
    const Sampler* sampler;
    int32_t target;  // the token to be scored; -1: sample
    size_t slot;     // of the result's scores or tokens
  };

  absl::Status ReleaseAndAdmit(const StepPlan& plan);
  void View(const MicroBatch& batch, Work* work);
  // Logits of the rows that the micro-batch's segments want sampled or scored.
  absl::Status SampleBatch(const MicroBatch& batch, const Work& work,
                           StepResult* result);

  const Options options_;
  const bool first_;
  const bool last_;
  const PlanLimits limits_;
  const uint64_t weight_bytes_;
  MemoryCharge activations_;
  std::unique_ptr<Backend> backend_;
  PageTables tables_;
  ActivationPool buffers_;

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sampler>> samplers_;
  std::vector<SamplerScratch> scratch_;  // per thread
  std::vector<Work> work_;
  std::vector<HeadRow> head_rows_;
  std::vector<int32_t> head_row_of_x_;  // parallel
};

absl::Status Stage::ReleaseAndAdmit(const StepPlan& plan) {
  for (const SequenceId id : plan.release) {
    SLUICE_RETURN_IF_ERROR(Annotate(tables_.Release(id), "release"));
    samplers_.erase(id);
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
    if (last_) {
      samplers_[admission.sequence] = std::make_unique<Sampler>(
          admission.sampling, admission.prompt_tokens);
    }
  }
  return absl::OkStatus();
}

void Stage::View(const MicroBatch& batch, Work* work) {
  work->segments.clear();
  int32_t row = 0;
  for (const Segment& segment : batch.segments) {
    work->segments.push_back({.row = row,
                              .start = segment.start,
                              .num_tokens = segment.num_tokens,
                              .pages = tables_.Find(segment.sequence)->pages});
    row += segment.num_tokens;
  }
  work->view = {
      .rows = row, .tokens = batch.tokens, .segments = work->segments};
}

absl::Status Stage::RunStep(const StepPlan& plan,
                            std::span<std::shared_ptr<ActivationBuffer>> hidden,
                            const Emit& emit, StepResult* result) {
  SLUICE_RETURN_IF_ERROR(ReleaseAndAdmit(plan));
  SLUICE_RETURN_IF_ERROR(CheckHidden(plan, hidden, limits_));
  const size_t num_batches = plan.micro_batches.size();
  if (work_.size() < num_batches) work_.resize(num_batches);
  for (size_t k = 0; k < num_batches; ++k) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(CheckMicroBatch(plan.micro_batches[k], limits_, &tables_),
                 absl::StrCat("micro-batch ", k)));
    View(plan.micro_batches[k], &work_[k]);
  }
  if (last_) {
    result->epoch = plan.epoch;
    result->block = plan.block;
    result->step = plan.step;
    result->tokens.clear();
    result->scores.clear();
  }

  // The zig-zag: all micro-batches share each layer's weights.
  const LayerRange layers = options_.layers;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (size_t k = 0; k < num_batches; ++k) {
      Work& work = work_[k];
      if (layer == layers.begin) {
        if (first_) {
          work.x = buffers_.Acquire(work.view.rows, limits_.hidden_size);
          SLUICE_RETURN_IF_ERROR(backend_->Embed(work.view, work.x->data()));
        } else {
          work.x = std::move(hidden[k]);
        }
      }
      float* x = work.x->data();
      SLUICE_RETURN_IF_ERROR(backend_->Attention(layer, work.view, x));
      SLUICE_RETURN_IF_ERROR(backend_->Mlp(layer, work.view, x));
      if (layer + 1 < layers.end) continue;
      if (last_) {
        SLUICE_RETURN_IF_ERROR(
            SampleBatch(plan.micro_batches[k], work, result));
        work.x.reset();
      } else {
        SLUICE_RETURN_IF_ERROR(
            emit(static_cast<int32_t>(k), std::move(work.x)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Stage::SampleBatch(const MicroBatch& batch, const Work& work,
                                StepResult* result) {
  head_rows_.clear();
  head_row_of_x_.clear();
  size_t samples = result->tokens.size();
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int32_t row = work.segments[s].row;
    const auto tokens =
        std::span<const int32_t>(batch.tokens).subspan(row, segment.num_tokens);
    Sampler* sampler = samplers_[segment.sequence].get();
    sampler->Observe(segment.start, tokens);
    if (segment.score_begin < segment.score_end) {
      TokenScores& scores = result->scores.emplace_back();
      const size_t count = segment.score_end - segment.score_begin;
      scores.sequence = segment.sequence;
      scores.begin = segment.score_begin;
      scores.logprobs.resize(count);
      scores.num_top = sampler->num_top();
      scores.top.resize(count * scores.num_top);
    }
    for (int32_t p = segment.score_begin; p < segment.score_end; ++p) {
      const int32_t i = p - segment.start;
      head_rows_.push_back(
          {segment.sequence, p, sampler,
           i < segment.num_tokens ? tokens[i] : segment.next_token,
           result->scores.size() - 1});
      head_row_of_x_.push_back(row + i - 1);
    }
    if (!segment.sample) continue;
    head_rows_.push_back({segment.sequence, segment.start + segment.num_tokens,
                          sampler, -1, samples++});
    head_row_of_x_.push_back(row + segment.num_tokens - 1);
  }
  result->tokens.resize(samples);
  const size_t vocab = limits_.vocab_size;
  return backend_->Head(
      head_row_of_x_, work.x->data(),
      [&](int32_t first, std::span<float> logits) {
        const int rows = static_cast<int>(logits.size() / vocab);
        if (options_.logits_observer) {
          for (int i = 0; i < rows; ++i) {
            const HeadRow& row = head_rows_[first + i];
            options_.logits_observer(row.sequence, row.position - 1,
                                     logits.subspan(i * vocab, vocab));
          }
        }
        backend_->ParallelFor(rows, [&](int i, int thread) {
          const HeadRow& row = head_rows_[first + i];
          const std::span<float> own = logits.subspan(i * vocab, vocab);
          if (row.target >= 0) {
            TokenScores& scores = result->scores[row.slot];
            const size_t at = row.position - scores.begin;
            scores.logprobs[at] =
                ScoreToken(own, row.target,
                           std::span<TokenLogprob>(scores.top)
                               .subspan(at * scores.num_top, scores.num_top),
                           scratch_[thread]);
            return;
          }
          SampledToken& token = result->tokens[row.slot];
          token = row.sampler->Sample(own, row.position, scratch_[thread]);
          token.sequence = row.sequence;
        });
        return absl::OkStatus();
      });
}

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

// Pages for all sequences, or as many as the budget has room for.
absl::StatusOr<int64_t> ReserveKv(const StageExecutor::Options& options,
                                  Backend* backend) {
  const int64_t per_sequence =
      (int64_t{options.max_model_len} + kPageTokens - 1) / kPageTokens;
  const int64_t wanted = per_sequence * options.max_sequences;
  // A page for what an arena takes besides its pages.
  const int64_t room = static_cast<int64_t>(options.host_budget->free_bytes() /
                                            backend->KvPageBytes()) -
                       1;
  const int64_t pages = std::max(std::min(wanted, room), per_sequence);
  SLUICE_RETURN_IF_ERROR(
      Annotate(backend->ReserveKv(pages),
               absl::StrCat("no room for the KV cache of even one sequence of ",
                            options.max_model_len, " positions")));
  return pages;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageExecutor>> LoadStage(
    const DecoderSpec& spec, const TensorSource& source,
    const StageExecutor::Options& options,
    const StageExecutor::Progress& progress,
    const std::atomic<bool>* cancelled) {
  SLUICE_RETURN_IF_ERROR(options.Validate(spec));
  SLUICE_RETURN_IF_ERROR(CheckTensors(spec, source, options.layers));
  const int threads = options.policy.compute_threads > 0
                          ? options.policy.compute_threads
                          : options.compute_threads;
  MemoryBudget* budget = options.host_budget;
  SLUICE_ASSIGN_OR_RETURN(
      MemoryCharge activations,
      budget->Charge("activations",
                     uint64_t{sizeof(float)} * options.policy.num_microbatches *
                         options.policy.max_step_tokens * spec.hidden_size));
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<Backend> backend,
      Backend::Create(BackendKind::kCpu, spec,
                      {.layers = options.layers,
                       .dtype = options.policy.dtype,
                       .max_rows = options.policy.max_step_tokens,
                       .max_model_len = options.max_model_len,
                       .threads = threads,
                       .host_budget = budget}));

  const bool first = options.layers.begin == 0;
  const bool last = options.layers.end == spec.num_layers;
  SLUICE_ASSIGN_OR_RETURN(uint64_t total, backend->LayerBytes());
  total *= options.layers.size();
  if (first) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, backend->EmbeddingBytes());
    total += bytes;
  }
  if (last) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t bytes, backend->HeadBytes());
    total += bytes;
  }
  {
    // Fails before anything is read, rather than after most of it.
    SLUICE_ASSIGN_OR_RETURN(MemoryCharge all, budget->Charge("weights", total));
  }

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
  if (first) {
    SLUICE_RETURN_IF_ERROR(backend->LoadEmbedding(source, report));
  }
  for (int layer = options.layers.begin; layer < options.layers.end; ++layer) {
    SLUICE_RETURN_IF_ERROR(backend->LoadLayer(layer, source, report));
  }
  if (last) SLUICE_RETURN_IF_ERROR(backend->LoadHead(source, report));

  SLUICE_ASSIGN_OR_RETURN(const int64_t pages,
                          ReserveKv(options, backend.get()));
  return std::make_unique<Stage>(spec, options, std::move(backend),
                                 std::move(activations), pages, total, threads);
}

}  // namespace sluice
