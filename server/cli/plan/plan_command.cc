// `sluice plan` and `sluice simulate` predict a job's time on machines, which
// need not exist.

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/codec/profile_json.h"
#include "common/flags/checks.h"
#include "common/flags/command_line.h"
#include "common/flags/shared_flags.h"
#include "common/policy_keys.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/threads/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/planning/length_histogram.h"
#include "coordinator/planning/plan_json.h"
#include "coordinator/planning/policy_choices.h"
#include "scheduler/plan/layout.h"
#include "scheduler/plan/partition.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/rank_layout.h"
#include "scheduler/simulate/simulator.h"
#include "server/cli/commands.h"
#include "server/cli/jobs/job_io.h"
#include "server/cli/jobs/progress.h"
#include "server/cli/plan/cluster_file.h"
#include "server/cli/plan/count_input.h"
#include "server/cli/plan/plan_report.h"
#include "server/cli/run/cluster_flags.h"
#include "server/cli/run/run_state.h"
#include "server/coordinator_flags.h"
#include "server/job_client.h"
#include "server/local_profile.h"

namespace sluice {
namespace {

constexpr int kFrontierPoints = 12;

// The flags of both commands: a model, a workload, machines.
struct PlanFlags {
  CoordinatorFlags coordinator;
  MachineFlags machine;  // only its memory and disk
  TableFlags table;
  std::string input, format = "auto", lengths, cluster, plan, output, svg;
  std::vector<std::string> profiles, allow;
  int32_t max_tokens = 0, workers = 0, parts = 0;
  double latency = 0;
  bool running = false, json = false, frontier = false;

  void AddTo(CLI::App* app);
};

// The names of the policy's keys that have this part in a plan.
std::string KeysOf(PlanRole role) {
  return PolicyKeyNames(
      [role](const PolicyKey& key) { return key.plan == role; }, ", ", ", ");
}

void PlanFlags::AddTo(CLI::App* app) {
  Coordinator::Options& options = coordinator.options;
  AddModel(app, &coordinator.model,
           " (its config.json is enough with --lengths)")
      ->required()
      ->group(kMainGroup);
  app->add_option("-i,--input", input,
                  "the job's file: JSONL, text, CSV or TSV")
      ->group(kMainGroup)
      ->type_name("FILE");
  app->add_option("--lengths", lengths,
                  "instead of a file: PROMPT:GENERATED:REQUESTS, several with "
                  "commas, as 512:32:10000")
      ->group(kMainGroup);
  app->add_option("--profile", profiles,
                  "a machine's profile (sluice profile -o FILE); repeated, in "
                  "the order of the stages; default: this machine's")
      ->group(kMainGroup)
      ->type_name("FILE");
  app->add_option("--input-format,--format", format, TableFlags::kFormatHelp)
      ->capture_default_str();
  table.AddTo(app);
  app->add_option("--max-tokens", max_tokens,
                  "tokens to generate where the input does not say")
      ->check(AtLeast(1));
  AddTensorParallel(app, &machine.tensor_parallel);
  app->add_option("--host-memory", machine.host_memory,
                  "of this machine, as in sluice run, or of each --profile")
      ->type_name("SIZE");
  app->add_option("--disk-dir", machine.disk_dir,
                  "of this machine, as in sluice run")
      ->type_name("DIR");
  app->add_option("--disk-space", machine.disk_space,
                  "of this machine, as in sluice run, or of each --profile")
      ->type_name("SIZE");
  app->add_option("--load-format", coordinator.load_format,
                  "auto or dummy, as in sluice run; a plan reads no weights in "
                  "any case")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app->add_option("--workers", workers,
                  "so many workers on each machine; default: 1")
      ->check(CLI::Range(1, 256));
  app->add_option("--parts", parts,
                  "each machine has so many parts as its profile says, GPUs or "
                  "NUMA nodes: stages, replicas or, if the profile has an "
                  "exchange, ranks of a stage, as is best; default: 1")
      ->check(WholeFrom(1, kMaxRanks));
  app->add_option(
      "--cluster", cluster,
      "a file of machines: {\"machines\": [{\"profile\": "
      "\"a.json\", \"count\": 8, \"parts\": 4}, ...]}, or \"workers\" "
      "for \"parts\"");
  app->add_flag("--running", running,
                "the machines of the running cluster (--coordinator)");
  AddDType(app, &coordinator.dtype);
  app->add_option("--split", coordinator.split,
                  "of the layers: even or balanced")
      ->check(CLI::IsMember({"even", "balanced"}))
      ->capture_default_str();
  coordinator.AddReplicas(app);
  app->add_option("--max-model-len", options.max_model_len,
                  "positions of prompt and answer; default: the longest "
                  "request's");
  app->add_option("--generation-config", coordinator.generation_config,
                  "auto or none, as in sluice run: how many tokens requests "
                  "get that do not say")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  app->add_option(
      "--policy", options.policy,
      absl::StrCat("key=value pairs that are not to be chosen (",
                   KeysOf(PlanRole::kChosen), "); with shares of tiers (",
                   KeysOf(PlanRole::kShares),
                   ") nothing is chosen, and what the policy would do is "
                   "predicted"));
  app->add_option("--gbs", options.gbs, "sequences in a micro-batch");
  coordinator.AddLinkDType(app);
  app->add_option("--num-microbatches", options.num_microbatches,
                  "micro-batches in a block");
  app->add_option("--blocks", options.num_blocks, "blocks in flight");
  app->add_option("--max-step-tokens", options.max_step_tokens,
                  "new tokens of a micro-batch in one step");
  app->add_option("--allow", allow,
                  "formats that may be chosen besides the model's own: int8, "
                  "int4 (weights), kv-int8, kv-int4. They change answers")
      ->check(CLI::IsMember({"int8", "int4", "kv-int8", "kv-int4"}));
  coordinator.AddNoRefill(app);
  coordinator.AddSharePrefixes(app);
  app->add_flag("--json", json, "JSON instead of tables");
}

absl::StatusOr<LengthHistogram> ParseLengths(const std::string& text) {
  LengthHistogram lengths;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, ':');
    int32_t prompt = 0;
    int32_t output = 0;
    int64_t count = 0;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &prompt) ||
        !absl::SimpleAtoi(fields[1], &output) ||
        !absl::SimpleAtoi(fields[2], &count) || prompt < 1 || output < 1 ||
        count < 1) {
      return InvalidArgument(
          "--lengths: \"", part,
          "\" is not PROMPT:GENERATED:REQUESTS, numbers from 1 on");
    }
    lengths.Add(prompt, output, count);
  }
  return lengths;
}

// The model and the lengths of an input's requests, read by the coordinator's
// code.
struct Case {
  PlanRequest request;
  int32_t replicas = 1;  // see MakeLayout
  std::unique_ptr<TemporaryStateDir> state_dir;
  std::unique_ptr<Coordinator> coordinator;
};

// The layout of one pipeline.
Layout LayoutOf(const PlanRequest& request, Plan plan) {
  Layout layout;
  PipelinePlan& pipeline = layout.pipelines.emplace_back();
  for (size_t m = 0; m < request.machines.size(); ++m) {
    pipeline.machines.push_back(static_cast<int>(m));
  }
  layout.seconds = plan.seconds;
  layout.tokens_per_second = plan.tokens_per_second;
  pipeline.plan = std::move(plan);
  return layout;
}

// Workers of one machine may share its cores, which a user who copied a profile
// may not expect.
void NoteSharedMachines(const std::vector<std::string>& paths,
                        std::vector<MachineProfile> machines) {
  SeparateMachines(&machines);
  std::map<std::string, std::vector<std::string>> files;  // by machine
  for (size_t i = 0; i < machines.size(); ++i) {
    if (!machines[i].machine.empty()) {
      files[machines[i].machine].push_back(paths[i]);
    }
  }
  for (const auto& [machine, same] : files) {
    if (same.size() < 2) continue;
    std::cerr << "sluice: " << EscapeForTerminal(absl::StrJoin(same, " and "))
              << " are one machine (\"machine\" is the same), whose cores "
                 "their workers share; for several of a kind give --cluster "
                 "with \"count\", or make \"machine\" differ\n";
  }
}

// Checks that no budget of this machine is given beside other machines.
absl::Status CheckBudgets(const PlanFlags& flags) {
  const bool elsewhere = flags.running || !flags.cluster.empty();
  const char* machines = flags.running ? "--running" : "--cluster";
  if (elsewhere && (!flags.machine.host_memory.empty() ||
                    !flags.machine.disk_space.empty())) {
    return InvalidArgument(
        "--host-memory and --disk-space do not go with ", machines,
        ", whose machines have budgets of their own: edit these");
  }
  if (!flags.machine.disk_dir.empty() &&
      (elsewhere || !flags.profiles.empty())) {
    return InvalidArgument(
        "--disk-dir is of this machine, and does not go with ",
        elsewhere ? machines : "--profile",
        ", where each machine has its own disk");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MachineProfile>> ReadMachines(
    const PlanFlags& flags, const CoordinatorPlace& coordinator) {
  std::vector<MachineProfile> machines;
  if (!flags.cluster.empty()) return ReadClusterFile(flags.cluster);
  if (flags.running) {
    SLUICE_ASSIGN_OR_RETURN(const auto client, ConnectTo(coordinator));
    SLUICE_ASSIGN_OR_RETURN(const v1::ClusterState state,
                            client->GetClusterState());
    for (const v1::WorkerInfo& worker : state.workers()) {
      if (worker.profile().empty()) {
        return FailedPrecondition(
            "worker '", worker.name(),
            "' has no profile; start it without --no-profile");
      }
      absl::StatusOr<MachineProfile> profile =
          ProfileFromJson(worker.profile());
      if (!profile.ok()) {
        return Annotate(profile.status(), absl::StrCat(worker.name()));
      }
      machines.push_back(*std::move(profile));
    }
    if (machines.empty()) {
      return FailedPrecondition("no worker is registered at ",
                                coordinator.address);
    }
    return machines;
  }
  for (const std::string& path : flags.profiles) {
    SLUICE_ASSIGN_OR_RETURN(MachineProfile profile, ReadProfileFile(path));
    if (profile.name.empty()) {
      profile.name = std::filesystem::path(path).stem().string();
    }
    SLUICE_RETURN_IF_ERROR(SetBudgets(flags.machine.host_memory,
                                      flags.machine.disk_space, &profile));
    machines.push_back(std::move(profile));
  }
  NoteSharedMachines(flags.profiles, machines);
  if (machines.empty()) {
    LocalProfileOptions options;
    options.machine = flags.machine;
    options.fresh = false;
    ProgressDisplay display(Clock::Real(), flags.json);
    SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                            LocalProfile(options, ShowProfiling(&display)));
    if (!absl::StartsWith(flags.machine.tensor_parallel, "auto")) {
      SLUICE_ASSIGN_OR_RETURN(profile, profile.WithRanks(0));
    }
    machines.push_back(std::move(profile));
  }
  std::vector<MachineProfile> parts;
  for (const MachineProfile& machine : machines) {
    if (flags.parts > 1) {
      AddParts(machine, flags.parts, &parts);
    } else {
      AddWorkers(machine, std::max(1, flags.workers), &parts);
    }
  }
  return parts;
}

// Checks that --policy says nothing that a plan takes no notice of.
absl::Status CheckPolicy(const std::vector<std::string>& texts) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Plan> plans, PlansNamedBy(texts));
  if (!plans.empty()) {
    return InvalidArgument("--policy ", texts.front(),
                           " is a plan already; `sluice simulate --plan ",
                           texts.front().substr(1), "` follows it");
  }
  if (NamesFractions(texts)) return absl::OkStatus();
  Policy policy;
  for (const std::string& text : texts) {
    SLUICE_RETURN_IF_ERROR(UpdatePolicy(text, &policy));
  }
  const auto aside = [](const PolicyKey& key) {
    return key.plan == PlanRole::kAside;
  };
  if (PolicyValues(policy, aside) == PolicyValues(Policy(), aside)) {
    return absl::OkStatus();
  }
  return InvalidArgument("--policy: plans are made for ",
                         PolicyValues(Policy(), aside, ", ", " and "),
                         "; leave these out, or give the shares of tiers (",
                         KeysOf(PlanRole::kShares),
                         ") beside them, for a prediction of that policy");
}

absl::StatusOr<Case> MakeCase(const PlanFlags& flags,
                              const CoordinatorPlace& coordinator) {
  if (flags.input.empty() == flags.lengths.empty()) {
    return absl::InvalidArgumentError(
        "say what is to be generated: -i FILE or --lengths, one of them");
  }
  if (!flags.cluster.empty() + flags.running + !flags.profiles.empty() > 1) {
    return absl::InvalidArgumentError(
        "say for which machines once: --profile, --cluster or --running");
  }
  if ((!flags.cluster.empty() || flags.running) && flags.workers > 0) {
    return InvalidArgument(
        "--workers is of this machine or of each --profile; ",
        flags.running ? "--running has the workers that there are"
                      : "in a --cluster file, \"workers\" says it");
  }
  SLUICE_RETURN_IF_ERROR(CheckBudgets(flags));
  SLUICE_RETURN_IF_ERROR(CheckPolicy(flags.coordinator.options.policy));
  if (flags.parts > 1 && flags.workers > 1) {
    return absl::InvalidArgumentError(
        "--workers share a machine's cores, --parts have cores of their own: "
        "give one of them");
  }
  if (flags.parts > 1 && (!flags.cluster.empty() || flags.running)) {
    return absl::InvalidArgumentError(
        "--parts is of each --profile; a --cluster file has \"parts\" of its "
        "own, and running workers say what they are parts of");
  }
  Case c;
  SLUICE_ASSIGN_OR_RETURN(c.state_dir,
                          TemporaryStateDir::Make(coordinator.signals));
  const Coordinator::Options& fixed = flags.coordinator.options;
  SLUICE_ASSIGN_OR_RETURN(Coordinator::Options options,
                          flags.coordinator.Read(ModelFiles::kConfig));
  options.state_dir = c.state_dir->path();
  options.dummy_weights = true;  // only descriptions are read
  options.num_blocks = 0;        // set by the plan
  c.request.split = options.split;
  c.replicas = options.replicas;
  // Before this machine is measured.
  const int32_t here = std::max(1, flags.workers) * std::max(1, flags.parts);
  if (flags.cluster.empty() && !flags.running && flags.profiles.empty() &&
      c.replicas > here) {
    return InvalidArgument("--replicas ", c.replicas,
                           " needs as many workers at least: --workers says "
                           "how many share this machine");
  }
  c.request.refill = options.refill;
  SLUICE_ASSIGN_OR_RETURN(c.coordinator,
                          Coordinator::Create(std::move(options)));
  LengthHistogram lengths;
  if (flags.input.empty()) {
    SLUICE_ASSIGN_OR_RETURN(lengths, ParseLengths(flags.lengths));
  } else {
    JobFlags job;
    job.input = flags.input;
    job.format = flags.format;
    job.table = flags.table;
    if (flags.max_tokens > 0) job.max_tokens = flags.max_tokens;
    SLUICE_ASSIGN_OR_RETURN(
        lengths, CountInput(job, *coordinator.signals, *c.coordinator));
  }
  PlanRequest& request = c.request;
  for (const LengthClass& lengths_of : lengths.ToWorkload().classes) {
    const int64_t positions = int64_t{lengths_of.prompt} + lengths_of.output;
    if (positions <= c.coordinator->max_model_len()) continue;
    return InvalidArgument("--lengths: requests of ", positions,
                           " positions, prompt and answer, but there are only ",
                           c.coordinator->max_model_len(),
                           " (--max-model-len)");
  }
  request.model = c.coordinator->model();
  request.dtype = c.coordinator->policy().dtype;
  request.workload = lengths.ToWorkload();
  request.max_latency_seconds = flags.latency;
  request.max_model_len = c.coordinator->max_model_len();
  if (fixed.max_model_len > 0) request.kv_positions = request.max_model_len;
  if (!NamesFractions(fixed.policy)) {
    SLUICE_ASSIGN_OR_RETURN(request.choices, ChoicesLeftBy(fixed.policy));
  }
  const auto fix = [](int32_t value, std::vector<int32_t>* list) {
    if (value > 0) *list = {value};
  };
  fix(fixed.gbs, &request.choices.gbs);
  fix(fixed.num_microbatches, &request.choices.num_microbatches);
  fix(fixed.num_blocks, &request.choices.num_blocks);
  fix(fixed.max_step_tokens, &request.choices.max_step_tokens);
  for (const std::string& format : flags.allow) {
    (format[0] == 'k' ? request.choices.kv_formats
                      : request.choices.weight_formats)
        .push_back(format.find("int8") != std::string::npos
                       ? WeightFormat::kInt8
                       : WeightFormat::kInt4);
  }
  SLUICE_ASSIGN_OR_RETURN(request.machines, ReadMachines(flags, coordinator));
  SeparateMachines(&request.machines);
  return c;
}

// Checks the outputs before a search that takes long.
absl::Status CheckOutputs(const PlanFlags& flags) {
  std::vector<NamedInput> inputs = {{flags.input, "--input"},
                                    {flags.cluster, "--cluster"}};
  for (const std::string& path : flags.profiles) {
    inputs.push_back({path, "--profile"});
  }
  std::unique_ptr<OutputFile> output;
  std::unique_ptr<OutputFile> svg;
  if (!flags.output.empty()) {
    SLUICE_ASSIGN_OR_RETURN(output, OutputFile::Plan(flags.output, "--output"));
  }
  if (!flags.svg.empty()) {
    SLUICE_ASSIGN_OR_RETURN(svg, OutputFile::Plan(flags.svg, "--svg"));
  }
  return CheckDistinct(inputs, {output.get(), svg.get()});
}

// Whether ranks may compute stages together: those of a worker, or parts of a
// machine.
bool HasRanks(const PlanRequest& request) {
  return HasRankChoice(request.machines) ||
         std::any_of(
             request.machines.begin(), request.machines.end(),
             [](const MachineProfile& m) { return !m.part_of.empty(); });
}

absl::Status ShowFrontier(const PlanFlags& flags, const Case& c) {
  PlanRequest request = c.request;
  if (HasRanks(request)) {
    // All points have the ranks of the fastest plan.
    SLUICE_ASSIGN_OR_RETURN(RankLayout made, MakeRankLayout(request, 1));
    request.machines = std::move(made.grouping.machines);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Plan> plans,
                          Frontier(request, kFrontierPoints));
  if (flags.json) {
    std::cout << EscapeLineEnds(FrontierJson(plans).dump()) << std::endl;
  } else {
    std::cout << FrontierTable(plans) << std::flush;
  }
  if (flags.svg.empty()) return absl::OkStatus();
  std::vector<FrontierPoint> points;
  for (const Plan& plan : plans) {
    const Policy& policy = plan.stages.front().policy;
    points.push_back(
        {plan.latency_seconds, plan.tokens_per_second,
         absl::StrCat("gbs ", policy.gbs, " x ", policy.num_microbatches)});
  }
  return WriteOutputFile(
      flags.svg, "--svg",
      FrontierSvg(absl::StrCat(c.coordinator->cluster_state().model(),
                               ": throughput over latency"),
                  points));
}

// The pipelines of a job, and what else was considered.
struct Decision {
  // Those that the layout names: the request's, or groups of their parts.
  std::vector<MachineProfile> machines;
  std::vector<std::vector<int>> parts;  // of each; empty: machines are whole
  std::vector<Alternative> rejected_ranks;  // other sizes of groups
  Layout layout;
  std::vector<Alternative> rejected_plans;  // of its only pipeline
  std::vector<Alternative> rejected;        // other layouts
  int64_t candidates = 0, programs_solved = 0;
};

// Finds the best layout; or predicts a policy that says where everything lies.
absl::StatusOr<Decision> Decide(const PlanFlags& flags, const Case& c) {
  const PlanRequest& request = c.request;
  Decision decision;
  decision.machines = request.machines;
  if (!NamesFractions(flags.coordinator.options.policy)) {
    if (HasRanks(request)) {
      SLUICE_ASSIGN_OR_RETURN(RankLayout made,
                              MakeRankLayout(request, c.replicas));
      decision.machines = std::move(made.grouping.machines);
      decision.parts = std::move(made.grouping.parts);
      decision.rejected_ranks = std::move(made.rejected);
      decision.layout = std::move(made.layout.best);
      decision.rejected_plans = std::move(made.layout.rejected_plans);
      decision.rejected = std::move(made.layout.rejected);
      decision.candidates = made.layout.groups;
      return decision;
    }
    if (c.replicas == 1) {
      SLUICE_ASSIGN_OR_RETURN(PlanResult made, MakePlan(request));
      decision.layout = LayoutOf(request, std::move(made.best));
      decision.rejected_plans = std::move(made.rejected);
      decision.candidates = made.candidates;
      decision.programs_solved = made.programs_solved;
      return decision;
    }
    SLUICE_ASSIGN_OR_RETURN(LayoutResult made, MakeLayout(request, c.replicas));
    decision.layout = std::move(made.best);
    decision.rejected_plans = std::move(made.rejected_plans);
    decision.rejected = std::move(made.rejected);
    decision.candidates = made.groups;
    return decision;
  }
  if (c.replicas != 1) {
    return absl::InvalidArgumentError(
        "--replicas and shares of tiers (w, c, h) do not go together: what a "
        "given policy would do is predicted for one pipeline");
  }
  const std::vector<LayerRange> ranges = SplitEvenly(
      request.model.num_layers, static_cast<int>(request.machines.size()));
  std::vector<StageChoice> stages;
  for (size_t s = 0; s < ranges.size(); ++s) {
    stages.push_back({static_cast<int>(s), ranges[s], c.coordinator->policy()});
  }
  SLUICE_ASSIGN_OR_RETURN(
      Plan plan, EvaluatePlan(request, stages,
                              std::max(flags.coordinator.options.num_blocks,
                                       static_cast<int>(ranges.size()))));
  decision.layout = LayoutOf(request, std::move(plan));
  decision.candidates = 1;
  return decision;
}

// What the machines are: a line for each that is several parts; and the same
// for programs.
std::string GroupsTable(const PlanRequest& request, const Decision& decision) {
  std::string text;
  for (size_t m = 0; m < decision.parts.size(); ++m) {
    if (decision.machines[m].ranks == 1) continue;
    std::vector<std::string> names;
    for (const int part : decision.parts[m]) {
      names.push_back(EscapeForTerminal(request.machines[part].name));
    }
    absl::StrAppend(&text, "  ", names.front(),
                    ": tensor-parallel=", decision.machines[m].ranks);
    if (names.size() > 1) {
      absl::StrAppend(&text, " (", absl::StrJoin(names, ", "), ")");
    }
    absl::StrAppend(&text, "\n");
  }
  return text.empty() ? text : absl::StrCat("computed together:\n", text, "\n");
}
nlohmann::ordered_json GroupsJson(const PlanRequest& request,
                                  const Decision& decision) {
  auto json = nlohmann::ordered_json::array();
  for (size_t m = 0; m < decision.parts.size(); ++m) {
    auto names = nlohmann::ordered_json::array();
    for (const int part : decision.parts[m]) {
      names.push_back(request.machines[part].name);
    }
    json.push_back(
        {{"tensor_parallel", decision.machines[m].ranks}, {"parts", names}});
  }
  return json;
}

nlohmann::ordered_json AlternativesJson(const std::vector<Alternative>& all) {
  auto json = nlohmann::ordered_json::array();
  for (const Alternative& other : all) {
    json.push_back({{"description", other.description},
                    {"tokens_per_second", other.tokens_per_second},
                    {"why", other.why}});
  }
  return json;
}

absl::Status RunPlan(const PlanFlags& flags,
                     const CoordinatorPlace& coordinator) {
  if (!flags.svg.empty() && !flags.frontier) {
    return absl::InvalidArgumentError("--svg is the picture of --frontier");
  }
  if (flags.frontier && !flags.output.empty()) {
    return absl::InvalidArgumentError(
        "--frontier has many plans, of which none is written: leave --output "
        "out, or plan with the --latency of the one that is wanted");
  }
  SLUICE_RETURN_IF_ERROR(CheckOutputs(flags));
  SLUICE_ASSIGN_OR_RETURN(const Case c, MakeCase(flags, coordinator));
  if (flags.frontier) {
    if (c.replicas != 1) {
      return absl::InvalidArgumentError(
          "--frontier is of one pipeline: leave --replicas out");
    }
    return ShowFrontier(flags, c);
  }
  SLUICE_ASSIGN_OR_RETURN(const Decision decision, Decide(flags, c));
  std::vector<Plan> plans;
  for (const PipelinePlan& pipeline : decision.layout.pipelines) {
    plans.push_back(pipeline.plan);
  }
  const std::string json = PlansToJson(plans);
  if (!flags.output.empty()) {
    SLUICE_RETURN_IF_ERROR(
        WriteOutputFile(flags.output, "--output", json + "\n"));
  }
  if (flags.json) {
    nlohmann::ordered_json all = {
        {"plan", nlohmann::ordered_json::parse(json)},
        {"tokens_per_second", decision.layout.tokens_per_second},
        {"seconds", decision.layout.seconds},
        {"rejected", AlternativesJson(decision.rejected_plans)},
        {"rejected_layouts", AlternativesJson(decision.rejected)},
        {"candidates", decision.candidates},
        {"programs_solved", decision.programs_solved}};
    if (!decision.parts.empty()) {
      all["groups"] = GroupsJson(c.request, decision);
      all["rejected_tensor_parallel"] =
          AlternativesJson(decision.rejected_ranks);
    }
    std::cout << EscapeLineEnds(all.dump()) << std::endl;
  } else {
    PlanRequest grouped = c.request;
    grouped.machines = decision.machines;
    std::cout << GroupsTable(c.request, decision)
              << (plans.size() == 1
                      ? PlanTable(plans[0], decision.rejected_plans)
                      : LayoutTable(grouped, decision.layout))
              << AlternativesTable("other layouts", decision.rejected)
              << AlternativesTable("other tensor parallel groups",
                                   decision.rejected_ranks)
              << std::flush;
  }
  return absl::OkStatus();
}

absl::Status RunSimulate(const PlanFlags& flags,
                         const CoordinatorPlace& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const Case c, MakeCase(flags, coordinator));
  if (c.replicas != 1) {
    return absl::InvalidArgumentError(
        "--replicas: one pipeline is simulated; `sluice plan --replicas` "
        "simulates several as it plans");
  }
  Plan plan;
  if (flags.plan.empty()) {
    SLUICE_ASSIGN_OR_RETURN(PlanResult result, MakePlan(c.request));
    plan = std::move(result.best);
  } else {
    SLUICE_ASSIGN_OR_RETURN(std::optional<Plan> named,
                            PlanNamedBy({absl::StrCat("@", flags.plan)}));
    if (!named) {
      return InvalidArgument(flags.plan,
                             ": no plan, as sluice plan -o writes one");
    }
    std::vector<StageChoice> stages;
    for (const StagePlan& stage : named->stages) {
      stages.push_back({stage.machine, stage.layers, stage.policy});
    }
    SLUICE_ASSIGN_OR_RETURN(
        plan, EvaluatePlan(c.request, stages, named->block.num_blocks));
  }
  SLUICE_ASSIGN_OR_RETURN(const SimulationResult result,
                          Simulate(c.request, plan, SimulationOptions()));
  if (flags.json) {
    auto stages = nlohmann::ordered_json::array();
    for (size_t s = 0; s < result.stages.size(); ++s) {
      nlohmann::ordered_json busy = nlohmann::ordered_json::object();
      for (int r = 0; r < kNumResources; ++r) {
        const absl::string_view name = ResourceName(static_cast<Resource>(r));
        if (result.stages[s].busy[r] > 0) {
          busy[std::string(name.data(), name.size())] =
              result.stages[s].busy[r];
        }
      }
      stages.push_back({{"worker", plan.stages[s].worker},
                        {"utilization", result.stages[s].utilization},
                        {"busy_seconds", std::move(busy)}});
    }
    const nlohmann::ordered_json line = {
        {"seconds", result.seconds},
        {"steps", result.steps},
        {"tokens_per_second", result.tokens_per_second},
        {"latency_seconds", result.latency_seconds},
        {"predicted_tokens_per_second", plan.tokens_per_second},
        {"stages", std::move(stages)}};
    std::cout << EscapeLineEnds(line.dump()) << std::endl;
    return absl::OkStatus();
  }
  std::cout << absl::StrFormat(
      "simulated: %.4g generated tokens/s, %.4g s, %d steps; the closed form "
      "says %.4g tokens/s\n\n%-20s %10s\n",
      result.tokens_per_second, result.seconds, result.steps,
      plan.tokens_per_second, "worker", "busy");
  for (size_t s = 0; s < result.stages.size(); ++s) {
    std::cout << absl::StrFormat("%-20s %8.1f %%\n", plan.stages[s].worker,
                                 100 * result.stages[s].utilization);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                    Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "plan", "The best policy for a job, and what it would take");
  auto flags = std::make_shared<PlanFlags>();
  flags->AddTo(cmd);
  cmd->group(kPlanCommands);
  cmd->add_option("-o,--output", flags->output,
                  "write the plan here (JSON), for --policy @FILE")
      ->type_name("FILE")
      ->envname("SLUICE_PLAN_OUTPUT");
  cmd->add_option("--latency", flags->latency,
                  "seconds that a request may take at most");
  cmd->add_flag("--frontier", flags->frontier,
                "plans from the least latency to the highest throughput");
  cmd->add_option("--svg", flags->svg, "with --frontier: a picture of it");
  cmd->footer(
      "Examples:\n"
      "  sluice plan --model ./llama -i prompts.jsonl\n"
      "  sluice plan --model ./llama --lengths 512:32:10000 --profile "
      "a.json --profile b.json --split balanced -o plan.json\n"
      "  sluice run --model ./llama -i prompts.jsonl -o answers.jsonl "
      "--policy @plan.json\n"
      "  sluice plan --model ./llama --lengths 512:32:10000 --frontier "
      "--svg frontier.svg");
  cmd->callback(
      [=] { *chosen = [=] { return RunPlan(*flags, *coordinator); }; });
}

void AddSimulateCommand(CLI::App* app, const CoordinatorPlace* coordinator,
                        Command* chosen) {
  CLI::App* cmd = app->add_subcommand(
      "simulate", "A job on a cluster, event by event, without either");
  auto flags = std::make_shared<PlanFlags>();
  flags->AddTo(cmd);
  cmd->group(kPlanCommands);
  cmd->add_option("--plan-file,--plan", flags->plan,
                  "a plan (sluice plan -o); default: the best one")
      ->type_name("FILE");
  cmd->footer(
      "Examples:\n"
      "  sluice simulate --model ./llama --lengths 512:32:10000 --profile "
      "a.json --profile b.json\n"
      "  sluice simulate --model ./llama -i prompts.jsonl --cluster "
      "cluster.json --split balanced");
  cmd->callback(
      [=] { *chosen = [=] { return RunSimulate(*flags, *coordinator); }; });
}

}  // namespace sluice
