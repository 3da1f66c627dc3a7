#include "runtime/memory/disk/disk_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/blocks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/memory/disk_testing.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBlock = kDiskBlockBytes;

class DiskFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<DiskFile> Temporary(uint64_t bytes, bool direct = true) {
    auto file =
        DiskFile::CreateTemporary(dir_.path(), "kv", bytes, &budget_, direct);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  const TempDir dir_ = TempDir::OnDisk();
  MemoryBudget budget_{Tier::kDisk, uint64_t{64} << 20};
};

TEST_F(DiskFileTest, TemporaryFilesHaveNoNameAndAreCharged) {
  auto file = Temporary(3 * kBlock + 1);
  EXPECT_EQ(file->bytes(), 4 * kBlock);
  EXPECT_THAT(file->name(), HasSubstr(dir_.path()));
  EXPECT_EQ(dir_.num_entries(), 0u);
  EXPECT_EQ(budget_.holders().at("kv"), 4 * kBlock);
  struct stat stats;
  ASSERT_EQ(fstat(file->fd(), &stats), 0);
  EXPECT_GE(stats.st_blocks * 512, static_cast<off_t>(4 * kBlock));
  file.reset();
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

TEST_F(DiskFileTest, ReadsWhatItWrote) {
  for (bool direct : {true, false}) {
    auto file = Temporary(1 << 20, direct);
    EXPECT_TRUE(direct || !file->direct());
    HostBuffer out = TestBuffer(1 << 20);
    HostBuffer in = TestBuffer(1 << 20);
    FillPattern(1, Span(out));
    ASSERT_TRUE(file->Write(0, Span(out)).ok());
    FillPattern(2, Span(out).first(2 * kBlock));
    ASSERT_TRUE(file->Write(7 * kBlock, Span(out).first(2 * kBlock)).ok());
    EXPECT_TRUE(file->Sync().ok());
    ASSERT_TRUE(file->Read(7 * kBlock, Span(in).first(2 * kBlock)).ok());
    EXPECT_TRUE(HasPattern(2, Span(in).first(2 * kBlock)));
    ASSERT_TRUE(file->Read(0, Span(in)).ok());
    EXPECT_TRUE(HasPattern(1, Span(in).first(7 * kBlock)));
  }
}

TEST_F(DiskFileTest, ReservedRoomReadsAsZeros) {
  auto file = Temporary(kBlock);
  HostBuffer in = TestBuffer(kBlock);
  FillPattern(1, Span(in));
  ASSERT_TRUE(file->Read(0, Span(in)).ok());
  EXPECT_EQ(std::string(in.as<char>(), kBlock), std::string(kBlock, '\0'));
}

TEST_F(DiskFileTest, NamedFilesStayAndReplaceOthers) {
  const std::string path = dir_ / "image";
  std::ofstream(path) << "something older";
  HostBuffer buffer = TestBuffer(2 * kBlock);
  FillPattern(3, Span(buffer));
  {
    auto file = DiskFile::Create(path, 2 * kBlock, &budget_);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(budget_.holders().at(path), 2 * kBlock);
    ASSERT_TRUE((*file)->Write(0, Span(buffer)).ok());
    ASSERT_TRUE((*file)->Sync().ok());
  }
  EXPECT_EQ(budget_.used_bytes(), 0u);
  auto file = DiskFile::OpenForRead(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->bytes(), 2 * kBlock);
  HostBuffer in = TestBuffer(2 * kBlock);
  ASSERT_TRUE((*file)->Read(0, Span(in)).ok());
  EXPECT_TRUE(HasPattern(3, Span(in)));
  EXPECT_EQ((*file)->Write(0, Span(in)).code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(DiskFileTest, RangesMustBeAlignedAndInside) {
  auto file = Temporary(4 * kBlock);
  HostBuffer buffer = TestBuffer(8 * kBlock);
  const std::span<std::byte> all = Span(buffer);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(file->Read(1, all.first(kBlock)).code(), invalid);
  EXPECT_EQ(file->Read(0, all.first(kBlock - 1)).code(), invalid);
  EXPECT_EQ(file->Read(0, all.subspan(512, kBlock)).code(), invalid);
  EXPECT_EQ(file->Write(kBlock, all.first(4 * kBlock)).code(), invalid);
  EXPECT_EQ(file->Read(kBlock, all.first(4 * kBlock)).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(file->Read(UINT64_MAX - kBlock + 1, all.first(kBlock)).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_TRUE(file->Read(4 * kBlock, all.first(0)).ok());
}

TEST_F(DiskFileTest, AFileWithoutAWholeLastPageCannotBeReadPastIt) {
  const std::string path = dir_ / "ragged";
  std::ofstream(path) << std::string(kBlock + 100, 'x');
  auto file = DiskFile::OpenForRead(path);
  ASSERT_TRUE(file.ok()) << file.status();
  HostBuffer buffer = TestBuffer(2 * kBlock);
  EXPECT_TRUE((*file)->Read(0, Span(buffer).first(kBlock)).ok());
  EXPECT_EQ((*file)->Read(0, Span(buffer)).code(), absl::StatusCode::kDataLoss);
}

// Pages of the file that the page cache holds.
size_t CachedPages(const DiskFile& file) {
  void* map = mmap(nullptr, file.bytes(), PROT_READ, MAP_SHARED, file.fd(), 0);
  EXPECT_NE(map, MAP_FAILED);
  std::vector<unsigned char> pages(file.bytes() / kBlock);
  EXPECT_EQ(mincore(map, file.bytes(), pages.data()), 0);
  munmap(map, file.bytes());
  size_t cached = 0;
  for (unsigned char page : pages) cached += page & 1;
  return cached;
}

TEST_F(DiskFileTest, ThePageCacheStaysEmpty) {
  struct statfs stats;
  ASSERT_EQ(statfs(dir_.path().c_str(), &stats), 0);
  if (stats.f_type == 0x01021994) GTEST_SKIP() << "a tmpfs is all cache";
  constexpr size_t kBytes = size_t{16} << 20;
  constexpr size_t kRequest = size_t{256} << 10;
  HostBuffer buffer = TestBuffer(kRequest);
  for (bool direct : {true, false}) {
    auto file = Temporary(kBytes, direct);
    for (size_t at = 0; at < kBytes; at += kRequest) {
      ASSERT_TRUE(file->Write(at, Span(buffer)).ok());
    }
    // Some writes may still be on their way from the cache to the disk.
    EXPECT_LE(CachedPages(*file), 8 * kRequest / kBlock);
    ASSERT_TRUE(file->Sync().ok());
    for (size_t at = 0; at < kBytes; at += kRequest) {
      ASSERT_TRUE(file->Read(at, Span(buffer)).ok());
    }
    EXPECT_EQ(CachedPages(*file), 0u) << "direct=" << direct;
  }
}

TEST_F(DiskFileTest, ATmpfsIsReadThroughTheCache) {
  struct statfs stats;
  if (statfs("/dev/shm", &stats) != 0 || stats.f_type != 0x01021994 ||
      access("/dev/shm", W_OK) != 0) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  auto file = DiskFile::CreateTemporary("/dev/shm", "kv", 4 * kBlock, &budget_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->direct());
  HostBuffer buffer = TestBuffer(4 * kBlock);
  FillPattern(5, Span(buffer));
  ASSERT_TRUE((*file)->Write(0, Span(buffer)).ok());
  FillPattern(6, Span(buffer));
  ASSERT_TRUE((*file)->Read(0, Span(buffer)).ok());
  EXPECT_TRUE(HasPattern(5, Span(buffer)));
}

TEST_F(DiskFileTest, FallsBackWhereThereIsNoDirectIo) {
  // A large regular file on a file system without direct I/O.
  const char kPath[] = "/sys/kernel/btf/vmlinux";
  const int fd = open(kPath, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd >= 0) close(fd);
  if (fd >= 0 || errno != EINVAL) GTEST_SKIP() << kPath << " is missing";
  auto file = DiskFile::OpenForRead(kPath);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE((*file)->direct());
  HostBuffer buffer = TestBuffer(kBlock);
  ASSERT_TRUE((*file)->Read(0, Span(buffer)).ok());
  EXPECT_EQ(*buffer.as<uint16_t>(), 0xeb9f);  // BTF's magic number
}

TEST_F(DiskFileTest, FreeDiskBytesIsWhatTheDirectoryHas) {
  auto free = FreeDiskBytes(dir_.path());
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_GT(*free, 0u);
  const absl::Status missing = FreeDiskBytes(dir_ / "none").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(dir_ / "none"));
}

}  // namespace
}  // namespace sluice
