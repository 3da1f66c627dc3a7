#include "worker/stage/stage_runner.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "common/device_loss.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "common/threads/bounded_queue.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/placement/buffer_sizes.h"
#include "sluice/v1/pipeline.pb.h"
#include "worker/stage/assigned_stage.h"
#include "worker/stage/span_log.h"
#include "worker/stage/stage_reporter.h"

namespace sluice {
namespace {

// The limit of plans that wait at the first stage. The dispatcher has one in
// flight per block, or per stage and one more, so more are its error.
constexpr size_t kMaxInbox = 4096;
constexpr double kProgressIntervalSeconds = 0.2;
constexpr absl::Duration kConnectRetry = absl::Milliseconds(100);

bool SameWeights(const AssignedStage& a, const AssignedStage& b) {
  return static_cast<const StageShare&>(a) == b &&
         // The links' staging memory is taken before weights take the rest.
         a.previous_link == b.previous_link && a.next_link == b.next_link;
}

}  // namespace

// One assignment while it is carried out.
struct StageRunner::Run {
  explicit Run(AssignedStage a)
      : assignment(std::move(a)), outbox(LinkFrames(assignment.policy)) {}

  // An arrived plan or frame that waits to be computed.
  struct Item {
    std::shared_ptr<const StepPlan> plan;
    std::optional<ArrivedFrame> frame;
  };

  const AssignedStage assignment;
  std::atomic<bool> stopped{false};
  std::atomic<bool> ready{false};
  BoundedQueue<ActivationFrame> outbox;

  // State for activity(). The compute thread sets `at` to what it is doing.
  std::atomic<v1::Activity::Kind> at{v1::Activity::KIND_LOADING};
  std::atomic<int64_t> frames_out{0};   // queued to be sent
  std::atomic<int64_t> frames_sent{0};  // taken by the link
  std::atomic<int64_t> last_step_out{0};

  Mutex mu;
  CondVar changed;
  std::deque<Item> inbox ABSL_GUARDED_BY(mu);
  bool closed ABSL_GUARDED_BY(mu) = false;
  std::shared_ptr<LinkSender> link ABSL_GUARDED_BY(mu);

  StepIntake intake;  // used by the compute thread only

  bool Put(Item item) {
    MutexLock lock(&mu);
    if (closed || inbox.size() >= kMaxInbox) return false;
    inbox.push_back(std::move(item));
    changed.NotifyAll();
    return true;
  }

  v1::Activity::Kind Activity() {
    const v1::Activity::Kind kind = at;
    const bool waits = kind == v1::Activity::KIND_WAITING;
    if (!waits && kind != v1::Activity::KIND_BLOCKED) return kind;
    MutexLock lock(&mu);
    // A waiting item is this stage's to compute, even before it is taken.
    if (waits && !inbox.empty()) return v1::Activity::KIND_COMPUTING;
    if (frames_sent >= frames_out) return kind;
    return link != nullptr && link->blocked() ? v1::Activity::KIND_BLOCKED
                                              : v1::Activity::KIND_COMPUTING;
  }

  bool Waits() {
    MutexLock lock(&mu);
    return inbox.empty() && !closed;
  }

  std::optional<Item> Take() {
    MutexLock lock(&mu);
    while (inbox.empty() && !closed) changed.Wait(&mu);
    if (closed) return std::nullopt;
    std::optional<Item> item(std::move(inbox.front()));
    inbox.pop_front();
    return item;
  }
};

// The inputs of the step at hand, taken from the inbox as its frames arrive.
class StageRunner::ArrivingInputs : public StepInputs {
 public:
  ArrivingInputs(StageRunner& runner, Run& run) : runner_(runner), run_(run) {}
  bool ready(int32_t micro_batch) override {
    return run_.intake.arrived() > micro_batch || !run_.Waits();
  }
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> Take(
      int32_t micro_batch) override;

 private:
  StageRunner& runner_;
  Run& run_;
};

StageRunner::StageRunner(Options options)
    : options_(std::move(options)),
      receiver_(LinkService::Create(this, options_.transports,
                                    options_.metrics->link_bytes_received,
                                    options_.guard)),
      meter_(options_.clock),
      spans_(std::make_unique<SpanLog>(options_.clock)),
      compute_("compute", [this] { ComputeLoop(); }) {}

StageRunner::~StageRunner() { Shutdown(); }

StageRunner::RunPtr StageRunner::current() const {
  MutexLock lock(&mu_);
  return run_;
}

bool StageRunner::ready() const {
  const RunPtr run = current();
  return run != nullptr && run->ready;
}

void StageRunner::Replace(RunPtr next, bool drop_weights) {
  RunPtr old;
  {
    MutexLock lock(&mu_);
    old = std::exchange(run_, std::move(next));
    drop_weights_ = drop_weights_ || drop_weights;
    changed_.NotifyAll();
  }
  if (old != nullptr) Stop(*old);
}

void StageRunner::Stop(Run& run) {
  std::deque<Run::Item> dropped;
  run.outbox.Close();
  MutexLock lock(&run.mu);
  run.closed = true;
  run.stopped = true;
  run.ready = false;
  dropped.swap(run.inbox);
  // Close only wakes and never waits. The lock is held, so that the compute
  // thread destroys the link, which does wait, and none of gRPC's.
  if (run.link != nullptr) run.link->Close();
  run.changed.NotifyAll();
}

void StageRunner::Fail(Run& run, const absl::Status& status) {
  const AssignedStage& a = run.assignment;
  const absl::Status named = Annotate(status, a.Name());
  {
    MutexLock lock(&run.mu);
    if (run.closed) return;
    run.closed = true;
    // The lock is held, as for Accept: a stopped run must not change the
    // receiver's epochs, which Detach then forgets.
    receiver_->End(a.epoch, named);
  }
  Log(options_.failure_level,
      absl::StrCat("epoch=", a.epoch.value(),
                   " stage failed: ", absl::StatusCodeToString(named.code()),
                   ": ", named.message()));
  a.reporter->Failed(a.epoch, named);
  Stop(run);
}

void StageRunner::Assign(AssignedStage assignment) {
  const RunPtr old = current();
  const bool prepared = old != nullptr && old->assignment.prepare &&
                        !assignment.prepare &&
                        assignment.epoch == old->assignment.epoch;
  if (old != nullptr && !prepared &&
      assignment.epoch <= old->assignment.epoch) {
    assignment.reporter->Failed(
        assignment.epoch,
        FailedPrecondition("stale assignment: this worker is at epoch ",
                           old->assignment.epoch.value()));
    return;
  }
  receiver_->Advance(assignment.epoch);
  Replace(std::make_shared<Run>(std::move(assignment)), false);
}

void StageRunner::Retire() {
  if (const RunPtr old = current()) {
    receiver_->Advance(PlanEpoch(old->assignment.epoch.value() + 1));
  }
  Replace(nullptr, true);
}

void StageRunner::Detach() {
  Replace(nullptr, false);
  receiver_->Forget(
      absl::UnavailableError("the worker has left its coordinator"));
}

void StageRunner::OnPlan(StepPlan plan) {
  const RunPtr run = current();
  if (run == nullptr || plan.epoch < run->assignment.epoch) {
    LogWarning("dropped a plan of stale epoch ", plan.epoch.value());
    return;
  }
  const AssignedStage& a = run->assignment;
  if (plan.epoch != a.epoch || !a.is_first() || a.prepare) {
    Fail(*run,
         FailedPrecondition("got a plan of epoch ", plan.epoch.value(),
                            " but this stage is at epoch ", a.epoch.value(),
                            a.is_first() ? "" : " and is not the first",
                            a.prepare ? " and only being prepared" : ""));
    return;
  }
  Run::Item item;
  item.plan = std::make_shared<const StepPlan>(std::move(plan));
  if (!run->Put(std::move(item))) {
    Fail(*run, ResourceExhausted("more than ", kMaxInbox, " plans wait"));
  }
}

void StageRunner::OnBadPlan(PlanEpoch epoch, const absl::Status& status) {
  const RunPtr run = current();
  if (run == nullptr || run->assignment.epoch != epoch) return;
  Fail(*run, status);
}

void StageRunner::OnLinkId(PlanEpoch epoch, const std::string& id) {
  const RunPtr run = current();
  if (run == nullptr || run->assignment.epoch != epoch) {
    LogWarning("dropped a link's id of stale epoch ", epoch.value());
    return;
  }
  // The run's lock is not held: a link that can't be joined ends the run.
  receiver_->Join(epoch, id, MaxPayloadBytes(run->assignment));
}

absl::Status StageRunner::OnFrame(ActivationFrame frame,
                                  std::function<void()> on_consumed) {
  OnceOnExit consumed(std::move(on_consumed));
  const RunPtr run = current();
  if (run == nullptr || frame.epoch != run->assignment.epoch ||
      run->assignment.is_first()) {
    return FailedPrecondition("no stage of epoch ", frame.epoch.value(),
                              " takes activations here");
  }
  Run::Item item;
  item.frame = ArrivedFrame{std::move(frame), std::move(consumed)};
  if (!run->Put(std::move(item))) {
    return FailedPrecondition("epoch ", run->assignment.epoch.value(),
                              " is over here");
  }
  return absl::OkStatus();
}

void StageRunner::OnLinkBroken(PlanEpoch epoch, const absl::Status& status) {
  const RunPtr run = current();
  if (run == nullptr || run->assignment.epoch != epoch) return;
  Fail(*run, Annotate(status, "link from the stage before"));
}

void StageRunner::Shutdown() {
  {
    MutexLock lock(&mu_);
    shutdown_ = true;
    changed_.NotifyAll();
  }
  Detach();
  compute_.Join();
}

absl::StatusOr<StageResources> StageRunner::ResourcesOf(
    const AssignedStage& a) const {
  StageResources resources = options_.resources;
  if (options_.with_ranks != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(resources, options_.with_ranks(a.policy.ranks));
  }
  if (const int32_t threads = a.policy.compute_threads; threads > 0) {
    resources.compute_threads = threads;
  }
  if (resources.cores.size() !=
      static_cast<size_t>(resources.compute_threads)) {
    resources.cores.clear();
  }
  return resources;
}

v1::Activity StageRunner::activity() const {
  v1::Activity activity;
  if (const RunPtr run = current()) {
    activity.set_kind(run->Activity());
    activity.set_epoch(run->assignment.epoch.value());
    activity.set_last_step_out(run->last_step_out);
  }
  activity.set_marks(marks_.count());
  return activity;
}

RuntimeReport StageRunner::report() const {
  MutexLock lock(&mu_);
  return report_;
}

void StageRunner::PublishReport() {
  const StageResources& has = options_.resources;
  RuntimeReport report;
  report.stats = earlier_stats_;
  if (executor_ != nullptr) {
    report.stats += executor_->stats();
    report.placement = executor_->placement();
    kv_host_peak_bytes_ =
        std::max(kv_host_peak_bytes_, executor_->kv_host_used_bytes());
  }
  report.kv_host_peak_bytes = kv_host_peak_bytes_;
  if (has.device_budget != nullptr) {
    report.device_peak_bytes = has.device_budget->peak_bytes();
  }
  for (const MemoryBudget* budget : options_.other_device_budgets) {
    report.device_peak_bytes += budget->peak_bytes();
  }
  report.host_peak_bytes = has.host_budget->peak_bytes();
  if (has.disk_budget != nullptr) {
    report.disk_peak_bytes = has.disk_budget->peak_bytes();
    const auto held = has.disk_budget->holders();
    if (const auto images = held.find(kPackedFilesCharge);
        images != held.end()) {
      report.disk_image_bytes = images->second;
    }
  }
  RuntimeReport before;
  {
    MutexLock lock(&mu_);
    before = std::exchange(report_, report);
  }
  options_.metrics->CountRuntime(report, report.stats - before.stats);
  options_.metrics->SetBudgets(has.device_budget, has.host_budget,
                               has.disk_budget);
}

void StageRunner::ComputeLoop() {
  RunPtr run;
  for (;;) {
    bool drop_weights = false;
    {
      MutexLock lock(&mu_);
      while (!shutdown_ && run_ == run && !drop_weights_) changed_.Wait(&mu_);
      if (shutdown_) break;
      run = run_;
      drop_weights = std::exchange(drop_weights_, false);
    }
    if (drop_weights) DropExecutor();
    if (run != nullptr) Play(*run);
  }
  DropExecutor();
}

void StageRunner::DropExecutor() {
  if (executor_ != nullptr) earlier_stats_ += executor_->stats();
  executor_.reset();
  PublishReport();
  link_staging_.Release();
  options_.metrics->weight_bytes->Set(0);
}

void StageRunner::Play(Run& run) {
  const AssignedStage& a = run.assignment;
  const WorkerMetrics::StageSeconds seconds =
      options_.metrics->ForStage(a.stage);
  meter_.SetCounters(seconds.busy, seconds.waiting, seconds.idle);
  const absl::StatusOr<StageResources> resources = ResourcesOf(a);
  const std::vector<int> cores =
      resources.ok() ? resources->cores : std::vector<int>();
  Thread sender;
  absl::Status status = Prepare(run);
  if (status.ok()) {
    if (!a.is_last() && !a.prepare) {
      sender = Thread("sender", [&] { SendLoop(run); });
    }
    {
      MutexLock lock(&run.mu);
      run.ready = !run.closed;
    }
    a.reporter->Ready(a.epoch, *executor_);
    const uint64_t kv_host = executor_->placement().kv_host_bytes;
    LogInfo(LogEpoch(a.epoch.value()), " ", a.Name(),
            a.prepare ? " is prepared: " : " is ready: ",
            executor_->weight_bytes() >> 20,
            " MiB of weights; KV cache for up to ",
            executor_->kv_pages() * executor_->page_tokens(), " tokens",
            kv_host > 0 ? absl::StrCat(", ", kv_host >> 20,
                                       " MiB of memory, which is taken as "
                                       "sequences need it")
                        : "");
    // The thread is bound only now: threads that it starts share its core.
    if (!cores.empty()) BindThisThread({cores.data(), 1});
  }
  while (status.ok()) {
    if (run.Waits()) {
      meter_.Switch(executor_->kv_pages_used() > 0 ? UsageMeter::State::kWaiting
                                                   : UsageMeter::State::kIdle);
    }
    run.at = v1::Activity::KIND_WAITING;
    std::optional<Run::Item> item = run.Take();
    if (!item.has_value()) break;
    run.at = v1::Activity::KIND_COMPUTING;
    marks_.Add();
    status = item->plan != nullptr ? run.intake.Begin(std::move(item->plan))
                                   : run.intake.Add(*std::move(item->frame));
    if (status.ok()) status = Compute(run);
    run.intake.End();
  }
  BindThisThread(cores);
  if (!status.ok()) Fail(run, status);
  sender.Join();
  std::shared_ptr<LinkSender> link;
  {
    MutexLock lock(&run.mu);
    link = std::move(run.link);
  }
  link.reset();
  // The next load replaces damaged data.
  if (absl::IsDataLoss(status) || IsDeviceLoss(status)) DropExecutor();
  if (executor_ != nullptr) executor_->Reset();
  PublishKvUsage();
  meter_.Switch(UsageMeter::State::kIdle);
  if (IsDeviceLoss(status) && options_.on_device_loss) {
    options_.on_device_loss(Annotate(status, a.Name()));
  }
}

absl::Status StageRunner::Prepare(Run& run) {
  const AssignedStage& a = run.assignment;
  meter_.Switch(UsageMeter::State::kIdle);
  for (const LinkTransport link : {a.previous_link, a.next_link}) {
    if (options_.transports.Has(link)) continue;
    return FailedPrecondition("its activations are to travel by ",
                              LinkTransportName(link),
                              ", which this worker has not");
  }
  // Weights outlive the stream that told the coordinator the files' content, so
  // it is compared again.
  if (executor_ == nullptr || !SameWeights(a, *loaded_) ||
      Content(a) != loaded_content_) {
    SLUICE_RETURN_IF_ERROR(LoadExecutor(run));
  }
  if (a.prepare) return absl::OkStatus();
  if (!a.is_last()) SLUICE_RETURN_IF_ERROR(ConnectNext(run));
  if (!a.is_first()) {
    LinkTerms terms;
    terms.max_rows = a.policy.max_step_tokens;
    terms.cols = HiddenSize(a);
    terms.max_micro_batches = a.policy.num_microbatches;
    terms.credits = LinkFrames(a.policy);
    terms.transport = a.previous_link;
    terms.dtype = a.policy.link_dtype;
    MutexLock lock(&run.mu);
    if (run.closed) return absl::CancelledError("the epoch is over");
    receiver_->ReceiveInto(executor_->input_buffers());
    receiver_->Accept(a.epoch, terms);
  }
  return absl::OkStatus();
}

int64_t StageRunner::HiddenSize(const AssignedStage& a) const {
  return a.model != nullptr ? a.model->spec.hidden_size : options_.hidden_size;
}

ModelContent StageRunner::Content(const AssignedStage& a) const {
  if (a.model != nullptr) return a.model->content;
  return options_.content ? options_.content() : ModelContent();
}

absl::Status StageRunner::LoadExecutor(Run& run) {
  const AssignedStage& a = run.assignment;
  DropExecutor();  // the new one may need its memory
  if (options_.transports.nccl != nullptr &&
      options_.resources.device_budget != nullptr) {
    const uint64_t sides = (a.previous_link == LinkTransport::kNccl ? 1 : 0) +
                           (a.next_link == LinkTransport::kNccl ? 1 : 0);
    SLUICE_ASSIGN_OR_RETURN(
        link_staging_,
        options_.resources.device_budget->Charge(
            "link staging", sides * options_.transports.nccl->StagingBytes(
                                        MaxPayloadBytes(a))));
  }
  StageOptions options;
  static_cast<StageShare&>(options) = a;
  SLUICE_ASSIGN_OR_RETURN(static_cast<StageResources&>(options),
                          ResourcesOf(a));
  options.marks = &marks_;
  LogInfo(LogEpoch(a.epoch.value()), " loading ", a.Name());
  absl::Duration reported = -absl::InfiniteDuration();
  const auto report = [&](uint64_t done, uint64_t total, bool fetching) {
    if (!fetching) marks_.Add();  // what is fetched adds its own
    const absl::Duration now = options_.clock->Monotonic();
    if (done < total &&
        now - reported < absl::Seconds(kProgressIntervalSeconds)) {
      return;
    }
    reported = now;
    a.reporter->Progress(a.epoch, done, total, fetching);
  };
  const StageExecutor::Progress progress = [&](uint64_t done, uint64_t total) {
    report(done, total, false);
  };
  ModelContent content = Content(a);
  v1::Span span =
      spans_->Begin(v1::Span::KIND_LOAD, a.stage, {.epoch = a.epoch});
  absl::StatusOr<std::unique_ptr<StageExecutor>> loaded =
      a.model == nullptr ? options_.loader(options, progress, &run.stopped)
                         : options_.model_loader(
                               *a.model, options,
                               [&](uint64_t done, uint64_t total) {
                                 report(done, total, true);
                               },
                               progress, &run.stopped);
  spans_->End(std::move(span));
  if (loaded.ok() && Content(a) != content) {
    loaded = absl::UnavailableError("the model's files were changed meanwhile");
  }
  if (!loaded.ok()) {
    link_staging_.Release();
    return Annotate(loaded.status(), "can't load");
  }
  executor_ = *std::move(loaded);
  auto loaded_for = std::make_shared<AssignedStage>(a);
  loaded_for->reporter = nullptr;
  loaded_ = std::move(loaded_for);
  loaded_content_ = std::move(content);
  options_.metrics->weight_bytes->Set(
      static_cast<double>(executor_->weight_bytes()));
  PublishReport();
  return absl::OkStatus();
}

size_t StageRunner::MaxPayloadBytes(const AssignedStage& a) const {
  return sizeof(float) * static_cast<size_t>(a.policy.max_step_tokens) *
         static_cast<size_t>(HiddenSize(a));
}

absl::Status StageRunner::ConnectNext(Run& run) {
  const AssignedStage& a = run.assignment;
  LinkOptions link_options;
  // The link is destroyed before the run.
  link_options.on_broken = [this, &run](const absl::Status& status) {
    Fail(run, status);
  };
  link_options.dtype = a.policy.link_dtype;
  link_options.tcp = a.next_link == LinkTransport::kTcp;
  if (a.next_link == LinkTransport::kNccl) {
    link_options.payloads.transport = options_.transports.nccl;
    link_options.payloads.max_bytes = MaxPayloadBytes(a);
    link_options.payloads.hand_out = [&a](const std::string& id) {
      a.reporter->LinkId(a.epoch, id);
    };
  }
  run.at = v1::Activity::KIND_CONNECTING;
  const absl::Duration deadline =
      options_.clock->Monotonic() + options_.connect_timeout;
  for (;;) {
    marks_.Add();
    absl::StatusOr<std::unique_ptr<LinkSender>> link =
        options_.links->Connect(a.next_address, a.epoch, link_options);
    if (link.ok()) {
      std::shared_ptr<LinkSender> shared = *std::move(link);
      MutexLock lock(&run.mu);
      if (run.closed) return absl::CancelledError("the epoch is over");
      run.link = std::move(shared);
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(link.status()) ||
        options_.clock->Monotonic() >= deadline) {
      const absl::Status why =
          Annotate(link.status(), "can't reach the next stage");
      return absl::IsUnavailable(why) ? NextUnreached(why) : why;
    }
    MutexLock lock(&run.mu);
    if (!run.closed) run.changed.WaitFor(&run.mu, kConnectRetry);
    if (run.closed) return absl::CancelledError("the epoch is over");
  }
}

absl::StatusOr<std::shared_ptr<ActivationBuffer>>
StageRunner::ArrivingInputs::Take(int32_t micro_batch) {
  while (run_.intake.arrived() <= micro_batch) {
    const bool waits = run_.Waits();
    v1::Span span;
    if (waits) {
      runner_.meter_.Switch(UsageMeter::State::kWaiting);
      run_.at = v1::Activity::KIND_WAITING;
      const StepPlan& plan = *run_.intake.plan();
      span = runner_.spans_->Begin(
          v1::Span::KIND_WAIT, run_.assignment.stage,
          {plan.epoch, plan.block, plan.step, run_.intake.arrived()});
    }
    std::optional<Run::Item> item = run_.Take();
    if (waits) {
      runner_.spans_->End(std::move(span));
      runner_.meter_.Switch(UsageMeter::State::kBusy);
      run_.at = v1::Activity::KIND_COMPUTING;
    }
    if (!item.has_value()) return absl::CancelledError("the epoch is over");
    runner_.marks_.Add();
    SLUICE_RETURN_IF_ERROR(run_.intake.Add(*std::move(item->frame)));
  }
  return run_.intake.Take(micro_batch);
}

absl::Status StageRunner::Compute(Run& run) {
  const AssignedStage& a = run.assignment;
  const std::shared_ptr<const StepPlan> plan = run.intake.plan();
  StepResult result;
  result.epoch = plan->epoch;
  result.block = plan->block;
  result.step = plan->step;
  int32_t emitted = 0;
  const auto emit = [&](int32_t micro_batch,
                        std::shared_ptr<ActivationBuffer> hidden) {
    if (micro_batch != emitted) {
      return Internal("micro-batch ", micro_batch, " computed in place of ",
                      emitted);
    }
    ++emitted;
    return Emit(run, {plan->epoch, plan->block, plan->step, micro_batch,
                      micro_batch == 0 ? plan : nullptr, std::move(hidden)});
  };
  meter_.Switch(UsageMeter::State::kBusy);
  const double busy_before = meter_.totals().busy_seconds;
  v1::Span span = spans_->Begin(v1::Span::KIND_COMPUTE, a.stage,
                                {plan->epoch, plan->block, plan->step});
  for (const MicroBatch& batch : plan->micro_batches) {
    span.set_tokens(span.tokens() + static_cast<int64_t>(batch.tokens.size()));
  }
  ArrivingInputs inputs(*this, run);
  absl::Status status = executor_->RunStep(
      *plan, a.is_first() ? nullptr : &inputs, emit, &result);
  spans_->End(std::move(span));
  const double seconds = meter_.totals().busy_seconds - busy_before;
  PublishKvUsage();
  PublishReport();
  if (run.stopped) return absl::CancelledError("the epoch is over");
  if (status.ok() && !a.is_last() && plan->micro_batches.empty()) {
    status =
        Emit(run, {plan->epoch, plan->block, plan->step, 0, plan, nullptr});
  }
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("block ", plan->block.value(),
                                         " step ", plan->step));
  }
  options_.metrics->CountStep(*plan, seconds);
  marks_.Add();
  if (a.is_last()) {
    a.reporter->Result(result, seconds);
    run.last_step_out = plan->step;
  }
  return absl::OkStatus();
}

absl::Status StageRunner::Emit(Run& run, ActivationFrame frame) {
  ++run.frames_out;
  if (run.outbox.TryPush(frame)) return absl::OkStatus();
  meter_.Switch(UsageMeter::State::kWaiting);
  run.at = v1::Activity::KIND_BLOCKED;
  v1::Span span =
      spans_->Begin(v1::Span::KIND_BLOCKED, run.assignment.stage,
                    {frame.epoch, frame.block, frame.step, frame.micro_batch});
  const bool sent = run.outbox.Push(std::move(frame));
  spans_->End(std::move(span));
  run.at = v1::Activity::KIND_COMPUTING;
  meter_.Switch(UsageMeter::State::kBusy);
  return sent ? absl::OkStatus() : absl::CancelledError("the epoch is over");
}

void StageRunner::PublishKvUsage() {
  const int64_t used = executor_ == nullptr ? 0 : executor_->kv_pages_used();
  const int64_t all = executor_ == nullptr ? 0 : executor_->kv_pages();
  kv_pages_used_ = used;
  options_.metrics->kv_cache_usage->Set(
      all > 0 ? static_cast<double>(used) / static_cast<double>(all) : 0);
}

void StageRunner::SendLoop(Run& run) {
  std::shared_ptr<LinkSender> link;
  {
    MutexLock lock(&run.mu);
    link = run.link;
  }
  uint64_t counted = 0;
  size_t left = 0;  // frames of the step that come after this one
  while (std::optional<ActivationFrame> frame = run.outbox.Pop()) {
    if (frame->plan != nullptr) left = frame->plan->micro_batches.size();
    if (left > 0) --left;
    const int64_t step = frame->step;
    v1::Span span =
        spans_->Begin(v1::Span::KIND_SEND, run.assignment.stage,
                      {frame->epoch, frame->block, step, frame->micro_batch});
    const absl::Status status = link->Send(*std::move(frame));
    spans_->End(std::move(span));
    link_bytes_sent_ += link->bytes_sent() - counted;
    counted = link->bytes_sent();
    if (!status.ok()) {
      Fail(run, status);
      return;
    }
    ++run.frames_sent;
    if (left == 0) run.last_step_out = step;
    marks_.Add();
  }
}

}  // namespace sluice
