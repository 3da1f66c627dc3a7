#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/coordinator.h"

namespace sluice {

// The flags of a coordinator, which sluice-coordinator and the commands that
// hold one have. Each function declares one that several of them have, as they
// stand at different places in help; what differs is left to the caller.
struct CoordinatorFlags {
  Coordinator::Options options;  // flags that need no reading are bound to it
  std::string model, dtype = "auto", load_format = "auto";
  std::string plan = "off", split = "even", generation_config = "auto";
  bool no_refill = false, reserve_kv = false;

  CLI::Option* AddGenerationConfig(CLI::App* app);
  CLI::Option* AddMaxModelLen(CLI::App* app);
  CLI::Option* AddMaxStepTokens(CLI::App* app, const std::string& aliases = "");
  CLI::Option* AddNoRefill(CLI::App* app);
  CLI::Option* AddNumMicrobatches(CLI::App* app);
  CLI::Option* AddPolicy(CLI::App* app);
  CLI::Option* AddReserveKv(CLI::App* app);

  // `options`, and what the other flags say. kInvalidArgument for a value out
  // of its range.
  absl::StatusOr<Coordinator::Options> Read() const;
};

}  // namespace sluice
