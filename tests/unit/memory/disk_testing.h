#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/memory/host_buffer.h"
#include "runtime/trace/trace.h"
#include "tests/support/temp_dir.h"

namespace sluice {

// Aligned memory of `bytes`, outside of any budget that a test looks at.
HostBuffer TestBuffer(size_t bytes);
std::span<std::byte> Span(const HostBuffer& buffer);

// Fills `data` with bytes that depend on `seed` and their position.
void FillPattern(uint64_t seed, std::span<std::byte> data);
bool HasPattern(uint64_t seed, std::span<const std::byte> data);

// The spans of the row of that name, in the order of the file.
std::vector<nlohmann::json> SpansOfRow(const Tracer& tracer,
                                       const std::string& name);

}  // namespace sluice
