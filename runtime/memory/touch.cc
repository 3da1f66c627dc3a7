#include "runtime/memory/touch.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "common/threads/thread.h"

namespace sluice {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// More threads than these don't fill memory faster.
constexpr size_t kMaxTouchers = 8;
// The bytes that are worth a thread.
constexpr size_t kTouchBytes = size_t{64} << 20;

}  // namespace

void Touch(std::span<std::byte> memory) {
  const size_t threads = std::min<size_t>(
      {kMaxTouchers, std::max<size_t>(1, std::thread::hardware_concurrency()),
       memory.size() / kTouchBytes});
  if (threads < 2) return;
  const size_t share = (memory.size() / threads / kHugePage + 1) * kHugePage;
  std::vector<Thread> touching;
  for (size_t begin = 0; begin < memory.size(); begin += share) {
    const size_t end = std::min(memory.size(), begin + share);
    touching.emplace_back("touch", [memory, begin, end] {
      for (size_t i = begin; i < end; i += kPage) {
        // Each byte is written back as it is, so that the contents stay.
        auto* const byte = reinterpret_cast<volatile std::byte*>(&memory[i]);
        *byte = *byte;
      }
    });
  }
  for (Thread& thread : touching) thread.Join();
}

}  // namespace sluice
