#include "server/cli/plan/count_input.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/job_manager.h"

namespace sluice {
namespace {

constexpr size_t kUploadBytes = 1 << 20;

}  // namespace

absl::StatusOr<LengthHistogram> CountInput(const JobFlags& job,
                                           const StopSignals& signals,
                                           Coordinator& coordinator) {
  SLUICE_ASSIGN_OR_RETURN(const v1::JobSpec spec, job.ToSpec());
  SLUICE_ASSIGN_OR_RETURN(auto input, InputFile::Open(job.input, &signals));
  SLUICE_RETURN_IF_ERROR(InputFile::CheckKind(job.input, spec));
  SLUICE_ASSIGN_OR_RETURN(auto upload, coordinator.jobs().BeginUpload(spec));
  std::string buffer(kUploadBytes, '\0');
  while (input->stream()) {
    input->stream().read(buffer.data(),
                         static_cast<std::streamsize>(buffer.size()));
    const auto got = static_cast<size_t>(input->stream().gcount());
    SLUICE_RETURN_IF_ERROR(
        upload->Append(absl::string_view(buffer.data(), got)));
  }
  SLUICE_RETURN_IF_ERROR(input->stream().status());
  SLUICE_ASSIGN_OR_RETURN(const v1::Job job_state, upload->Commit());
  const v1::RequestCounts& counts = job_state.counts();
  std::string bad;
  if (counts.failed() > 0) {
    bad = absl::StrCat(counts.failed(), " of ", counts.total(),
                       " lines are no valid requests");
    SLUICE_ASSIGN_OR_RETURN(
        const auto errors, coordinator.jobs().ReadErrors(job_state.id(), 0, 1));
    if (!errors.empty()) {
      absl::StrAppend(&bad, "; the first: ", errors.front().message);
    }
  }
  SLUICE_ASSIGN_OR_RETURN(LengthHistogram lengths,
                          coordinator.jobs().PendingLengths());
  if (lengths.requests() == 0) {
    return InvalidArgument(job.input, ": no request to plan for",
                           bad.empty() ? "" : ": ", bad);
  }
  if (!bad.empty()) {
    std::cerr << "sluice: left out of the plan: " << EscapeLinesForTerminal(bad)
              << "\n";
  }
  return lengths;
}

}  // namespace sluice
