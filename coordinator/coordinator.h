#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/access.h"
#include "common/host/logging.h"
#include "common/metrics/metrics.h"
#include "common/types.h"
#include "coordinator/cluster/worker_timeouts.h"
#include "coordinator/dispatch/answer_ends.h"
#include "coordinator/request.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "scheduler/plan/plan.h"
#include "scheduler/steps/waiting_queue.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

class CallGuard;
class ChatTemplate;
class ContentCheck;
class Dispatcher;
class JobManager;
class ModelDir;
class ModelShelf;
class WeightsServer;
class WorkerAttachService;
struct DecoderSpec;

// The coordinator without its servers: jobs, membership, planning, dispatch,
// recovery. Thread-safe.
class Coordinator {
 public:
  struct Options {
    std::filesystem::path model_dir;
    std::string served_model_name;  // "": the directory's name
    std::filesystem::path state_dir;
    std::filesystem::path input_root;  // "": no server-side paths
    // Asked about calls of workers; must outlive the coordinator. Null: all may
    // join and read weights.
    CallGuard* guard = nullptr;
    // The quota of a tenant as it is now; null: nobody has one.
    std::function<TenantQuota(const std::string& tenant)> quota_of;
    DTypeChoice dtype = DTypeChoice::kAuto;
    // Whether all workers compute in float16 too, as GPUs do: kAuto then keeps
    // float16 models in float16.
    bool has_float16 = false;
    int32_t min_workers = 1;  // a plan needs this many
    // Pipelines that the workers form, each with the whole model; 0: as many as
    // the planner finds best. A part of min_workers is each one's.
    int32_t replicas = 1;
    int32_t num_blocks = 0;        // 0: as ClusterOptions, or planned
    int32_t gbs = 0;               // sequences per micro-batch; 0: default
    int32_t num_microbatches = 0;  // 0: 1, or the planner's choice
    int32_t max_step_tokens = 0;   // 0: 2048, or the planner's choice
    // Policies in the form of UpdatePolicy, which override the options above in
    // order; or one text that names a file with a plan (see PlanToJson).
    std::vector<std::string> policy;
    // Whether plans are made for the jobs from the workers' profiles, if all
    // have one and the policy names no shares of tiers.
    bool plan_jobs = false;
    Split split = Split();  // kEven
    // If false, the defaults of generation_config.json are not used.
    bool generation_config = true;
    // Whether workers make random weights: a model needs only config.json, and
    // bytes are its tokens if it has no tokenizer.
    bool dummy_weights = false;
    // Whether workers are asked for the hashes of their model's files, which
    // must be those of model_dir, if it has weights. The hashes of model_dir
    // are cached in the file `hash_cache`; "": nowhere.
    bool compare_models = true;
    std::string hash_cache;
    int32_t max_model_len = 0;  // 0: the model's (default_positions)
    // The limit of the model's positions if max_model_len is 0; 0: its
    // default_positions.
    int32_t positions_cap = 0;
    int32_t default_max_tokens = kDefaultMaxTokens;
    // "NO,YES": the tokens with which a reranker answers; "": as the model's
    // files say.
    std::string score_tokens;
    bool refill = true;  // false: a block refills only when all ended
    // If false, each sequence's maximum KV cache is reserved at its start.
    bool kv_by_need = true;
    // Has requests that begin alike compute their beginning once.
    bool share_prefixes = true;
    // Which of the waiting requests go first.
    Order order = Order::kArrival;
    // Has each answer say how much of its prompt that was.
    bool prompt_details = false;
    WorkerTimeouts timeouts;
    // The interval at which the tokens of unfinished requests are stored: what
    // a crash of the process may lose.
    absl::Duration keep_interval = absl::Minutes(1);
    // The log level of a plan's failure. Where a job's end tells it, too, once
    // is enough.
    LogLevel failure_level = LogLevel::kWarning;
    MetricsRegistry* metrics = nullptr;  // must outlive the coordinator
    absl::Status Validate() const;
  };

  // Returns the facts besides requests and sampling parameters that answers
  // depend on, by their flag or file of the model directory. Equal facts give
  // equal answers. Checks options and model; makes and changes nothing.
  static absl::StatusOr<std::map<std::string, std::string>> AnswerFacts(
      Options options);

  // Opens model directory and store, resumes unfinished jobs.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options);
  ~Coordinator();

  JobManager& jobs() { return *jobs_; }
  v1::ClusterState cluster_state() const;
  // Has plans do without a worker, so that it can be stopped, or use it again.
  // kNotFound if none has that name. It takes effect soon.
  absl::Status DrainWorker(const std::string& name, bool drained);

  // A page of what the cluster did while the job existed: see TraceLog::Read.
  // kFailedPrecondition if no step of that time is kept.
  absl::StatusOr<v1::Trace> Trace(const v1::Job& job, int64_t after) const;

  // The model's parts, which live as long as the coordinator.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Which tokens end an answer, for people; "" where it has no tokenizer.
  const std::string& answer_ends() const { return ends_.text; }
  // The policy that workers get.
  const Policy& policy() const { return *policy_; }
  std::string policy_text() const;  // as PolicyText
  const DecoderSpec& model() const;
  // The maximum positions of a sequence, from the options or the model.
  int32_t max_model_len() const { return options_.max_model_len; }

  // WorkerService, to be registered with a server. Owned by the coordinator,
  // which must outlive the server's Shutdown.
  grpc::Service* worker_service();
  // WeightsService, likewise; null if the coordinator has no weights.
  grpc::Service* weights_service();

  // Stores all answers and tokens known so far; returns when they are stored,
  // or could not be. Jobs go on meanwhile.
  void KeepTokens();

  // True when a plan is loaded and jobs can run.
  bool ready() const;

  // Stops dispatching, and commits results and the tokens of unfinished
  // requests: what workers do from now on changes nothing, and is not told.
  void StopDispatch();
  // Does StopDispatch(), and closes the workers' streams. Called by the
  // destructor too.
  void Shutdown();

 private:
  explicit Coordinator(Options options);

  absl::StatusOr<std::map<std::string, std::string>> Facts();
  absl::Status Init();
  absl::Status OpenModelDir();
  absl::Status OpenModel();
  absl::Status SetMaxModelLen();
  absl::Status CheckGenerationDefaults() const;
  absl::Status MakePolicy();
  absl::Status CheckPolicy() const;
  absl::Status CheckPlans();
  absl::StatusOr<PlanRequest> Planning() const;
  std::string AnswerKey() const;
  absl::Status OpenJobs();
  absl::Status StartDispatcher();

  Options options_;
  std::unique_ptr<MetricsRegistry> null_metrics_;
  std::shared_ptr<const ModelDir> model_;
  std::unique_ptr<ContentCheck> content_;  // null: not compared
  std::unique_ptr<ModelShelf> shelf_;      // null: no weights here
  std::unique_ptr<WeightsServer> weights_;
  std::unique_ptr<Tokenizer> tokenizer_;
  AnswerEnds ends_;
  std::unique_ptr<ChatTemplate> chat_template_;  // null if there is none
  std::string no_chat_template_;  // error of an unusable template
  ScoreTokens score_tokens_;
  std::string fingerprint_;  // "" without weights
  const std::unique_ptr<Policy> policy_;
  std::vector<Plan> plans_;  // the user's, of each pipeline; none: not given
  // The jobs call the dispatcher as long as they live. The dispatcher uses them
  // only until Shutdown, so they are destroyed first.
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<WorkerAttachService> workers_;
  std::unique_ptr<JobManager> jobs_;
};

}  // namespace sluice
