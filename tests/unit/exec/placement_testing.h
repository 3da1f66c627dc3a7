#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/policy.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/model/decoder_spec.h"
#include "tests/parity/stage_chain.h"

namespace sluice {

// Return what the tests of placement run: a small model, of Qwen3's kind (0),
// OPT's (1), or another of kPlacementModels, and prompts of many lengths that
// enter one after the other.
inline constexpr int kPlacementModels = 8;
DecoderSpec PlacementSpec(int model);
std::string PlacementName(int model);
std::vector<ChainRequest> PlacementRequests(int32_t vocab);

// Returns the policy of these keys, with steps of two micro-batches of up to
// 256 tokens if they do not say. Fails the test if they make no sense.
Policy With(const std::string& keys);

struct PlacementRun {
  Policy policy;
  std::string disk_dir;       // "": no disk
  std::vector<int> cuts;      // layers at which stages begin
  int ranks = 1;              // of each stage
  uint64_t device_bytes = 0;  // 0: device and host are the same memory
  DeviceChoice device = TestDevice();
  StageChain::WrapBackend wrap_backend;      // or null
  std::function<void(StageChain&)> observe;  // at the end; or null
  const TensorSource* source = nullptr;      // null: a RandomSource
};

struct Outcome {
  std::vector<std::vector<int32_t>> tokens;
  std::map<StageChain::Position, std::vector<float>> logits;
  SweepStats stats;  // bytes, and the host's attention, of all stages
  RealisedPlacement placement;  // of the first stage
};

// Runs the requests twice, the second time with whatever the first one left
// behind: packed units on disk, and an executor that was reset. Fails the test
// on an error, or if the runs differ.
void RunPlacement(const DecoderSpec& spec, const PlacementRun& run,
                  Outcome* outcome);

}  // namespace sluice
