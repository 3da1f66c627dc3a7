#include "server/coordinator_flags.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/flags/foreign_flags.h"
#include "common/host/logging.h"
#include "common/limits.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "scheduler/plan/split.h"

namespace sluice {

CLI::Option* CoordinatorFlags::AddGenerationConfig(CLI::App* app) {
  return app
      ->add_option("--generation-config", generation_config,
                   "auto: requests that do not say get the values of the "
                   "model's generation_config.json; none: as if it had none")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
}

CLI::Option* CoordinatorFlags::AddKeepInterval(CLI::App* app) {
  return app
      ->add_option("--keep-interval", keep_interval,
                   "seconds after which the tokens of unfinished answers are "
                   "stored again: kill -9 loses what came since, Ctrl-C and "
                   "SIGTERM nothing")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str()
      ->type_name("SECONDS");
}

CLI::Option* CoordinatorFlags::AddLinkDType(CLI::App* app) {
  return app
      ->add_option_function<std::string>(
          "--link-dtype",
          [this](const std::string& dtype) {
            options.policy.push_back(absl::StrCat("link-dtype=", dtype));
          },
          "number format of activations between workers: float32, or bfloat16, "
          "which halves the bytes, but makes answers depend on how the layers "
          "are split; default: float32")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
}

CLI::Option* CoordinatorFlags::AddMaxModelLen(CLI::App* app) {
  return app->add_option(
      "--max-model-len", options.max_model_len,
      "positions of prompt and answer; default: the model's");
}

CLI::Option* CoordinatorFlags::AddMaxStepTokens(CLI::App* app,
                                                const std::string& aliases) {
  return app->add_option(
      absl::StrCat("--max-step-tokens", aliases), options.max_step_tokens,
      "new tokens of a micro-batch in one step; default: 2048, or planned");
}

CLI::Option* CoordinatorFlags::AddNoRefill(CLI::App* app) {
  return app->add_flag("--no-refill", no_refill,
                       "start new sequences only when a whole block has ended");
}

CLI::Option* CoordinatorFlags::AddNumMicrobatches(CLI::App* app) {
  return app->add_option("--num-microbatches", options.num_microbatches,
                         "micro-batches in a block; default: 1, or planned");
}

CLI::Option* CoordinatorFlags::AddOrder(CLI::App* app) {
  return app
      ->add_option("--order", order,
                   "which waiting requests go first: input: as they stand; "
                   "longest: of a thousand, those expected to take longest, "
                   "which ends a job of unlike lengths sooner; answers are the "
                   "same")
      ->check(CLI::IsMember({"input", "longest"}))
      ->capture_default_str();
}

CLI::Option* CoordinatorFlags::AddPolicy(CLI::App* app) {
  AddFormatAliases(app, &options.policy);
  return app->add_option(
      "--policy", options.policy,
      absl::StrCat(
          "key=value pairs, or @FILE of them, which win over other flags; may "
          "be repeated. Keys: ",
          PolicyKeyNames([](const PolicyKey&) { return true; }, " ", " "),
          " (see docs/memory.md)"));
}

CLI::Option* CoordinatorFlags::AddPromptDetails(CLI::App* app) {
  return app->add_flag(
      "--enable-prompt-tokens-details", options.prompt_details,
      "have usage say how many tokens of a prompt other requests had computed, "
      "which may differ between runs");
}

CLI::Option* CoordinatorFlags::AddReplicas(CLI::App* app) {
  return app
      ->add_option(
          "--replicas", replicas,
          "pipelines that the workers form, each of which has the "
          "whole model and takes a part of the requests; auto: as many "
          "as are fastest by the workers' profiles")
      ->check([](const std::string& value) -> std::string {
        int32_t number = 0;
        if (value == "auto" || (absl::SimpleAtoi(value, &number) &&
                                number >= 1 && number <= kMaxWorkers)) {
          return "";
        }
        return absl::StrCat("must be auto or a whole number from 1 to ",
                            kMaxWorkers, ", not ", EscapeForTerminal(value));
      })
      ->type_name("N|auto")
      ->capture_default_str();
}

CLI::Option* CoordinatorFlags::AddReserveKv(CLI::App* app) {
  return app->add_flag(
      "--reserve-kv", reserve_kv,
      "reserve the KV cache that a sequence may come to need from its start "
      "on, instead of sharing it by need");
}

CLI::Option* CoordinatorFlags::AddScoreTokens(CLI::App* app) {
  return app
      ->add_option("--score-tokens", options.score_tokens,
                   "the two tokens with which a reranker answers /v1/score and "
                   "/v1/rerank, "
                   "as no,yes; default: as the model's files say")
      ->type_name("NO,YES");
}

CLI::Option* CoordinatorFlags::AddSharePrefixes(CLI::App* app) {
  return app
      ->add_option("--share-prefixes", share_prefixes,
                   "on: compute what several prompts begin with once, and "
                   "keep it for those that wait; answers are the same")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
}

absl::StatusOr<Coordinator::Options> CoordinatorFlags::Read(
    ModelFiles files) const {
  if (model.empty()) {
    return absl::InvalidArgumentError(
        "--model is empty; give a model's directory, or its name in the "
        "Hugging Face cache");
  }
  Coordinator::Options read = options;
  SLUICE_ASSIGN_OR_RETURN(read.dtype, ParseDTypeChoice(dtype));
  read.dummy_weights = load_format == "dummy";
  SLUICE_ASSIGN_OR_RETURN(
      read.model_dir,
      FindModel(model, read.dummy_weights ? ModelFiles::kConfig : files));
  if (read.model_dir != model)
    LogInfo("--model ", model, ": ", read.model_dir.string());
  read.plan_jobs = plan == "on";
  read.split = split == "balanced" ? Split::kBalanced : Split::kEven;
  read.generation_config = generation_config == "auto";
  read.replicas = 0;  // auto
  if (replicas != "auto" && !absl::SimpleAtoi(replicas, &read.replicas)) {
    return InvalidArgument("--replicas ", replicas, " is no number");
  }
  read.refill = !no_refill;
  read.keep_interval = absl::Seconds(keep_interval);
  read.kv_by_need = !reserve_kv;
  read.share_prefixes = share_prefixes == "on";
  read.order = order == "longest" ? Order::kLongest : Order::kArrival;
  return read;
}

}  // namespace sluice
