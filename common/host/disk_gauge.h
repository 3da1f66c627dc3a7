#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace sluice {

// Exports how much of the file system of `dir` is free for this process, as
// sluice_disk_free_bytes{dir}. Nothing is exported while the system does not
// tell it.
void SetDiskFree(MetricsRegistry* registry, const std::string& dir);

}  // namespace sluice
