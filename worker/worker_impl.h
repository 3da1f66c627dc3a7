#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/stage_runner.h"
#include "worker/worker.h"

namespace sluice {

// What a worker has to know of its model, apart from how to load it.
struct WorkerModel {
  std::string fingerprint;
  int64_t hidden_size = 0;
  int32_t num_layers = 0;
  StageLoader loader;
};

// Worker::Create without the model directory, for tests of what goes on around
// the computation. `options` have been validated.
// `payloads` is for NCCL links, or null.
std::unique_ptr<Worker> CreateWorker(
    Worker::Options options, WorkerModel model,
    std::unique_ptr<PayloadTransport> payloads = nullptr);

}  // namespace sluice
