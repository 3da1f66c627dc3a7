#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// The flags that describe a machine; each member is the flag of its name.
struct MachineFlags {
  std::string device = "cpu";   // or several GPUs, as "cuda:0,cuda:1"
  int32_t tensor_parallel = 1;  // ranks of a stage
  // A size like "20GiB"; "": the GPU's free memory, less a reserve.
  std::string device_memory;
  std::string host_memory;  // "": most of what is free
  std::string disk_dir;     // weights and KV cache; "": no disk tier
  std::string disk_space;   // "": most of what is free
  int32_t threads = 0;      // compute threads; 0: all cores
};

}  // namespace sluice
