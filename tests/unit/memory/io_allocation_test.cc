#include <memory>

#include "common/blocks.h"
#include "gtest/gtest.h"
#include "runtime/memory/copy_engine.h"
#include "runtime/memory/disk/io_engine.h"
#include "tests/unit/allocation/allocation_count.h"
#include "tests/unit/memory/disk_testing.h"

namespace sluice {
namespace {

TEST(IoAllocationTest, NoneInSteadyState) {
  constexpr size_t kBytes = 64 * kDiskBlockBytes;
  const TempDir dir = TempDir::OnDisk();
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
  IoCompletion written;
  for (IoEngine::Backend backend :
       {IoEngine::Backend::kAny, IoEngine::Backend::kThreads}) {
    auto engine = IoEngine::Create({.queue_depth = 4,
                                    .request_bytes = 8 * kDiskBlockBytes,
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
      if (!read.Wait().ok()) return false;
      copy.Copy(device, in, &copied);
      return copied.Wait().ok() && written.Wait().ok();
    };
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(round());
    const int64_t before = AllocationCount();
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(round());
    EXPECT_EQ(AllocationCount(), before);
  }
}

}  // namespace
}  // namespace sluice
