#include "tests/bench/paper/paper_fit.h"

#include <cmath>

#include "absl/algorithm/container.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// The loss of a constant off its prior value, as a share of that of a run off
// by as much.
constexpr double kPriorWeight = 0.02;

absl::StatusOr<double> Loss(const std::vector<PublishedRun>& runs,
                            FittedConstants constants, FittedConstants prior,
                            const std::vector<std::string>& free) {
  double loss = 0;
  for (const PublishedRun& run : runs) {
    SLUICE_ASSIGN_OR_RETURN(const PaperPrediction prediction,
                            PredictRun(run, constants));
    const double off =
        std::log(prediction.tokens_per_second / run.tokens_per_second);
    loss += off * off;
  }
  const auto members = constants.Members();
  const auto priors = prior.Members();
  for (size_t i = 0; i < members.size(); ++i) {
    if (!absl::c_linear_search(free, members[i].first)) continue;
    const double off = std::log(*members[i].second / *priors[i].second);
    loss += kPriorWeight * off * off;
  }
  return loss;
}

}  // namespace

absl::StatusOr<FittedConstants> Fit(absl::string_view hardware,
                                    const std::vector<PublishedRun>& runs) {
  std::vector<PublishedRun> fitted;
  for (const PublishedRun& run : runs) {
    if (run.hardware == hardware && WasFitted(run)) fitted.push_back(run);
  }
  const FittedConstants prior = PriorFor(hardware);
  const std::vector<std::string> free = FreeConstants(hardware);
  FittedConstants best = prior;
  SLUICE_ASSIGN_OR_RETURN(double least, Loss(fitted, best, prior, free));
  for (double step = 0.5; step > 1e-5;) {
    bool better = false;
    for (const std::string& name : free) {
      for (const double factor : {std::exp(step), std::exp(-step)}) {
        FittedConstants next = best;
        for (auto& [member, value] : next.Members()) {
          if (member == name) *value *= factor;
        }
        SLUICE_ASSIGN_OR_RETURN(const double loss,
                                Loss(fitted, next, prior, free));
        if (loss >= least) continue;
        least = loss;
        best = next;
        better = true;
      }
    }
    if (!better) step /= 2;
  }
  return best;
}

}  // namespace sluice
