#include "common/types.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice {

absl::StatusOr<DTypeChoice> ParseDTypeChoice(absl::string_view text) {
  if (text == "auto") return DTypeChoice::kAuto;
  if (text == "float32" || text == "fp32" || text == "float")
    return DTypeChoice::kFloat32;
  if (text == "bfloat16" || text == "bf16") return DTypeChoice::kBFloat16;
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", text, "\" is none of auto, float32, bfloat16"));
}

}  // namespace sluice
