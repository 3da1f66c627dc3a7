#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/metrics/metrics.h"
#include "common/policy.h"
#include "common/types.h"
#include "coordinator/job_manager.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "scheduler/plan/plan.h"
#include "sluice/v1/cluster.pb.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace sluice {

// The coordinator without its servers: jobs, membership, planning, dispatch,
// recovery. Thread-safe.
class Coordinator {
 public:
  struct Options {
    std::filesystem::path model_dir;
    std::string served_model_name;  // "": the directory's name
    std::filesystem::path state_dir;
    std::filesystem::path input_root;  // "": no server-side paths
    DTypeChoice dtype = DTypeChoice::kAuto;
    // Whether all workers compute in float16 too, as GPUs do: kAuto then keeps
    // to it for models that are in it.
    bool has_float16 = false;
    int32_t min_workers = 1;       // plan as soon as so many are registered
    int32_t num_blocks = 0;        // 0: one per stage
    int32_t gbs = 0;               // sequences per micro-batch; 0: default
    int32_t num_microbatches = 0;  // 0: 1, or the planner's choice
    int32_t max_step_tokens = 0;   // 0: 2048, or the planner's choice
    // In the form of UpdatePolicy, applied in order over what the above say.
    // Or one that names a file with a plan (see PlanToJson).
    std::vector<std::string> policy;
    // Plans are made for the jobs from the workers' profiles, where all have
    // one and the policy names no shares of tiers.
    bool plan_jobs = false;
    Split split = Split::kEven;
    // false: requests that do not say get nothing from generation_config.json.
    bool generation_config = true;
    // Workers make random weights: config.json is enough of a model, and bytes
    // are its tokens if it has no tokenizer.
    bool dummy_weights = false;
    // Whether workers are asked for the hashes of their model's files, which
    // must be those of model_dir, if it has weights. What was found out there
    // is kept in the file `hash_cache`; "": nowhere.
    bool compare_models = true;
    std::string hash_cache;
    int32_t max_model_len = 0;   // 0: the model's (default_positions)
    int32_t most_model_len = 0;  // if that is 0: not more than so many; 0: all
    int32_t default_max_tokens = kDefaultMaxTokens;
    bool refill = true;  // false: a block refills only when all ended
    // false: each sequence's greatest KV cache is reserved from its start
    bool kv_by_need = true;
    absl::Duration heartbeat_interval = absl::Seconds(1);
    absl::Duration heartbeat_timeout = absl::Seconds(10);
    // A worker that gets nothing done for so long, while it has work, is left
    // out; longer if its work takes long pieces.
    absl::Duration stall_timeout = absl::Seconds(60);
    // A new worker waits so long for others before the plan changes.
    absl::Duration settle_time = absl::Milliseconds(200);
    // Of what is logged when a plan fails. Where a job's end says so, too, once
    // is enough.
    LogLevel failure_level = LogLevel::kWarning;
    MetricsRegistry* metrics = nullptr;  // must outlive the coordinator
    absl::Status Validate() const;
  };

  // What answers depend on besides requests and sampling parameters, by the
  // flag or the file of the model directory that it comes from. Equal facts:
  // equal answers. Checks options and model; makes and changes nothing.
  static absl::StatusOr<std::map<std::string, std::string>> AnswerFacts(
      Options options);

  // Opens model directory and store, resumes unfinished jobs.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(Options options);
  virtual ~Coordinator() = default;

  virtual JobManager& jobs() = 0;
  virtual v1::ClusterState cluster_state() const = 0;

  // The model's. Live as long as the coordinator.
  virtual const Tokenizer& tokenizer() const = 0;
  // What the workers are told.
  virtual const Policy& policy() const = 0;
  virtual const DecoderSpec& model() const = 0;
  // Positions of a sequence, as asked for or as the model has.
  virtual int32_t max_model_len() const = 0;

  // WorkerService, to be registered with a server. Owned by the coordinator,
  // which must outlive the server's Shutdown.
  virtual grpc::Service* worker_service() = 0;

  // True when a plan is loaded and jobs can run.
  virtual bool ready() const = 0;

  // Stops dispatching, closes the workers' streams, commits results. Called by
  // the destructor too.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
