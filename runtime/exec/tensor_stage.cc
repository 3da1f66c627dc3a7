#include "runtime/exec/tensor_stage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/collective/shared_collective.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/placement/rank_limits.h"
#include "runtime/placement/stage_placement.h"

namespace sluice {
namespace {

constexpr absl::Duration kTellInterval = absl::Milliseconds(50);

// Reads a source's content once at a time: the ranks all want it, and those
// who come later find it in the cache that the first has written.
class ContentOnce : public TensorSource {
 public:
  explicit ContentOnce(const TensorSource& source) : source_(source) {}
  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override {
    return source_.ReadRows(ref, row_begin, row_end, out);
  }
  absl::Status ReadCodes(const TensorRef& ref, const CodeFormat& format,
                         int64_t row_begin, int64_t row_end,
                         std::byte* out) const override {
    return source_.ReadCodes(ref, format, row_begin, row_end, out);
  }
  absl::Status Check(const TensorRef& ref) const override {
    return source_.Check(ref);
  }
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override {
    MutexLock lock(&mu_);
    return source_.ContentId(cache_file, progress);
  }

 private:
  const TensorSource& source_;
  mutable Mutex mu_;
};

}  // namespace

struct TensorStage::Rank {
  TensorRank tensor;
  StageOptions options;
  std::unique_ptr<MemoryBudget> host_budget, disk_budget;
  std::unique_ptr<StageExecutor> executor;
  StepResult result;  // of a rank that does not lead; nobody reads it
  // Of loading.
  std::atomic<uint64_t> bytes_done{0}, bytes_total{0};
  Thread thread;
};

TensorStage::TensorStage(const StageOptions& options) {
  const auto count = static_cast<int32_t>(options.ranks.size());
  for (int32_t i = 0; i < count; ++i) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    rank.tensor = {i, count};
    rank.options = options;
    const RankResources& own = options.ranks[i];
    rank.options.ranks.clear();
    rank.options.device = own.device;
    rank.options.device_budget = own.device_budget;
    rank.options.compute_threads = own.compute_threads;
    rank.options.cores = own.cores;
  }
}

TensorStage::~TensorStage() {
  // An executor ends where it lived.
  RunOnRanks([](Rank* rank) {
    rank->executor.reset();
    return absl::OkStatus();
  }).IgnoreError();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (const auto& rank : ranks_) rank->thread.Join();
}

void TensorStage::Share(const DecoderSpec& spec, const StageOptions& options) {
  const auto count = static_cast<int32_t>(ranks_.size());
  std::vector<StageSizes> sizes;
  std::vector<uint64_t> device_bytes;
  for (const auto& rank : ranks_) {
    if (options.policy.compute_threads > 0) {
      const int32_t threads =
          std::max(1, options.policy.compute_threads / count);
      rank->options.policy.compute_threads = threads;
      if (rank->options.cores.size() != static_cast<size_t>(threads)) {
        rank->options.cores.clear();
      }
    }
    sizes.emplace_back(rank->options.ShapeOf(spec, rank->tensor));
    const MemoryBudget* const device = rank->options.device_budget;
    device_bytes.push_back(device == nullptr ? 0 : device->free_bytes());
  }
  std::vector<const StageSizes*> ranks;
  for (const StageSizes& of_rank : sizes) ranks.push_back(&of_rank);
  const std::vector<TierLimits> parts = DivideLimits(
      ranks, device_bytes, options.policy,
      {0, options.host_budget->free_bytes(),
       options.disk_budget == nullptr ? 0 : options.disk_budget->free_bytes()});
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = *ranks_[i];
    rank.host_budget = std::make_unique<MemoryBudget>(
        options.host_budget, parts[i][static_cast<size_t>(Tier::kHost)]);
    rank.options.host_budget = rank.host_budget.get();
    if (options.disk_budget == nullptr) continue;
    rank.disk_budget = std::make_unique<MemoryBudget>(
        options.disk_budget, parts[i][static_cast<size_t>(Tier::kDisk)]);
    rank.options.disk_budget = rank.disk_budget.get();
  }
}

absl::StatusOr<std::unique_ptr<StageExecutor>> TensorStage::Load(
    const DecoderSpec& spec, const TensorSource& source,
    const StageOptions& options, const Progress& progress,
    const std::atomic<bool>* cancelled) {
  std::unique_ptr<TensorStage> self(new TensorStage(options));
  for (const auto& rank : self->ranks_) {
    SLUICE_RETURN_IF_ERROR(rank->options.Validate(spec));
  }
  if (options.exchange == nullptr &&
      options.ranks[0].device.backend == BackendKind::kCuda) {
    return InvalidArgument(
        "ranks on GPUs have nothing to exchange by: there is no NCCL here");
  }
  self->Share(spec, options);
  const auto count = static_cast<int>(options.ranks.size());
  self->streams_ = std::make_unique<SharedGroup>(count);
  if (options.exchange != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(self->columns_, options.exchange());
  } else {
    self->columns_ = std::make_unique<SharedGroup>(count);
  }
  for (const auto& rank : self->ranks_) {
    rank->thread =
        Thread(absl::StrCat("rank-", rank->tensor.rank),
               [stage = self.get(), r = rank.get()] { stage->Loop(*r); });
  }

  const ContentOnce once(source);
  const absl::Status status = self->RunOnRanks(
      [&](Rank* rank) -> absl::Status {
        const auto report = [&](uint64_t done, uint64_t total) {
          rank->bytes_done.store(done, std::memory_order_relaxed);
          rank->bytes_total.store(total, std::memory_order_relaxed);
        };
        SLUICE_ASSIGN_OR_RETURN(
            rank->executor,
            LoadRank(spec, once, rank->options,
                     {.tensor = rank->tensor,
                      .columns = &self->columns_->rank(rank->tensor.rank),
                      .streams = &self->streams_->rank(rank->tensor.rank)},
                     report, &self->stop_loading_));
        return absl::OkStatus();
      },
      kTellInterval,
      [&] {
        if (cancelled != nullptr && cancelled->load()) {
          self->stop_loading_ = true;
        }
        uint64_t done = 0, total = 0;
        for (const auto& rank : self->ranks_) {
          done += rank->bytes_done.load(std::memory_order_relaxed);
          total += rank->bytes_total.load(std::memory_order_relaxed);
        }
        if (progress) progress(done, total);
      });
  SLUICE_RETURN_IF_ERROR(status);
  self->SumPlacements();
  return self;
}

void TensorStage::SumPlacements() {
  for (const auto& rank : ranks_) {
    placement_ += rank->executor->placement();
  }
}

absl::Status TensorStage::RunOnRanks(Task task, absl::Duration interval,
                                     absl::FunctionRef<void()> meanwhile) {
  mu_.Lock();
  // There are no threads yet where loading failed early.
  running_ = 0;
  for (const auto& rank : ranks_) running_ += rank->thread.joinable() ? 1 : 0;
  task_ = &task;
  ++task_number_;
  first_error_ = absl::OkStatus();
  changed_.NotifyAll();
  while (running_ > 0) {
    if (!changed_.WaitFor(&mu_, interval)) {
      mu_.Unlock();
      meanwhile();
      mu_.Lock();
    }
  }
  task_ = nullptr;
  const absl::Status status = first_error_;
  mu_.Unlock();
  meanwhile();
  return status;
}

void TensorStage::Loop(Rank& rank) {
  BindThisThread(rank.options.cores);
  int64_t done = 0;
  mu_.Lock();
  for (;;) {
    while (!stopping_ && task_number_ == done) changed_.Wait(&mu_);
    if (stopping_) break;
    done = task_number_;
    const Task& task = *task_;
    mu_.Unlock();
    const absl::Status status = Annotate(
        task(&rank),
        absl::StrCat("rank ", rank.tensor.rank, " of ", rank.tensor.ranks));
    if (!status.ok()) {
      MutexLock lock(&mu_);
      if (first_error_.ok()) first_error_ = status;
    }
    if (!status.ok()) {
      stop_loading_ = true;
      columns_->Abort(status);
      streams_->Abort(status);
    }
    mu_.Lock();
    if (--running_ == 0) changed_.NotifyAll();
  }
  mu_.Unlock();
}

StageExecutor& TensorStage::lead() const { return *ranks_[0]->executor; }

absl::Status TensorStage::RunStep(const StepPlan& plan, StepInputs* inputs,
                                  const Emit& emit, StepResult* result) {
  // The others' output is the same.
  const Emit drop = [](int32_t, std::shared_ptr<ActivationBuffer>) {
    return absl::OkStatus();
  };
  return RunOnRanks([&](Rank* rank) {
    return rank->tensor.leads()
               ? rank->executor->RunStep(plan, inputs, emit, result)
               : rank->executor->RunStep(plan, nullptr, drop, &rank->result);
  });
}

void TensorStage::Reset() {
  RunOnRanks([](Rank* rank) {
    rank->executor->Reset();
    return absl::OkStatus();
  }).IgnoreError();
  columns_->Reset();
  streams_->Reset();
}

int64_t TensorStage::kv_pages() const {
  int64_t pages = lead().kv_pages();
  for (const auto& rank : ranks_) {
    pages = std::min(pages, rank->executor->kv_pages());
  }
  return pages;
}

bool TensorStage::kv_by_need() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->executor->kv_by_need();
  });
}

bool TensorStage::kv_shared() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->executor->kv_shared();
  });
}

WindowRoom TensorStage::kv_window() const {
  WindowRoom room;
  for (const auto& rank : ranks_) room.Narrow(rank->executor->kv_window());
  return room;
}

uint64_t TensorStage::kv_host_used_bytes() const {
  uint64_t bytes = 0;
  for (const auto& rank : ranks_) bytes += rank->executor->kv_host_used_bytes();
  return bytes;
}

SweepStats TensorStage::stats() const {
  SweepStats all;
  for (const auto& rank : ranks_) AddParallel(rank->executor->stats(), &all);
  return all;
}

}  // namespace sluice
