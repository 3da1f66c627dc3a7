#include "common/host/disk_gauge.h"

#include <filesystem>
#include <system_error>

namespace sluice {

void SetDiskFree(MetricsRegistry* registry, const std::string& dir) {
  const MetricLabels labels = {{"dir", dir}};
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (error) {
    registry->Remove("sluice_disk_free_bytes", labels);
    return;
  }
  registry
      ->GetGauge("sluice_disk_free_bytes",
                 "Bytes that are free on the file system of this directory.",
                 labels)
      ->Set(static_cast<double>(space.available));
}

}  // namespace sluice
