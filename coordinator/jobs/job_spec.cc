#include "coordinator/jobs/job_spec.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/request_body.h"

namespace sluice {
namespace {

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
      !(defaults.top_p() > 0 && defaults.top_p() <= 1)) {
    return Wrong("defaults.top_p", "above 0 and at most 1");
  }
  if (defaults.has_top_k() && defaults.top_k() < -1) {
    return Wrong("defaults.top_k", "at least 1, or 0 or -1 for off");
  }
  return absl::OkStatus();
}

}  // namespace

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
      spec.format() != v1::INPUT_FORMAT_TEXT) {
    return Wrong("format", "JSONL or TEXT");
  }
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
