#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/text/bytes_text.h"
#include "scheduler/plan/partition.h"
#include "scheduler/plan/plan_candidates.h"
#include "scheduler/plan/policy_search.h"

namespace sluice {
namespace {

// Sequences shorter than this are no remedy.
constexpr int32_t kMinPositions = 16;

// A candidate's lack in the stage that lacks most, the layers split evenly.
struct Lack {
  StageQuestion question;  // without steps: capacities don't depend on them
  StageShortage shortage;
  bool fits() const { return shortage.missing_bytes <= 0; }
};

absl::StatusOr<Lack> LackOf(const PlanRequest& request, const Candidate& c) {
  std::optional<Lack> max;
  const std::vector<LayerRange> ranges =
      SplitEvenly(request.model.num_layers, NumStages(request));
  for (size_t s = 0; s < ranges.size(); ++s) {
    Lack lack = {.question = {.request = &request,
                              .machine = static_cast<int>(s),
                              .layers = ranges[s],
                              .block = c.block,
                              .weights = c.weights,
                              .kv = c.kv}};
    SLUICE_ASSIGN_OR_RETURN(lack.shortage, ShortageOf(lack.question));
    if (!max || lack.shortage.missing_bytes > max->shortage.missing_bytes) {
      max = std::move(lack);
    }
  }
  return *max;
}

bool DoesFit(const PlanRequest& request, const Candidate& c) {
  const auto lack = LackOf(request, c);
  return lack.ok() && lack->fits();
}

// Adds a balanced split if machines that hold more could take more layers.
void AddBalancedSplit(const PlanRequest& request, const Candidate& c,
                      std::vector<std::string>* remedies) {
  if (request.split == Split::kBalanced || NumStages(request) == 1) return;
  std::vector<std::vector<int>> machines;
  for (int m = 0; m < static_cast<int>(request.machines.size()); ++m) {
    machines.push_back({m});
  }
  const auto layers_that_fit = [&](int machine, LayerRange layers) {
    int64_t programs = 0;
    const auto answer = SolveStage({.request = &request,
                                    .machine = machine,
                                    .layers = layers,
                                    .block = c.block,
                                    .weights = c.weights,
                                    .kv = c.kv},
                                   &programs);
    return answer.ok() && answer->fits
               ? static_cast<double>(layers.size())
               : std::numeric_limits<double>::infinity();
  };
  if (!SplitBalanced(request.model.num_layers, machines, layers_that_fit)
           .empty()) {
    remedies->push_back("a balanced split of the layers");
  }
}

void AddSmallerBlock(const PlanRequest& request, const Candidate& c,
                     std::vector<std::string>* remedies) {
  for (int32_t gbs = c.block.gbs / 2; gbs >= 1; gbs /= 2) {
    Candidate smaller = c;
    smaller.block.gbs = gbs;
    if (!DoesFit(request, smaller)) continue;
    remedies->push_back(absl::StrCat("gbs=", gbs));
    return;
  }
  if (c.block.num_microbatches == 1 && c.block.num_blocks == 1) return;
  Candidate smallest = c;
  smallest.block.gbs = smallest.block.num_microbatches =
      smallest.block.num_blocks = 1;
  if (DoesFit(request, smallest)) {
    remedies->push_back("gbs=1, num-microbatches=1 and one block");
  }
}

void AddShorterSequences(const PlanRequest& request, const Candidate& c,
                         std::vector<std::string>* remedies) {
  for (int32_t positions = request.longest() / 2; positions >= kMinPositions;
       positions /= 2) {
    PlanRequest shorter = request;
    shorter.max_model_len = positions;
    if (!DoesFit(shorter, c)) continue;
    remedies->push_back(
        absl::StrCat("sequences of at most ", positions, " tokens"));
    return;
  }
}

void AddFormats(const PlanRequest& request, const Candidate& c,
                WeightFormat Candidate::*format, absl::string_view key,
                std::vector<std::string>* remedies) {
  if (c.*format != WeightFormat::kFull) return;
  for (const WeightFormat tried : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    Candidate compressed = c;
    compressed.*format = tried;
    if (!DoesFit(request, compressed)) continue;
    remedies->push_back(absl::StrCat(key, "=", WeightFormatName(tried)));
    return;
  }
}

}  // namespace

absl::StatusOr<Shortage> FindShortage(const PlanRequest& request) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  // The least lack of any formats that may be chosen.
  std::optional<Lack> min;
  Candidate smallest;
  for (const WeightFormat weights : request.choices.weight_formats) {
    for (const WeightFormat kv : request.choices.kv_formats) {
      const Candidate c = {SmallestBlock(request), weights, kv};
      SLUICE_ASSIGN_OR_RETURN(Lack lack, LackOf(request, c));
      if (min && lack.shortage.missing_bytes >= min->shortage.missing_bytes) {
        continue;
      }
      min = std::move(lack);
      smallest = c;
    }
  }
  Shortage shortage = {.worker = request.machines[min->question.machine].name,
                       .limit = min->shortage.limit};
  if (min->fits()) return shortage;
  shortage.what = min->shortage.what;
  shortage.bytes = min->shortage.missing_bytes;

  std::vector<std::string>* remedies = &shortage.remedies;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<CapacityRemedy> more,
                          RemediesOf(min->question));
  for (const CapacityRemedy& remedy : more) {
    remedies->push_back(absl::StrCat(BytesText(remedy.missing_bytes), " more ",
                                     remedy.what, " for ", shortage.worker));
  }
  AddBalancedSplit(request, smallest, remedies);
  AddSmallerBlock(request, smallest, remedies);
  AddShorterSequences(request, smallest, remedies);
  AddFormats(request, smallest, &Candidate::weights, "compress-weights",
             remedies);
  AddFormats(request, smallest, &Candidate::kv, "compress-kv", remedies);
  return shortage;
}

absl::Status ShortageError(const PlanRequest& request) {
  SLUICE_ASSIGN_OR_RETURN(const Shortage shortage, FindShortage(request));
  if (shortage.what.empty()) {
    return absl::ResourceExhaustedError(
        "no split of the layers was found that fits all machines");
  }
  return ResourceExhausted(
      "no policy fits: ", shortage.what, " of worker ", shortage.worker,
      " is short by ", BytesText(shortage.bytes), ", of ",
      BytesText(shortage.limit), " that there are",
      shortage.remedies.empty() ? "" : "; what would fit: ",
      absl::StrJoin(shortage.remedies, "; or "));
}

}  // namespace sluice
