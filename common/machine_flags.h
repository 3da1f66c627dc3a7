#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// The flags that describe a machine; each member is the flag of its name.
struct MachineFlags {
  std::string device = "cpu";  // or several GPUs, as "cuda:0,cuda:1"
  // Ranks of a stage: a number; "auto", as many as a plan finds best, up to the
  // GPUs that `device` names or the NUMA nodes; or "auto:N", up to N.
  std::string tensor_parallel = "1";
  // A size like "20GiB"; "": the GPU's free memory, less a reserve.
  std::string device_memory;
  std::string host_memory;  // "": most of what is free
  std::string disk_dir;     // weights and KV cache; "": no disk tier
  std::string disk_space;   // "": most of what is free
  int32_t threads = 0;      // compute threads; 0: all cores
  // Whether to warn of what is allowed, but hardly meant: once is enough where
  // the flags are read several times.
  bool warn = true;
};

}  // namespace sluice
