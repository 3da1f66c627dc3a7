#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// CPUs that this process may run on; at least 1.
int32_t UsableCores();

// "cpu: <model>, <widest instruction set that matters to the kernels>", for
// people.
std::string DescribeCpu();
// The same from the text of /proc/cpuinfo.
std::string DescribeCpu(absl::string_view cpuinfo);

}  // namespace sluice
