#include <cstdio>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "tests/bench/paper/paper_fit.h"

// Prints the constants that belong into fitted.cc.

namespace sluice {
namespace {

absl::Status Print() {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<PublishedRun> runs, MeasuredRuns());
  for (const std::string hardware : {"t4", "a100"}) {
    SLUICE_ASSIGN_OR_RETURN(FittedConstants constants, Fit(hardware, runs));
    const std::vector<std::string> free = FreeConstants(hardware);
    for (const auto& [name, value] : constants.Members()) {
      if (!absl::c_linear_search(free, name)) continue;
      absl::PrintF("%s %s = %.4g\n", hardware, name, *value);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice

int main() {
  const absl::Status status = sluice::Print();
  if (!status.ok()) absl::FPrintF(stderr, "%s\n", status.ToString());
  return status.ok() ? 0 : 1;
}
