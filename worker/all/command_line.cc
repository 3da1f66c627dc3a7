#include "worker/all/command_line.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// What a part decides; each takes a value.
constexpr const char* kDecided[] = {
    "--name", "--device",       "--host-memory", "--disk-space",  "--threads",
    "--port", "--metrics-port", "--trace",       "--machine-part"};

template <typename Names>
bool Contains(const Names& names, const std::string& name) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* n) { return name == n; });
}

}  // namespace

std::vector<std::string> PartArguments(const std::vector<std::string>& all,
                                       const MachinePart& part, size_t parts,
                                       const std::string& trace) {
  std::vector<std::string> arguments;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t equals = all[i].find('=');
    const std::string name = all[i].substr(0, equals);
    if (Contains(kAllSwitches, name)) continue;
    if (Contains(kAllOptions, name) || Contains(kDecided, name)) {
      if (equals == std::string::npos) ++i;  // its value
      continue;
    }
    arguments.push_back(all[i]);
  }
  const auto add = [&](const char* name, const std::string& value) {
    arguments.push_back(absl::StrCat(name, "=", value));
  };
  add("--name", part.name);
  add("--device", part.device);
  add("--threads", absl::StrCat(part.threads));
  add("--host-memory", absl::StrCat(part.host_memory_bytes, "B"));
  if (part.disk_bytes > 0) {
    add("--disk-space", absl::StrCat(part.disk_bytes, "B"));
  }
  add("--port", absl::StrCat(part.port));
  add("--metrics-port", absl::StrCat(part.metrics_port));
  if (!trace.empty()) add("--trace", absl::StrCat(trace, ".", part.suffix));
  if (parts > 1) add("--machine-part", absl::StrCat(part.suffix, "/", parts));
  return arguments;
}

}  // namespace sluice
