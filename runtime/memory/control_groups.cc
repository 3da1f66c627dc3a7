#include "runtime/memory/control_groups.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_split.h"

namespace sluice {

void ForEachControlGroup(
    absl::string_view groups, absl::string_view controller,
    absl::FunctionRef<void(const std::string& path, bool first_version)>
        visit) {
  for (const absl::string_view line :
       absl::StrSplit(groups, '\n', absl::SkipEmpty())) {
    // A line is id:controllers:path.
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers =
        absl::StrSplit(fields[1], ',');
    const bool first_version = std::find(controllers.begin(), controllers.end(),
                                         controller) != controllers.end();
    if (!first_version && !fields[1].empty()) continue;
    std::filesystem::path path = std::string(fields[2]);
    for (;; path = path.parent_path()) {
      visit(path.string(), first_version);
      if (!path.has_relative_path()) break;
    }
  }
}

}  // namespace sluice
