#pragma once

#include <string>

#include "common/metrics/metrics.h"

namespace sluice {

// Exports how much of the file system of `dir` is free for this process, as
// sluice_disk_free_bytes{dir}. Nothing is exported as long as that cannot be
// told.
void SetDiskFree(MetricsRegistry* registry, const std::string& dir);

}  // namespace sluice
