#include "coordinator/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/content_hash.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/policy.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"
#include "common/threads/clock.h"
#include "common/version.h"
#include "coordinator/cluster/worker_service.h"
#include "coordinator/dispatch/dispatcher.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/planning/policy_choices.h"
#include "proto/weights_service.h"
#include "runtime/model/checkpoint/content_check.h"
#include "runtime/model/checkpoint/model_digests.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/model_path.h"
#include "runtime/model/pieces/model_shelf.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer/dummy_tokenizer.h"
#include "scheduler/cost/model_sizes.h"

namespace sluice {
namespace {

// Measuring takes some seconds if there are many workers.
constexpr absl::Duration kMaxLinkTime = absl::Seconds(20);
constexpr int32_t kDefaultStepTokens = 2048;

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t min,
                        int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument(name, " is ", value, "; it must be between ", min,
                         " and ", max);
}

// Checks the maximum size of a step.
absl::Status CheckStep(int32_t gbs, int32_t num_microbatches,
                       int32_t max_step_tokens) {
  SLUICE_RETURN_IF_ERROR(CheckRange("gbs", gbs, 0, kMaxGbs));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("num_microbatches", num_microbatches, 0, kMaxMicroBatches));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("max_step_tokens", max_step_tokens, 0, kMaxStepTokens));
  if (max_step_tokens > 0 && max_step_tokens < gbs) {
    return InvalidArgument("max_step_tokens is ", max_step_tokens,
                           ", but a micro-batch of gbs ", gbs,
                           " sequences needs a token for each");
  }
  const int64_t block_tokens =
      int64_t{max_step_tokens} * std::max(1, num_microbatches);
  if (block_tokens > kMaxBlockTokens) {
    return InvalidArgument("max_step_tokens ", max_step_tokens, " in each of ",
                           num_microbatches, " micro-batches make steps of ",
                           block_tokens, " tokens; at most ", kMaxBlockTokens,
                           " are possible");
  }
  return absl::OkStatus();
}

// Checks that a step's activations fit a message.
absl::Status CheckActivations(int32_t max_step_tokens, int32_t hidden) {
  const int64_t row = int64_t{hidden} * static_cast<int64_t>(sizeof(float));
  if (max_step_tokens * row <= kMaxActivationBytes) return absl::OkStatus();
  return InvalidArgument("max_step_tokens is ", max_step_tokens,
                         "; with the model's hidden size of ", hidden,
                         " it must be at most ", kMaxActivationBytes / row,
                         ", so that the activations of a step (", row,
                         " bytes a token) can go from stage to stage");
}

// The part of a policy that answers depend on.
std::string Formats(const Policy& policy) {
  return PolicyValues(policy,
                      [](const PolicyKey& key) { return key.changes_answers; });
}

std::string PlanFormats(const Plan& plan) {
  std::string text;
  for (const StagePlan& stage : plan.stages) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "layers ",
                    stage.layers.begin, " to ", stage.layers.end, ": ",
                    Formats(stage.policy));
  }
  return text;
}

std::string FormatsOf(const Plan& plan, int32_t layer) {
  for (const StagePlan& stage : plan.stages) {
    if (layer < stage.layers.end) return Formats(stage.policy);
  }
  return "";
}

}  // namespace

absl::Status Coordinator::Options::Validate() const {
  if (model_dir.empty() || state_dir.empty()) {
    return absl::InvalidArgumentError(
        "a model directory and a state directory must be given");
  }
  if (const auto at = FindInvalidUtf8(served_model_name)) {
    return InvalidArgument("served_model_name \"",
                           EscapeInvalidUtf8(served_model_name),
                           "\" is not UTF-8 at byte ", *at + 1);
  }
  SLUICE_RETURN_IF_ERROR(
      CheckRange("min_workers", min_workers, 1, kMaxWorkers));
  SLUICE_RETURN_IF_ERROR(CheckRange("replicas", replicas, 0, kMaxWorkers));
  SLUICE_RETURN_IF_ERROR(CheckRange("num_blocks", num_blocks, 0, 1024));
  // The policies may change the flags, so that they need not fit together yet.
  SLUICE_RETURN_IF_ERROR(CheckRange("gbs", gbs, 0, kMaxGbs));
  SLUICE_RETURN_IF_ERROR(
      CheckStep(policy.empty() ? gbs : 0, num_microbatches, max_step_tokens));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("max_model_len", max_model_len, 0, INT32_MAX));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("positions_cap", positions_cap, 0, INT32_MAX));
  SLUICE_RETURN_IF_ERROR(
      CheckRange("default_max_tokens", default_max_tokens, 1, INT32_MAX));
  if (timeouts.stall_timeout <= timeouts.heartbeat_interval) {
    return InvalidArgument(
        "stall_timeout (", absl::FormatDuration(timeouts.stall_timeout),
        ") must be longer than heartbeat_interval (",
        absl::FormatDuration(timeouts.heartbeat_interval), ")");
  }
  if (timeouts.heartbeat_interval <= absl::ZeroDuration() ||
      timeouts.heartbeat_timeout <= timeouts.heartbeat_interval ||
      timeouts.settle_time < absl::ZeroDuration()) {
    return InvalidArgument(
        "heartbeat_timeout (", absl::FormatDuration(timeouts.heartbeat_timeout),
        ") must be longer than heartbeat_interval (",
        absl::FormatDuration(timeouts.heartbeat_interval),
        "), and both and settle_time (",
        absl::FormatDuration(timeouts.settle_time), ") not negative");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> Coordinator::AnswerFacts(
    Options options) {
  return Coordinator(std::move(options)).Facts();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(
    Options options) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options)));
  SLUICE_RETURN_IF_ERROR(coordinator->Init());
  return coordinator;
}

Coordinator::Coordinator(Options options)
    : options_(std::move(options)), policy_(std::make_unique<Policy>()) {}

Coordinator::~Coordinator() { Shutdown(); }

const DecoderSpec& Coordinator::model() const { return model_->spec(); }

std::string Coordinator::policy_text() const { return PolicyText(*policy_); }

grpc::Service* Coordinator::worker_service() { return workers_->service(); }

grpc::Service* Coordinator::weights_service() {
  return weights_ == nullptr ? nullptr : weights_->service();
}

bool Coordinator::ready() const { return dispatcher_->ready(); }

absl::StatusOr<std::map<std::string, std::string>> Coordinator::Facts() {
  SLUICE_RETURN_IF_ERROR(options_.Validate());
  SLUICE_RETURN_IF_ERROR(OpenModelDir());
  SLUICE_RETURN_IF_ERROR(SetMaxModelLen());
  SLUICE_RETURN_IF_ERROR(MakePolicy());
  SLUICE_ASSIGN_OR_RETURN(auto facts,
                          ModelDigests(*model_, options_.dummy_weights));
  facts["--served-model-name"] = options_.served_model_name.empty()
                                     ? ModelName(options_.model_dir)
                                     : options_.served_model_name;
  facts["--generation-config"] = options_.generation_config ? "auto" : "none";
  facts["--max-model-len"] = absl::StrCat(options_.max_model_len);
  facts["--score-tokens"] = options_.score_tokens;
  facts["--load-format"] = options_.dummy_weights ? "dummy" : "auto";
  const absl::string_view dtype = DTypeName(policy_->dtype);
  facts["--dtype"] = std::string(dtype.data(), dtype.size());
  // All pipelines have the same formats (CheckPlans).
  facts["--policy"] =
      plans_.empty() ? Formats(*policy_) : PlanFormats(plans_.front());
  return facts;
}

absl::Status Coordinator::Init() {
  SLUICE_RETURN_IF_ERROR(options_.Validate());
  if (options_.metrics == nullptr) {
    null_metrics_ = CreateNullMetrics();
    options_.metrics = null_metrics_.get();
  }
  if (options_.served_model_name.empty()) {
    options_.served_model_name = ModelName(options_.model_dir);
  }
  SLUICE_RETURN_IF_ERROR(OpenModel());
  SLUICE_RETURN_IF_ERROR(MakePolicy());
  SLUICE_RETURN_IF_ERROR(OpenJobs());
  SLUICE_RETURN_IF_ERROR(StartDispatcher());
  return absl::OkStatus();
}

v1::ClusterState Coordinator::cluster_state() const {
  v1::ClusterState state = dispatcher_->cluster_state();
  state.set_model(options_.served_model_name);
  state.set_model_dir(EscapeInvalidUtf8(options_.model_dir.string()));
  const absl::string_view dtype = DTypeName(policy_->dtype);
  state.set_dtype(dtype.data(), dtype.size());
  return state;
}

absl::Status Coordinator::DrainWorker(const std::string& name, bool drained) {
  const v1::ClusterState state = dispatcher_->cluster_state();
  if (std::none_of(state.workers().begin(), state.workers().end(),
                   [&](const v1::WorkerInfo& w) { return w.name() == name; })) {
    return NotFound("no worker ", QuoteForMessage(name),
                    " is registered; `sluice cluster` lists those that are");
  }
  dispatcher_->Drain(name, drained);
  return absl::OkStatus();
}

absl::StatusOr<v1::Trace> Coordinator::Trace(const v1::Job& job,
                                             int64_t after) const {
  const Clock& clock = *Clock::Real();
  const absl::Time wall = clock.Now();
  const absl::Duration now = clock.Monotonic();
  const auto monotonic = [&](const google::protobuf::Timestamp& time) {
    const absl::Time then =
        absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
    return now - std::max(wall - then, absl::ZeroDuration());
  };
  const bool ended = job.has_finished_at();
  v1::Trace trace = dispatcher_->trace().Read(
      monotonic(job.created_at()), ended ? monotonic(job.finished_at()) : now,
      after);
  if (!ended) trace.set_settled(true);
  if (after > 0 || trace.processes_size() > 0) return trace;
  if (trace.truncated()) {
    return FailedPrecondition(
        "nothing is kept of the time of ", job.id(),
        ": the coordinator keeps what the cluster did lately, since it last "
        "started; trace a job while it runs, or soon after");
  }
  return FailedPrecondition(
      "no step of ", job.id(),
      ended ? " was ever computed" : " has been computed yet; try again later");
}

void Coordinator::KeepTokens() {
  dispatcher_->KeepTokens();
  jobs_->Flush();
}

// What tokens depend on beside the request and the weights' content, which
// unfinished jobs keep anyway (see ClusterOptions::model).
std::string Coordinator::AnswerKey() const {
  return HexHash(absl::StrCat(
      BuildVersion(), "\n", fingerprint_, "\n", options_.dummy_weights, "\n",
      DTypeName(policy_->dtype), "\n",
      plans_.empty() ? Formats(*policy_) : PlanFormats(plans_.front())));
}

void Coordinator::StopDispatch() {
  if (jobs_ != nullptr) jobs_->BeginShutdown();
  // What follows may take long.
  if (dispatcher_ != nullptr) KeepTokens();
  if (dispatcher_ != nullptr) dispatcher_->Shutdown();
  if (jobs_ != nullptr) jobs_->Flush();
}

void Coordinator::Shutdown() {
  StopDispatch();
  if (workers_ != nullptr) workers_->Shutdown();
}

absl::Status Coordinator::OpenModelDir() {
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<ModelDir> opened,
      ModelDir::Open(options_.model_dir, options_.generation_config
                                             ? ModelDir::Defaults::kAll
                                             : ModelDir::Defaults::kOnlyEnd));
  model_ = std::move(opened);
  return CheckGenerationDefaults();
}

absl::Status Coordinator::OpenModel() {
  SLUICE_RETURN_IF_ERROR(OpenModelDir());
  auto tokenizer = Tokenizer::Load(options_.model_dir);
  ends_.tokens = model_->generation_defaults().eos_token_ids;
  const int32_t vocab_size = model_->spec().vocab_size;
  if (tokenizer.ok()) {
    tokenizer_ = *std::move(tokenizer);
    ends_ = FindAnswerEnds(std::move(ends_.tokens), *tokenizer_, vocab_size);
    LogInfo(ends_.text);
  } else if (options_.dummy_weights && absl::IsNotFound(tokenizer.status())) {
    tokenizer_ = CreateDummyTokenizer(vocab_size);
  } else {
    return tokenizer.status();
  }
  SLUICE_ASSIGN_OR_RETURN(score_tokens_,
                          FindScoreTokens(options_.score_tokens, *tokenizer_));
  auto chat_template = ChatTemplate::Load(options_.model_dir);
  if (chat_template.ok()) {
    chat_template_ = *std::move(chat_template);
    if (const auto for_tools = chat_template_->ForTools(); !for_tools.ok()) {
      LogWarning(
          "the model's chat template for tools cannot be "
          "used (",
          for_tools.status().message(),
          "); requests with \"tools\" will be refused");
    }
  } else if (!absl::IsNotFound(chat_template.status())) {
    // Only chats need the template, so an error is kept for them.
    no_chat_template_ =
        absl::StrCat("the model's chat template cannot be used (",
                     chat_template.status().message(), ")");
    LogWarning(no_chat_template_,
               "; requests with \"messages\" will be refused");
  }
  auto fingerprint =
      options_.dummy_weights
          ? absl::StatusOr<std::string>(model_->DummyFingerprint())
          : model_->Fingerprint();
  if (fingerprint.ok()) {
    fingerprint_ = *std::move(fingerprint);
    if (!options_.dummy_weights) {
      if (model_->quantization().quantized()) {
        LogInfo(options_.model_dir.string(), ": its weights are quantized: ",
                model_->quantization().Description());
      }
      for (const std::string& remark : model_->Remarks()) {
        LogWarning(options_.model_dir.string(), ": ", remark);
      }
    }
    if (options_.compare_models) {
      SLUICE_ASSIGN_OR_RETURN(
          content_,
          ContentCheck::Start({.model = model_,
                               .dummy_weights = options_.dummy_weights,
                               .cache_file = options_.hash_cache}));
    }
    if (content_ != nullptr && !options_.dummy_weights) {
      shelf_ = std::make_unique<ModelShelf>(options_.model_dir, content_.get());
      weights_ = WeightsServer::Create(shelf_.get(),
                                       WeightBytesServed(options_.metrics, ""),
                                       options_.guard);
    }
  } else if (!absl::IsNotFound(fingerprint.status())) {
    return fingerprint.status();
  }
  return SetMaxModelLen();
}

absl::Status Coordinator::SetMaxModelLen() {
  const DecoderSpec& spec = model_->spec();
  const int32_t positions = spec.max_positions;
  if (options_.max_model_len > positions) {
    return InvalidArgument("max_model_len is ", options_.max_model_len,
                           ", but the model in ", options_.model_dir.string(),
                           " ", model_->DescribePositions());
  }
  if (options_.max_model_len == 0 && options_.positions_cap > 0) {
    options_.max_model_len = std::min(positions, options_.positions_cap);
  } else if (options_.max_model_len == 0) {
    options_.max_model_len =
        spec.default_positions > 0 ? spec.default_positions : positions;
  }
  return absl::OkStatus();
}

// Ignored defaults would silently give other answers than the model's publisher
// intended.
absl::Status Coordinator::CheckGenerationDefaults() const {
  const std::vector<std::string>& keys =
      model_->generation_defaults().unsupported;
  if (keys.empty()) return absl::OkStatus();
  return Unimplemented(
      (options_.model_dir / "generation_config.json").string(),
      " asks for what Sluice does not do (", absl::StrJoin(keys, ", "),
      "): remove that there, or start with --generation-config none, which "
      "leaves all defaults of that file out");
}

absl::Status Coordinator::MakePolicy() {
  policy_->gbs = options_.gbs;
  policy_->num_microbatches = std::max(1, options_.num_microbatches);
  policy_->max_step_tokens = options_.max_step_tokens > 0
                                 ? options_.max_step_tokens
                                 : std::max(kDefaultStepTokens, options_.gbs);
  policy_->dtype =
      ResolveDType(options_.dtype, model_->spec(), options_.has_float16);
  SLUICE_ASSIGN_OR_RETURN(plans_, PlansNamedBy(options_.policy));
  if (!plans_.empty()) return CheckPlans();
  for (const std::string& text : options_.policy) {
    SLUICE_RETURN_IF_ERROR(UpdatePolicy(text, policy_.get()));
  }
  if (policy_->gbs == 0) {
    policy_->gbs =
        std::min(DefaultGbs(model_->spec()), policy_->max_step_tokens);
  }
  return CheckPolicy();
}

absl::Status Coordinator::CheckPolicy() const {
  if (!policy_->packing && policy_->slice_context > 0) {
    return InvalidArgument("policy: slice-context=", policy_->slice_context,
                           " is for packed steps; leave it or packing=off out");
  }
  SLUICE_RETURN_IF_ERROR(CheckStep(policy_->gbs, policy_->num_microbatches,
                                   policy_->max_step_tokens));
  return CheckActivations(policy_->max_step_tokens, model_->spec().hidden_size);
}

absl::Status Coordinator::CheckPlans() {
  int32_t workers = 0;
  for (Plan& plan : plans_) {
    const int32_t layers = plan.stages.back().layers.end;
    if (layers != model_->spec().num_layers) {
      return InvalidArgument(
          "the plan has ", layers, " layers, but the model in ",
          options_.model_dir.string(), " has ", model_->spec().num_layers);
    }
    // Answers must not depend on who gives them.
    for (int32_t layer = 0; layer < layers; ++layer) {
      if (FormatsOf(plan, layer) == FormatsOf(plans_.front(), layer)) continue;
      return InvalidArgument(
          "the plan's pipelines differ in the formats of layer ", layer, ": ",
          FormatsOf(plan, layer), " and ", FormatsOf(plans_.front(), layer));
    }
    const auto stages = static_cast<int32_t>(plan.stages.size());
    if (plan.block.num_blocks < stages) plan.block.num_blocks = stages;
    workers += stages;
    policy_->gbs = plan.block.gbs;
    policy_->num_microbatches = plan.block.num_microbatches;
    policy_->max_step_tokens = plan.block.max_step_tokens;
    SLUICE_RETURN_IF_ERROR(CheckPolicy());
  }
  options_.min_workers = std::max(options_.min_workers, workers);
  options_.replicas = static_cast<int32_t>(plans_.size());
  return absl::OkStatus();
}

absl::StatusOr<PlanRequest> Coordinator::Planning() const {
  PlanRequest planning;
  planning.model = model_->spec();
  planning.dtype = policy_->dtype;
  planning.split = options_.split;
  SLUICE_ASSIGN_OR_RETURN(planning.choices, ChoicesLeftBy(options_.policy));
  PolicyChoices& choices = planning.choices;
  const auto fix = [](int32_t value, std::vector<int32_t>* list) {
    if (value > 0 && list->empty()) *list = {value};
  };
  fix(options_.gbs, &choices.gbs);
  fix(options_.num_microbatches, &choices.num_microbatches);
  fix(options_.max_step_tokens, &choices.max_step_tokens);
  fix(options_.num_blocks, &choices.num_blocks);
  planning.max_model_len = options_.max_model_len;
  planning.refill = options_.refill;
  return planning;
}

absl::Status Coordinator::OpenJobs() {
  JobManager::Options jobs;
  jobs.state_dir = options_.state_dir;
  jobs.input_root = options_.input_root;
  jobs.requests = {.served_model = options_.served_model_name,
                   .max_model_len = options_.max_model_len,
                   .default_max_tokens = options_.default_max_tokens,
                   .model = model_.get(),
                   .tokenizer = tokenizer_.get(),
                   .chat_template = chat_template_.get(),
                   .no_chat_template = no_chat_template_,
                   .score_tokens = score_tokens_};
  jobs.quota_of = options_.quota_of;
  jobs.clock = Clock::Real();
  jobs.metrics = options_.metrics;
  jobs.prompt_details = options_.prompt_details;
  jobs.share_prefixes = options_.share_prefixes && options_.refill;
  jobs.answer_key = AnswerKey();
  SLUICE_ASSIGN_OR_RETURN(jobs_, JobManager::Create(std::move(jobs)));
  return absl::OkStatus();
}

absl::Status Coordinator::StartDispatcher() {
  const DecoderSpec& spec = model_->spec();
  Dispatcher::Options dispatch;
  ClusterOptions& members = dispatch.cluster;
  members.min_workers = options_.min_workers;
  members.replicas = options_.replicas;
  members.num_layers = spec.num_layers;
  members.num_blocks = options_.num_blocks;
  members.layer_bytes = WeightBytes(AllLayerElements(spec) / spec.num_layers,
                                    policy_->dtype, policy_->compress_weights);
  members.max_model_len = options_.max_model_len;
  members.policy = *policy_;
  members.fixed_plans = plans_;
  members.plan_jobs =
      options_.plan_jobs && plans_.empty() && !NamesFractions(options_.policy);
  if (members.plan_jobs) {
    SLUICE_ASSIGN_OR_RETURN(dispatch.planning, Planning());
  }
  members.model_fingerprint = fingerprint_;
  members.model_config = model_->config();
  if (content_ != nullptr) {
    members.model.own = [c = content_.get()] { return c->state(); };
    members.model.own_dir = options_.model_dir.string();
  }
  if (options_.compare_models) {
    members.model.begun = jobs_->ReportedModel();
    members.model.jobs_begun = [j = jobs_.get()] { return j->HasBegunJobs(); };
  }
  members.timeouts = options_.timeouts;
  members.timeouts.max_link_time = kMaxLinkTime;
  members.failure_level = options_.failure_level;
  members.look_up_names = true;
  members.test_links = true;
  members.clock = Clock::Real();
  dispatch.queue = jobs_.get();
  dispatch.metrics = options_.metrics;
  dispatch.driver = {.tokenizer = tokenizer_.get(),
                     .vocab_size = spec.vocab_size,
                     .hidden_size = spec.hidden_size,
                     .eos_tokens = ends_.tokens};
  dispatch.refill = options_.refill;
  dispatch.keep_interval = options_.keep_interval;
  dispatch.kv_by_need = options_.kv_by_need;
  dispatch.share_prefixes = options_.share_prefixes;
  dispatch.order = options_.order;
  SLUICE_ASSIGN_OR_RETURN(dispatcher_, Dispatcher::Create(std::move(dispatch)));
  workers_ = WorkerAttachService::Create(dispatcher_->sink(),
                                         {.guard = options_.guard});
  Dispatcher* const dispatcher = dispatcher_.get();
  jobs_->SetListener(
      {.on_work = [dispatcher] { dispatcher->NotifyWork(); },
       .on_cancel = [dispatcher](JobId job) { dispatcher->Cancel(job); },
       .on_stored = [dispatcher] { dispatcher->Tick(); },
       .on_order = [dispatcher] { dispatcher->Reorder(); }});
  dispatcher_->NotifyWork();  // unfinished jobs of an earlier process
  return absl::OkStatus();
}

}  // namespace sluice
