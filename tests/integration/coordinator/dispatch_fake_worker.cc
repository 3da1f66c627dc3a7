#include "tests/integration/coordinator/dispatch_fake_worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/convert.h"

namespace sluice {

FakePipeline::FakePipeline(Model model, int64_t kv_pages, int32_t page_tokens,
                           bool kv_by_need)
    : model_(std::move(model)),
      kv_pages_(kv_pages),
      page_tokens_(page_tokens),
      kv_by_need_(kv_by_need) {}

void FakePipeline::Assign(const v1::AssignStage& assign,
                          std::shared_ptr<FakeWorker> who) {
  MutexLock lock(&mu_);
  if (assign.epoch() < epoch_) return;
  if (assign.epoch() > epoch_) {
    epoch_ = assign.epoch();
    assigned_ = assign;
    sequences_.clear();
    last_stage_ = nullptr;
  }
  if (assign.stage() == assign.num_stages() - 1) last_stage_ = std::move(who);
}

void FakePipeline::SetOnStep(std::function<void(int64_t)> on_step) {
  MutexLock lock(&mu_);
  on_step_ = std::move(on_step);
}

void FakePipeline::SetOnResult(std::function<void(v1::StepResult*)> on_result) {
  MutexLock lock(&mu_);
  on_result_ = std::move(on_result);
}

void FakePipeline::Run(const v1::StepPlan& plan) {
  std::function<void(int64_t)> on_step;
  int64_t number;
  {
    MutexLock lock(&mu_);
    on_step = on_step_;
    number = ++steps_;
  }
  if (on_step) on_step(number);
  v1::WorkerMessage answer;
  std::shared_ptr<FakeWorker> last;
  {
    MutexLock lock(&mu_);
    if (plan.epoch() != epoch_ || last_stage_ == nullptr) return;
    *answer.mutable_step_result() = Compute(plan);
    if (on_result_) on_result_(answer.mutable_step_result());
    last = last_stage_;
  }
  // The result is sent in parts, as a worker sends a large one.
  absl::StatusOr<StepResult> whole = FromProto(answer.step_result());
  if (!whole.ok() || whole->scores.empty()) {
    last->Send(answer);
    return;
  }
  for (v1::StepResult& part : ToProtoParts(*whole, /*max_values=*/20)) {
    *answer.mutable_step_result() = std::move(part);
    last->Send(answer);
  }
}

v1::StepResult FakePipeline::Compute(const v1::StepPlan& plan) {
  const auto violation =
      [&](const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        violations_.push_back(absl::StrCat("step ", plan.step(), ": ", what));
      };
  if (plan.step() <= last_step_) violation("out of order");
  last_step_ = plan.step();
  if (plan.block() < 0 || plan.block() >= assigned_.num_blocks()) {
    violation(absl::StrCat("block ", plan.block()));
  }
  blocks_seen_.insert(plan.block());
  for (const v1::KeptPrefix& keep : plan.keep()) {
    Sequence kept;
    const std::string wrong = Share(keep.prefix(), &kept);
    if (!wrong.empty() || keep.id() >= 0 ||
        !sequences_.emplace(keep.id(), kept).second) {
      violation(absl::StrCat("keeps ", keep.id(), ": ", wrong));
    }
  }
  for (int64_t id : plan.release()) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end()) {
      violation(absl::StrCat("releases unknown sequence ", id));
      continue;
    }
    sequences_.erase(it);
  }
  for (const v1::SequenceAdmission& admission : plan.admit()) {
    Sequence sequence;
    sequence.max_positions = admission.max_positions();
    sequence.seed = admission.sampling().seed();
    sequence.logprobs = admission.sampling().logprobs();
    if (admission.has_prefix()) {
      const std::string wrong = Share(admission.prefix(), &sequence);
      if (!wrong.empty() ||
          admission.prefix().positions() >= sequence.max_positions) {
        violation(absl::StrCat("admits ", admission.sequence(), ": ", wrong));
      }
      shared_positions_ += admission.prefix().positions();
    }
    if (!kv_by_need_) Grow(&sequence, sequence.max_positions);
    if (!sequences_.emplace(admission.sequence(), sequence).second) {
      violation(absl::StrCat("admits ", admission.sequence(), " twice"));
    }
  }
  if (std::count_if(sequences_.begin(), sequences_.end(), [](const auto& s) {
        return s.first >= 0;
      }) > assigned_.max_sequences()) {
    violation("has more sequences than announced");
  }
  v1::StepResult result;
  result.set_epoch(plan.epoch());
  result.set_block(plan.block());
  result.set_step(plan.step());
  for (const v1::MicroBatch& batch : plan.micro_batches()) {
    if (batch.tokens_size() > assigned_.policy().max_step_tokens() ||
        batch.segments_size() > assigned_.policy().gbs()) {
      violation("a micro-batch is too large");
    }
    int next = 0;
    for (const v1::Segment& segment : batch.segments()) {
      const auto it = sequences_.find(segment.sequence());
      if (it == sequences_.end() ||
          segment.start() != static_cast<int32_t>(it->second.tokens.size()) ||
          segment.start() + segment.num_tokens() > it->second.max_positions) {
        violation(absl::StrCat("sequence ", segment.sequence(), " from ",
                               segment.start()));
        continue;
      }
      std::vector<int32_t>& tokens = it->second.tokens;
      for (int i = 0; i < segment.num_tokens(); ++i) {
        tokens.push_back(batch.tokens(next++));
      }
      Grow(&it->second, std::ssize(tokens));
      Score(segment, tokens, it->second.logprobs, &result);
      if (!segment.sample()) continue;
      v1::SampledToken* sampled = result.add_tokens();
      sampled->set_sequence(segment.sequence());
      sampled->set_token(model_(it->second.seed, tokens));
    }
  }
  std::set<int64_t> pages;
  for (const auto& [id, sequence] : sequences_) {
    pages.insert(sequence.pages.begin(), sequence.pages.end());
  }
  if (std::ssize(pages) > kv_pages_) {
    violation("takes more pages than there are");
  }
  return result;
}

std::string FakePipeline::Share(const v1::SharedPrefix& prefix,
                                Sequence* sequence) {
  const auto it = sequences_.find(prefix.source());
  if (it == sequences_.end()) {
    return absl::StrCat("there is no ", prefix.source());
  }
  const Sequence& source = it->second;
  if (prefix.positions() % page_tokens_ != 0 ||
      prefix.positions() > std::ssize(source.tokens)) {
    return absl::StrCat(prefix.positions(), " positions of ", prefix.source());
  }
  sequence->tokens.assign(source.tokens.begin(),
                          source.tokens.begin() + prefix.positions());
  sequence->pages.assign(
      source.pages.begin(),
      source.pages.begin() + prefix.positions() / page_tokens_);
  return "";
}

void FakePipeline::Grow(Sequence* sequence, int64_t positions) {
  while (std::ssize(sequence->pages) * page_tokens_ < positions) {
    sequence->pages.push_back(next_page_++);
  }
}

void FakePipeline::Score(const v1::Segment& segment,
                         const std::vector<int32_t>& tokens, int32_t logprobs,
                         v1::StepResult* result) {
  if (segment.score_begin() == segment.score_end()) return;
  std::vector<int32_t> known = tokens;
  if (segment.has_next_token()) known.push_back(segment.next_token());
  if (segment.score_begin() <= segment.start() ||
      segment.score_end() > static_cast<int32_t>(known.size()) ||
      logprobs < 0) {
    violations_.push_back(absl::StrCat("scores ", segment.score_begin(), " to ",
                                       segment.score_end()));
    return;
  }
  v1::TokenScores* scores = result->add_scores();
  scores->set_sequence(segment.sequence());
  scores->set_begin(segment.score_begin());
  scores->set_num_top(logprobs);
  for (int32_t p = segment.score_begin(); p < segment.score_end(); ++p) {
    const std::span<const int32_t> prefix(known.data(), p + 1);
    scores->add_logprobs(FakeLogprob(prefix));
    for (int32_t rank = 0; rank < logprobs; ++rank) {
      const TokenLogprob other = FakeAlternative(prefix, rank);
      scores->add_top_tokens(other.token);
      scores->add_top_logprobs(other.logprob);
    }
  }
}

std::vector<std::string> FakePipeline::violations() const {
  MutexLock lock(&mu_);
  return violations_;
}

int64_t FakePipeline::steps() const {
  MutexLock lock(&mu_);
  return steps_;
}

int64_t FakePipeline::shared_positions() const {
  MutexLock lock(&mu_);
  return shared_positions_;
}

std::set<int32_t> FakePipeline::blocks_seen() const {
  MutexLock lock(&mu_);
  return blocks_seen_;
}

FakeWorker::FakeWorker(std::shared_ptr<grpc::Channel> channel,
                       FakePipeline* pipeline)
    : pipeline_(pipeline),
      channel_(std::move(channel)),
      stub_(v1::WorkerService::NewStub(channel_)) {}

std::shared_ptr<FakeWorker> FakeWorker::Attach(
    std::shared_ptr<grpc::Channel> channel, FakePipeline* pipeline,
    const std::string& name) {
  std::shared_ptr<FakeWorker> worker(
      new FakeWorker(std::move(channel), pipeline));
  worker->stream_ = worker->stub_->Attach(&worker->context_);
  v1::WorkerMessage hello;
  v1::Register* info = hello.mutable_register_();
  info->set_name(name);
  info->set_link_address(absl::StrCat("link:", name));
  info->set_model_fingerprint("f00d");
  v1::ModelContent::File* file = info->mutable_model_content()->add_files();
  file->set_name("config.json");
  file->set_bytes(1);
  file->set_hash("c");
  worker->Send(hello);
  worker->thread_ = Thread("fake-worker", [w = worker.get()] { w->Run(); });
  return worker;
}

FakeWorker::~FakeWorker() {
  Kill();
  thread_.Join();
}

void FakeWorker::Kill() { context_.TryCancel(); }

void FakeWorker::Send(const v1::WorkerMessage& message) {
  MutexLock lock(&write_mu_);
  stream_->Write(message);
}

void FakeWorker::FailToLoad(v1::StageFailed failure) {
  MutexLock lock(&mu_);
  failure_ = std::move(failure);
}

grpc::Status FakeWorker::WaitForEnd() {
  MutexLock lock(&mu_);
  while (!end_) changed_.Wait(&mu_);
  return *end_;
}

void FakeWorker::WaitFor(v1::CoordinatorMessage::KindCase kind) {
  MutexLock lock(&mu_);
  while (!seen_.contains(kind) && !end_) changed_.Wait(&mu_);
}

void FakeWorker::Run() {
  v1::CoordinatorMessage message;
  while (stream_->Read(&message)) {
    if (message.has_assign_stage()) OnAssign(message.assign_stage());
    if (message.has_reach_links()) OnReachLinks(message.reach_links());
    if (message.has_step_plan()) pipeline_->Run(message.step_plan());
    MutexLock lock(&mu_);
    seen_.insert(message.kind_case());
    changed_.NotifyAll();
  }
  const grpc::Status status = stream_->Finish();
  MutexLock lock(&mu_);
  end_ = status;
  changed_.NotifyAll();
}

void FakeWorker::OnAssign(const v1::AssignStage& assign) {
  std::optional<v1::StageFailed> failure;
  {
    MutexLock lock(&mu_);
    failure = failure_;
  }
  v1::WorkerMessage answer;
  if (failure) {
    *answer.mutable_stage_failed() = *failure;
    answer.mutable_stage_failed()->set_epoch(assign.epoch());
  } else {
    if (!assign.prepare()) pipeline_->Assign(assign, shared_from_this());
    v1::StageReady* ready = answer.mutable_stage_ready();
    ready->set_epoch(assign.epoch());
    ready->set_kv_pages(pipeline_->kv_pages());
    ready->set_kv_by_need(pipeline_->kv_by_need());
    ready->set_kv_shared(true);
    ready->set_page_tokens(pipeline_->page_tokens());
    ready->set_weight_bytes(1000);
  }
  Send(answer);
}

void FakeWorker::OnReachLinks(const v1::ReachLinks& reach) {
  v1::WorkerMessage answer;
  answer.mutable_links_reached()->set_epoch(reach.epoch());
  for (const auto& peer : reach.peers()) {
    answer.mutable_links_reached()->add_links()->set_peer(peer.name());
  }
  Send(answer);
}

}  // namespace sluice
