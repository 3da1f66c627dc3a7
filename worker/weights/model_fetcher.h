#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/piece_reader.h"
#include "common/threads/mutex.h"
#include "runtime/exec/stage_executor.h"
#include "runtime/exec/stage_options.h"
#include "runtime/model/pieces/model_cache.h"
#include "runtime/model/pieces/piece_fetch.h"
#include "runtime/model/pieces/piece_source.h"
#include "worker/channel_factory.h"
#include "worker/stage/assigned_stage.h"
#include "worker/worker_metrics.h"

namespace sluice {

// Loads stages of models that are not here: fetches the pieces of the files
// that a stage needs into a cache, and serves them to others from there.
// Thread-safe; Load() is called by one thread at a time.
class ModelFetcher : public PieceShelf {
 public:
  struct Options {
    ModelCache::Options cache;
    std::string coordinator_address;
    ChannelFactory channels;
    bool dummy_weights = false;  // the user wants random weights
  };
  // ModelCache::Create's errors.
  static absl::StatusOr<std::unique_ptr<ModelFetcher>> Create(Options options);

  // Has fetches counted. To be called before Load().
  void Count(const FetchCounters& counters) { counters_ = counters; }

  // Does LoadStage for an assigned model. `fetching` is called with the bytes
  // fetched and to be fetched, before `progress`. What is missing in the cache,
  // was changed or removed there is fetched again.
  absl::StatusOr<std::unique_ptr<StageExecutor>> Load(
      const AssignedModel& model, const StageOptions& stage,
      const StageExecutor::Progress& fetching,
      const StageExecutor::Progress& progress,
      const std::atomic<bool>* cancelled);

  absl::StatusOr<std::shared_ptr<PieceReader>> Find(
      const PiecedFile& file) override;

 private:
  ModelFetcher(Options options, std::unique_ptr<ModelCache> cache)
      : options_(std::move(options)), cache_(std::move(cache)) {}
  // Returns the model that is open, unless it was removed from the cache.
  absl::StatusOr<std::shared_ptr<CachedModel>> OpenModel(
      const AssignedModel& model);
  // Load(), with what is in the cache or can be fetched now.
  absl::StatusOr<std::unique_ptr<StageExecutor>> LoadFrom(
      CachedModel* cached, const AssignedModel& model,
      const StageOptions& stage, const StageExecutor::Progress& fetching,
      const StageExecutor::Progress& progress,
      const std::atomic<bool>* cancelled);
  // Sets the sources and all that does not depend on what is fetched.
  FetchOptions Fetching(const AssignedModel& model, CachedModel* cached,
                        const StageOptions& stage,
                        const StageExecutor::Progress& fetching,
                        const std::atomic<bool>* cancelled) const;
  // Fetches the header of a GGUF file, of which the first piece is here.
  static absl::Status FetchGgufHeader(const FetchOptions& fetch,
                                      const std::string& name, PieceFile& file);
  absl::Status FetchHeaders(const FetchOptions& fetch,
                            const std::vector<std::string>& names) const;
  absl::Status FetchStage(const FetchOptions& fetch, const AssignedModel& model,
                          const StageOptions& stage);

  const Options options_;
  const std::unique_ptr<ModelCache> cache_;
  FetchCounters counters_;
  mutable Mutex mu_;
  // The model loaded last.
  std::shared_ptr<CachedModel> model_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
