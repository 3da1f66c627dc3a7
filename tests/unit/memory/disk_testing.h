#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/memory/host_buffer.h"
#include "runtime/trace/trace.h"

namespace sluice {

// A new directory on a disk (TEST_TMPDIR, or /var/tmp: /tmp may be a tmpfs),
// removed with all that is in it.
class TestDir {
 public:
  explicit TestDir(const std::string& parent = "");
  ~TestDir();
  TestDir(const TestDir&) = delete;
  TestDir& operator=(const TestDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }
  size_t num_entries() const;

 private:
  std::string path_;
};

// Aligned memory of `bytes`, outside of any budget that a test looks at.
HostBuffer TestBuffer(size_t bytes);
std::span<std::byte> Span(const HostBuffer& buffer);

// Fills `data` with what depends on `seed` and on each place.
void FillPattern(uint64_t seed, std::span<std::byte> data);
bool HasPattern(uint64_t seed, std::span<const std::byte> data);

// The spans of the row of that name, in the order of the file.
std::vector<nlohmann::json> SpansOfRow(const Tracer& tracer,
                                       const std::string& name);

}  // namespace sluice
