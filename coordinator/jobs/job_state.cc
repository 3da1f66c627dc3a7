#include "coordinator/jobs/job_state.h"

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

// Parses `prefix` and a positive number without sign, blanks or leading 0s.
std::optional<JobId> ParseAfter(absl::string_view prefix,
                                absl::string_view text) {
  int64_t value = 0;
  if (!absl::ConsumePrefix(&text, prefix) || text.empty() || text[0] < '1' ||
      text[0] > '9' || !absl::SimpleAtoi(text, &value) ||
      absl::StrCat(value) != text) {
    return std::nullopt;
  }
  return JobId(value);
}

constexpr char kPagePrefix[] = "before:";

}  // namespace

std::string JobStateName(v1::JobState state) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

std::string FormatJobId(JobId job) { return absl::StrCat("job_", job.value()); }

absl::StatusOr<JobId> ParseJobId(absl::string_view text) {
  const std::optional<JobId> job = ParseAfter("job_", text);
  if (!job) {
    return NotFound("no job ", QuoteForMessage(text),
                    "; ids look like job_1, and listing shows them");
  }
  return *job;
}

std::string FormatPageToken(JobId before) {
  return absl::WebSafeBase64Escape(absl::StrCat(kPagePrefix, before.value()));
}

absl::StatusOr<JobId> ParsePageToken(absl::string_view token) {
  std::string text;
  std::optional<JobId> job;
  if (absl::WebSafeBase64Unescape(token, &text)) {
    job = ParseAfter(kPagePrefix, text);
  }
  if (!job || FormatPageToken(*job) != token) {
    return absl::InvalidArgumentError(
        "page_token is not one that a list gave; leave it empty to start at "
        "the newest job");
  }
  return *job;
}

}  // namespace sluice
