#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/coordinator.h"
#include "runtime/model/model_path.h"

namespace sluice {

// The flags of a coordinator, for sluice-coordinator and the commands that run
// one. Each function declares one flag that several of them have, as its place
// in help differs; other differences are left to the caller.
struct CoordinatorFlags {
  Coordinator::Options options;  // some flags are bound to it directly
  std::string model, dtype = "auto", load_format = "auto";
  std::string plan = "off", split = "even", generation_config = "auto";
  std::string replicas = "1", share_prefixes = "on", order = "input";
  bool no_refill = false, reserve_kv = false;
  double keep_interval = 60;  // seconds

  CLI::Option* AddGenerationConfig(CLI::App* app);
  CLI::Option* AddKeepInterval(CLI::App* app);
  CLI::Option* AddLinkDType(CLI::App* app);
  CLI::Option* AddMaxModelLen(CLI::App* app);
  CLI::Option* AddMaxStepTokens(CLI::App* app, const std::string& aliases = "");
  CLI::Option* AddNoRefill(CLI::App* app);
  CLI::Option* AddNumMicrobatches(CLI::App* app);
  CLI::Option* AddOrder(CLI::App* app);
  CLI::Option* AddPolicy(CLI::App* app);
  CLI::Option* AddPromptDetails(CLI::App* app);
  CLI::Option* AddReplicas(CLI::App* app);
  CLI::Option* AddReserveKv(CLI::App* app);
  CLI::Option* AddScoreTokens(CLI::App* app);
  CLI::Option* AddSharePrefixes(CLI::App* app);

  // Returns `options` with the other flags' values. kInvalidArgument for a
  // value out of its range; the errors of FindModel for a model of which
  // `files` (with random weights: config.json) are not there.
  absl::StatusOr<Coordinator::Options> Read(ModelFiles files) const;
};

}  // namespace sluice
