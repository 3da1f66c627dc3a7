#include "worker/runtime_report.h"

#include <algorithm>

namespace sluice {
RuntimeReport& RuntimeReport::operator+=(const RuntimeReport& other) {
  stats += other.stats;
  placement += other.placement;
  device_peak_bytes += other.device_peak_bytes;
  host_peak_bytes += other.host_peak_bytes;
  disk_peak_bytes += other.disk_peak_bytes;
  kv_host_peak_bytes += other.kv_host_peak_bytes;
  resident_peak_bytes =
      std::max(resident_peak_bytes, other.resident_peak_bytes);
  disk_image_bytes += other.disk_image_bytes;
  return *this;
}

}  // namespace sluice
