#include "common/version.h"

#include "absl/strings/str_cat.h"

namespace sluice {

const char* ReleaseVersion() { return SLUICE_VERSION; }

std::string BuildVersion() {
  return absl::StrCat(ReleaseVersion(), "+", BuildCommit());
}

}  // namespace sluice
