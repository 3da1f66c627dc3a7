#include "common/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace sluice {
namespace {

// Fields of /proc/self/stat; see proc(5).
struct Stat {
  double cpu_ticks = 0;
  double threads = 0;
  double start_ticks = 0;  // since boot
  double virtual_bytes = 0;
  double resident_pages = 0;
};

std::optional<Stat> ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name, field 2, may hold anything: field 3 follows its last bracket.
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(end + 1));
  double fields[25] = {};
  std::string text;
  for (int field = 3; field <= 24 && rest >> text; ++field) {
    fields[field] = std::strtod(text.c_str(), nullptr);
  }
  if (!rest) return std::nullopt;
  return Stat{.cpu_ticks = fields[14] + fields[15],
              .threads = fields[20],
              .start_ticks = fields[22],
              .virtual_bytes = fields[23],
              .resident_pages = fields[24]};
}

// The boot time in Unix seconds.
std::optional<double> BootTime() {
  std::ifstream file("/proc/stat");
  std::string key;
  while (file >> key) {
    double value = 0;
    if (key == "btime" && file >> value) return value;
    std::getline(file, key);
  }
  return std::nullopt;
}

std::optional<double> OpenFiles() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end;
       !error && it != end; it.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return static_cast<double>(count -
                             1);  // without the descriptor of this directory
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  const auto add = [&](const char* name, const char* help,
                       prometheus::MetricType type, double value) {
    prometheus::ClientMetric metric;
    if (type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families.push_back({name, help, type, {metric}});
  };
  constexpr auto kGauge = prometheus::MetricType::Gauge;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const std::optional<Stat> stat = ReadStat(); stat && ticks > 0) {
    add("process_resident_memory_bytes", "Resident memory size in bytes.",
        kGauge,
        stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
    add("process_virtual_memory_bytes", "Virtual memory size in bytes.", kGauge,
        stat->virtual_bytes);
    add("process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
        prometheus::MetricType::Counter, stat->cpu_ticks / ticks);
    add("process_threads", "Number of threads of this process.", kGauge,
        stat->threads);
    if (const std::optional<double> boot = BootTime()) {
      add("process_start_time_seconds",
          "Start time of the process since unix epoch in seconds.", kGauge,
          *boot + stat->start_ticks / ticks);
    }
  }
  if (const std::optional<double> open = OpenFiles()) {
    add("process_open_fds", "Number of open file descriptors.", kGauge, *open);
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add("process_max_fds", "Maximum number of open file descriptors.", kGauge,
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace sluice
