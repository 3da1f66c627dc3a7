#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// What a user says of a machine, as the flags of the same names have it.
struct MachineFlags {
  std::string device = "cpu";
  // As "20GiB"; "": what a GPU has free, but for a reserve.
  std::string device_memory;
  std::string host_memory;  // "": most of what is free
  std::string disk_dir;     // weights and KV cache; "": no disk tier
  std::string disk_space;   // "": most of what is free
  int32_t threads = 0;      // that compute; 0: all cores
};

}  // namespace sluice
