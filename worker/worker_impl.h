#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/model/checkpoint/content_check.h"
#include "worker/stage/stage_runner.h"
#include "worker/worker.h"

namespace sluice {

// What a worker has to know of its model, apart from how to load it.
struct WorkerModel {
  // What it holds; if null, as in tests, the coordinator is told nothing.
  std::shared_ptr<ContentCheck> content;
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
