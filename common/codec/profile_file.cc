#include <string>

#include "common/codec/profile_json.h"
#include "common/host/read_file.h"
#include "common/host/write_file.h"
#include "common/status_macros.h"

namespace sluice {
absl::StatusOr<MachineProfile> ReadProfileFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, kMaxProfileFileBytes));
  return Annotate(ProfileFromJson(text), path);
}

absl::Status WriteProfileFile(const MachineProfile& profile,
                              const std::string& path) {
  return Annotate(ReplaceFile(path, ProfileToJson(profile)), "the profile");
}

}  // namespace sluice
