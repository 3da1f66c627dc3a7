#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory/device.h"

namespace sluice {

// Pages of [data, data + bytes) that the system has backed.
inline size_t BackedPages(const void* data, size_t bytes) {
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(mincore(const_cast<void*>(data), bytes, pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(),
                       [](unsigned char page) { return page & 1; });
}

// A device that records pinned memory.
class PinningDevice : public Device {
 public:
  PinningDevice() : Device(nullptr) {}
  void CopyIn(std::span<std::byte>, std::span<const std::byte>, IoCompletion*,
              const IoLabel&) override {}
  void CopyOut(std::span<std::byte>, std::span<const std::byte>, IoCompletion*,
               const IoLabel&) override {}
  void CopyWithin(std::span<std::byte>, std::span<const std::byte>,
                  IoCompletion*) override {}
  bool Contains(const void*, size_t) const override { return false; }
  bool Touches(const void*, size_t) const override { return false; }
  HostPin Pin(std::span<std::byte> host) override {
    backed = BackedPages(host.data(), host.size()) * 4096;
    return {};
  }
  Totals totals() const override { return {}; }
  size_t backed = 0;

 protected:
  absl::StatusOr<void*> Take(const std::string&, size_t) override {
    return absl::UnimplementedError("");
  }
  void GiveBack(void*, size_t) override {}
};

}  // namespace sluice
