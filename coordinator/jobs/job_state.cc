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
#include "coordinator/jobs/requests/request_body.h"
#include "coordinator/jobs/requests/table_rows.h"

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

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxPathBytes = 4096;
constexpr int kMaxMetadata = 16;
constexpr size_t kMaxMetadataKeyBytes = 64;
constexpr size_t kMaxMetadataValueBytes = 512;

absl::Status Wrong(absl::string_view field, absl::string_view must_be) {
  return InvalidArgument("spec.", field, " must be ", must_be);
}

absl::Status ValidateDefaults(const v1::RequestDefaults& defaults) {
  if (defaults.has_max_tokens() && defaults.max_tokens() < 1) {
    return Wrong("defaults.max_tokens", "at least 1");
  }
  // The comparisons reject NaN too.
  if (defaults.has_temperature() &&
      !(defaults.temperature() >= 0 &&
        defaults.temperature() <= kMaxTemperature)) {
    return Wrong("defaults.temperature", "from 0 to 2");
  }
  if (defaults.has_top_p() &&
      !(defaults.top_p() >= 0 && defaults.top_p() <= 1)) {
    return Wrong("defaults.top_p", "from 0 to 1");
  }
  if (defaults.has_top_k() && defaults.top_k() < -1) {
    return Wrong("defaults.top_k", "at least 1, or 0 or -1 for off");
  }
  return absl::OkStatus();
}

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

absl::Status ValidateJobSpec(const v1::JobSpec& spec,
                             const std::string& served_model) {
  if (spec.name().size() > kMaxNameBytes) {
    return Wrong("name", absl::StrCat("at most ", kMaxNameBytes, " bytes"));
  }
  if (spec.request_id().size() > kMaxRequestIdBytes) {
    return Wrong("request_id",
                 absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"));
  }
  if (spec.input_path().size() > kMaxPathBytes) {
    return Wrong("input_path",
                 absl::StrCat("at most ", kMaxPathBytes, " bytes"));
  }
  if (!spec.model().empty() && spec.model() != served_model) {
    return InvalidArgument("unknown model ", QuoteForMessage(spec.model()),
                           " in spec.model: this coordinator serves ",
                           QuoteForMessage(served_model),
                           "; name that one or leave it empty");
  }
  if (spec.format() != v1::INPUT_FORMAT_UNSPECIFIED &&
      spec.format() != v1::INPUT_FORMAT_JSONL &&
      spec.format() != v1::INPUT_FORMAT_TEXT &&
      spec.format() != v1::INPUT_FORMAT_CSV) {
    return Wrong("format", "JSONL, TEXT or CSV");
  }
  if (spec.has_table() && spec.format() != v1::INPUT_FORMAT_CSV) {
    return Wrong("table", "left out if the format is not CSV");
  }
  SLUICE_RETURN_IF_ERROR(ValidateTable(spec.table()));
  if (spec.metadata_size() > kMaxMetadata) {
    return Wrong("metadata", absl::StrCat("at most ", kMaxMetadata, " pairs"));
  }
  for (const auto& [key, value] : spec.metadata()) {
    if (key.empty() || key.size() > kMaxMetadataKeyBytes ||
        value.size() > kMaxMetadataValueBytes) {
      return Wrong("metadata",
                   absl::StrCat("pairs of a key of 1 to ", kMaxMetadataKeyBytes,
                                " bytes and a value of at most ",
                                kMaxMetadataValueBytes, " bytes"));
    }
  }
  return ValidateDefaults(spec.defaults());
}

}  // namespace sluice
