#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "gtest/gtest.h"
#include "runtime/memory/copy_engine.h"
#include "runtime/memory/io_engine.h"
#include "tests/unit/memory/disk_testing.h"

// Counts what this program allocates, on any thread. Not inlined, or GCC takes
// the pairs apart and warns that they do not match.

namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size,
                                     const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace sluice {
namespace {

TEST(IoAllocationTest, NoneInSteadyState) {
  constexpr size_t kBytes = 64 * kDiskAlignment;
  const TestDir dir;
  MemoryBudget budget(Tier::kDisk, 2 * kBytes);
  auto file = DiskFile::CreateTemporary(dir.path(), "kv", 2 * kBytes, &budget);
  ASSERT_TRUE(file.ok()) << file.status();
  const HostBuffer buffer = TestBuffer(3 * kBytes);
  const std::span<std::byte> in = Span(buffer).first(kBytes);
  const std::span<std::byte> device = Span(buffer).subspan(kBytes, kBytes);
  const std::span<std::byte> out = Span(buffer).last(kBytes);
  Tracer tracer({});
  CopyEngine copy({.name = "h2d", .tracer = &tracer});
  IoCompletion copied;
  IoCompletion read;
  read.SetCallback([&](const absl::Status& status) {
    ASSERT_TRUE(status.ok());
    copy.Copy(device, in, &copied);
  });
  IoCompletion written;
  for (IoEngine::Backend backend :
       {IoEngine::Backend::kAny, IoEngine::Backend::kThreads}) {
    auto engine = IoEngine::Create({.queue_depth = 4,
                                    .request_bytes = 8 * kDiskAlignment,
                                    .backend = backend,
                                    .threads = 2,
                                    .tracer = &tracer});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto round = [&] {
      copied.Expect(1);
      read.Expect(2);
      written.Expect(2);
      (*engine)->Read(**file, 0, in.first(kBytes / 2), &read, {"weights"});
      (*engine)->Write(**file, kBytes, out, &written);
      (*engine)->Read(**file, kBytes / 2, in.subspan(kBytes / 2), &read);
      (*engine)->Write(**file, kBytes, out.first(kBytes / 2), &written);
      return copied.Wait().ok() && written.Wait().ok();
    };
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(round());
    const int64_t before = allocations;
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(round());
    EXPECT_EQ(allocations, before);
  }
}

}  // namespace
}  // namespace sluice
