#include "worker/all/machine_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "runtime/kernels/device_choice.h"

namespace sluice {
namespace {

constexpr int kMaxParts = 256;
constexpr int kMaxGpus = 64;
constexpr int kMaxPort = 65535;
constexpr uint64_t kMinPartBytes = uint64_t{64} << 20;

// A part of the machine's cores, with its weight in the division of memory.
struct Share {
  std::string suffix;
  std::string device;
  CoreGroup cores;
  double memory = 1;
};

// Cuts the cores into `count` pieces of consecutive ones. There may be fewer
// cores than pieces if pieces are of GPUs: then cores are in several.
std::vector<CoreGroup> CutCores(const std::vector<CoreGroup>& cores,
                                size_t count) {
  std::vector<CoreGroup> pieces(count);
  if (cores.empty()) return pieces;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * cores.size() / count;
    const size_t end = std::max(begin + 1, (i + 1) * cores.size() / count);
    for (size_t c = begin; c < end; ++c) {
      pieces[i].cores += cores[c].cores;
      pieces[i].cpus.insert(pieces[i].cpus.end(), cores[c].cpus.begin(),
                            cores[c].cpus.end());
    }
  }
  return pieces;
}

std::vector<Share> SharesOf(const std::vector<CoreGroup>& groups,
                            const std::string& what,
                            const std::string& device) {
  std::vector<Share> shares;
  const bool known =
      std::all_of(groups.begin(), groups.end(),
                  [](const CoreGroup& g) { return g.memory_bytes > 0; });
  for (size_t i = 0; i < groups.size(); ++i) {
    shares.push_back(
        {absl::StrCat(what, i), device, groups[i],
         known ? static_cast<double>(groups[i].memory_bytes) : 1.0});
  }
  return shares;
}

std::vector<Share> GpuShares(const MachineLayout& machine) {
  const auto count = static_cast<size_t>(machine.gpus);
  std::vector<Share> shares =
      SharesOf(CutCores(machine.cores, count), "gpu", "");
  for (size_t i = 0; i < count; ++i)
    shares[i].device = absl::StrCat("cuda:", i);
  return shares;
}

absl::StatusOr<std::vector<Share>> Divide(const MachineLayout& machine,
                                          const PartsOptions& options) {
  const std::string& per = options.per;
  if (per == "gpu" || (per == "auto" && machine.gpus > 0)) {
    if (machine.gpus == 0) {
      return absl::FailedPreconditionError(
          "--per gpu: this machine has no GPU that this program can use; say "
          "numa, l3 or a number of workers");
    }
    return GpuShares(machine);
  }
  if (per == "numa" || (per == "auto" && machine.numa_nodes.size() > 1)) {
    if (!machine.numa_nodes.empty()) {
      return SharesOf(machine.numa_nodes, "numa", options.device);
    }
  } else if (per == "l3" || per == "auto") {
    if (!machine.l3_groups.empty()) {
      return SharesOf(machine.l3_groups, "l3-", options.device);
    }
  } else {
    int count = 0;
    if (!absl::SimpleAtoi(per, &count) || count < 1 || count > kMaxParts) {
      return InvalidArgument("--per ", per,
                             ": it must be auto, gpu, numa, l3 or a number of "
                             "workers from 1 to ",
                             kMaxParts);
    }
    if (static_cast<size_t>(count) >
        std::max<size_t>(1, machine.cores.size())) {
      return InvalidArgument("--per ", per, ": there are only ",
                             machine.cores.size(),
                             " cores for so many workers");
    }
    return SharesOf(CutCores(machine.cores, static_cast<size_t>(count)), "part",
                    options.device);
  }
  // The machine does not say: it is one part.
  return SharesOf(CutCores(machine.cores, 1), "part", options.device);
}

// The compute threads of a part with so many of the machine's cores.
int32_t ThreadsOf(const MachineLayout& machine, int cores, int all_cores) {
  double threads = cores;
  if (machine.cpu_quota > 0 && all_cores > 0) {
    threads = std::min(threads, machine.cpu_quota * cores / all_cores);
  }
  return std::max(1, static_cast<int32_t>(std::ceil(threads - 1e-9)));
}

absl::Status CheckPorts(const PartsOptions& options, int count) {
  for (const int first : {options.port, options.metrics_port}) {
    if (first < 0 || first > kMaxPort || first + count - 1 > kMaxPort) {
      return InvalidArgument(
          first == options.port ? "--port " : "--metrics-port ", first,
          ": there are no ", count, " ports from there on; the last is ",
          kMaxPort);
    }
  }
  if (options.port > 0 && options.metrics_port > 0 &&
      std::abs(options.port - options.metrics_port) < count) {
    return InvalidArgument(
        "--port ", options.port, " and --metrics-port ", options.metrics_port,
        ": ", count,
        " workers take so many ports from each on, which meet; "
        "let them be ",
        count, " apart, or 0 for any free ones");
  }
  return absl::OkStatus();
}

}  // namespace

MachineLayout ReadMachineLayout(bool gpus) {
  MachineLayout machine;
  machine.numa_nodes = CoreGroups(CoreGroupKind::kNumaNode);
  machine.l3_groups = CoreGroups(CoreGroupKind::kL3);
  machine.cores = CoreGroups(CoreGroupKind::kCore);
  if (machine.cores.empty()) {
    for (const int core : UsableCores()) {
      machine.cores.push_back({.cpus = {core}, .cores = 1});
    }
  }
  machine.cpu_quota = CpuQuota();
  while (gpus && machine.gpus < kMaxGpus) {
    const DeviceChoice gpu = {.backend = BackendKind::kCuda,
                              .ordinal = machine.gpus};
    if (!CheckDevice(gpu).ok()) break;
    ++machine.gpus;
  }
  return machine;
}

absl::StatusOr<std::vector<MachinePart>> DivideMachine(
    const MachineLayout& machine, const PartsOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Share> shares,
                          Divide(machine, options));
  const int count = static_cast<int>(shares.size());
  SLUICE_RETURN_IF_ERROR(CheckPorts(options, count));
  if (options.tensor_parallel != "1" && options.tensor_parallel != "auto" &&
      !shares[0].device.empty() && absl::StartsWith(shares[0].device, "cuda")) {
    return InvalidArgument(
        "--tensor-parallel ", options.tensor_parallel,
        ": with --all each GPU is a worker of its own; leave one of them out, "
        "or start workers with --device cuda:0,cuda:1 and so on");
  }
  double memory = 0;
  int cores = 0;
  for (const Share& share : shares) {
    memory += share.memory;
    cores += share.cores.cores;
  }
  std::vector<MachinePart> parts;
  for (int i = 0; i < count; ++i) {
    const Share& share = shares[static_cast<size_t>(i)];
    MachinePart& part = parts.emplace_back();
    part.suffix = share.suffix;
    part.name = absl::StrCat(options.name, "-", share.suffix);
    part.device = share.device;
    part.cpus = share.cores.cpus;
    part.threads = options.threads > 0
                       ? options.threads
                       : ThreadsOf(machine, share.cores.cores, cores);
    part.host_memory_bytes = static_cast<uint64_t>(
        static_cast<double>(options.host_memory_bytes) * share.memory / memory);
    if (part.host_memory_bytes < kMinPartBytes) {
      return ResourceExhausted(
          "--host-memory: ", options.host_memory_bytes >> 20, " MiB for ",
          count, " workers leave ", part.name, " less than ",
          kMinPartBytes >> 20, " MiB; give more, or make fewer (--per)");
    }
    part.disk_bytes = options.disk_bytes / static_cast<uint64_t>(count);
    part.port = options.port == 0 ? 0 : options.port + i;
    part.metrics_port =
        options.metrics_port == 0 ? 0 : options.metrics_port + i;
  }
  return parts;
}

std::string PartsTable(const std::vector<MachinePart>& parts) {
  std::string text = absl::StrFormat("%-24s %-8s %7s %12s %12s %6s %7s  %s\n",
                                     "worker", "device", "threads", "memory",
                                     "disk", "port", "metrics", "cpus");
  const auto port = [](int p) { return p == 0 ? "any" : absl::StrCat(p); };
  for (const MachinePart& part : parts) {
    std::string cpus;
    for (size_t i = 0; i < part.cpus.size();) {
      size_t end = i + 1;
      while (end < part.cpus.size() &&
             part.cpus[end] == part.cpus[end - 1] + 1) {
        ++end;
      }
      absl::StrAppend(&cpus, cpus.empty() ? "" : ",", part.cpus[i]);
      if (end - i > 1) absl::StrAppend(&cpus, "-", part.cpus[end - 1]);
      i = end;
    }
    absl::StrAppendFormat(&text, "%-24s %-8s %7d %8d MiB %8d MiB %6s %7s  %s\n",
                          part.name, part.device, part.threads,
                          part.host_memory_bytes >> 20, part.disk_bytes >> 20,
                          port(part.port), port(part.metrics_port), cpus);
  }
  return text;
}

}  // namespace sluice
