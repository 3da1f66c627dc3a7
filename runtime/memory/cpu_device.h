#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/memory/copy_engine.h"
#include "runtime/memory/device.h"
#include "runtime/memory/device_arena.h"
#include "runtime/trace/trace.h"

namespace sluice {

// A device without a GPU, for tests: its memory is one arena, mapped at once
// and as large as the budget; its copy streams are a CopyEngine for each
// direction. All copies are real, and data on the wrong side is noticed.
class CpuDevice : public Device {
 public:
  struct Options {
    MemoryBudget* budget = nullptr;  // outlives the device
    std::vector<int> cores;          // of the copying threads; may be empty
    Tracer* tracer = nullptr;        // may be null; gets rows "h2d" and "d2h"
  };
  // kResourceExhausted if the address space cannot be had.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Create(
      const Options& options);
  // REQUIRES: all its buffers are destroyed.
  ~CpuDevice() override;

  void CopyIn(std::span<std::byte> device, std::span<const std::byte> host,
              IoCompletion* done, const IoLabel& label) override;
  void CopyOut(std::span<std::byte> host, std::span<const std::byte> device,
               IoCompletion* done, const IoLabel& label) override;
  void CopyWithin(std::span<std::byte> to, std::span<const std::byte> from,
                  IoCompletion* done) override;
  bool Contains(const void* data, size_t bytes) const override {
    return arena_.Contains(data, bytes);
  }
  bool Touches(const void* data, size_t bytes) const override {
    return arena_.Touches(data, bytes);
  }
  Totals totals() const override;

 protected:
  absl::StatusOr<void*> Take(const std::string& name, size_t bytes) override;
  void GiveBack(void* data, size_t bytes) override;

 private:
  CpuDevice(const Options& options, std::byte* base, size_t bytes);

  DeviceArena arena_;
  CopyEngine h2d_;
  CopyEngine d2h_;
};

}  // namespace sluice
