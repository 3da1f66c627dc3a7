#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// CUDA graphs of what steps launch: a step that comes again and again is
// recorded, and from then on launched as one, which costs the host almost
// nothing and the device less than kernel after kernel. Used by one thread.
class StepGraphs {
 public:
  // All that a step's launches depend on, but for what memory holds.
  using Key = std::vector<int64_t>;

  explicit StepGraphs(cudaStream_t stream) : stream_(stream) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  bool Has(const Key& key) const { return graphs_.contains(key); }
  // Launches the step. REQUIRES: Has().
  absl::Status Launch(const Key& key) { return Launch(graphs_.at(key)); }
  // Returns whether a step that was not recorded is to be: it was asked for
  // often enough. By then all that happens once for a shape has happened.
  bool Wants(const Key& key);

  // Begins to record, instead of running, what is launched on the stream until
  // End(). Nobody may wait for the stream meanwhile.
  absl::Status Begin(const Key& key);
  // Ends the recording, and launches what was recorded.
  absl::Status End();
  // Ends a recording, if there is one, and forgets what was recorded.
  void Abort();
  bool recording() const { return recording_; }

 private:
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    int64_t used = 0;  // the time of the last launch
  };

  absl::Status Launch(Graph& graph);
  void Forget(Graph& graph);

  const cudaStream_t stream_;
  std::map<Key, Graph> graphs_;
  std::map<Key, int> asked_;
  int64_t time_ = 0;
  Key key_;  // of the step that is recorded
  bool recording_ = false;
};

}  // namespace sluice
