#include "runtime/kernels/cuda/step_graphs.h"

#include <algorithm>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/cuda_status.h"

namespace sluice {
namespace {

// Recording a step costs some times what launching it does.
constexpr int kAskedBefore = 3;
// Each graph takes a few hundred kilobytes on host and device.
constexpr size_t kMaxGraphs = 32;
constexpr size_t kMaxAsked = 4096;

}  // namespace

StepGraphs::~StepGraphs() {
  Abort();
  for (auto& [key, graph] : graphs_) Forget(graph);
}

void StepGraphs::Forget(Graph& graph) {
  if (graph.exec != nullptr) (void)cudaGraphExecDestroy(graph.exec);
  graph.exec = nullptr;
}

absl::Status StepGraphs::Launch(Graph& graph) {
  graph.used = ++time_;
  return CudaStatus(cudaGraphLaunch(graph.exec, stream_),
                    "launching a recorded step");
}

bool StepGraphs::Wants(const Key& key) {
  if (asked_.size() >= kMaxAsked) asked_.clear();
  return asked_[key]++ >= kAskedBefore;
}

absl::Status StepGraphs::Begin(const Key& key) {
  // Other threads use the device meanwhile.
  SLUICE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
      "beginning to record a step"));
  key_ = key;
  recording_ = true;
  return absl::OkStatus();
}

absl::Status StepGraphs::End() {
  recording_ = false;
  cudaGraph_t recorded = nullptr;
  SLUICE_RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream_, &recorded),
                                    "ending to record a step"));
  Graph graph;
  const absl::Status status = CudaStatus(
      cudaGraphInstantiate(&graph.exec, recorded, 0), "recording a step");
  (void)cudaGraphDestroy(recorded);
  SLUICE_RETURN_IF_ERROR(status);
  if (graphs_.size() >= kMaxGraphs) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(),
                                         [](const auto& a, const auto& b) {
                                           return a.second.used < b.second.used;
                                         });
    Forget(oldest->second);
    graphs_.erase(oldest);
  }
  Graph& kept = graphs_[key_];
  Forget(kept);
  kept = graph;
  return Launch(kept);
}

void StepGraphs::Abort() {
  if (!recording_) return;
  recording_ = false;
  cudaGraph_t recorded = nullptr;
  (void)cudaStreamEndCapture(stream_, &recorded);
  if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  (void)cudaGetLastError();
}

}  // namespace sluice
