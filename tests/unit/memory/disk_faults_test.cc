// Tests of the disk tier on errors of directories, disks and systems.

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/blocks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/disk/io_engine.h"
#include "tests/support/file_size_limit.h"
#include "tests/unit/memory/disk_testing.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kPage = kDiskBlockBytes;
constexpr int kSkipped = 77;

absl::Status CreateIn(const std::string& dir, uint64_t bytes = kPage) {
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  return DiskFile::CreateTemporary(dir, "kv cache", bytes, &budget).status();
}

TEST(DiskFaultsTest, AMissingDirectoryIsNotFound) {
  const TempDir dir = TempDir::OnDisk();
  const absl::Status status = CreateIn(dir / "none");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("kv cache"), HasSubstr(dir / "none"),
                    HasSubstr("create it"), HasSubstr("--disk-dir")));
}

TEST(DiskFaultsTest, AFileIsNoDirectory) {
  const TempDir dir = TempDir::OnDisk();
  std::ofstream(dir / "file") << "x";
  const absl::Status status = CreateIn(dir / "file");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(dir / "file"), HasSubstr("--disk-dir")));
  EXPECT_EQ(DiskFile::OpenForRead(dir / "file/below").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DiskFile::OpenForRead(dir.path()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(DiskFaultsTest, WhereNobodyMayWrite) {
  struct statfs info;
  if (statfs("/sys", &info) != 0 || info.f_type != SYSFS_MAGIC) {
    GTEST_SKIP() << "/sys is no sysfs here, as in a bare chroot";
  }
  // Not even root can make files there.
  const absl::Status status = CreateIn("/sys");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/sys"), HasSubstr("let this"),
                                      HasSubstr("--disk-dir")));
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  EXPECT_EQ(DiskFile::Create("/sys/image", kPage, &budget).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(DiskFaultsTest, AMissingFileIsNotFound) {
  const TempDir dir = TempDir::OnDisk();
  const absl::Status status = DiskFile::OpenForRead(dir / "image").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(dir / "image"));
}

TEST(DiskFaultsTest, TheBudgetNamesWhoAsks) {
  const TempDir dir = TempDir::OnDisk();
  MemoryBudget budget(Tier::kDisk, 10 * kPage);
  const absl::Status status =
      DiskFile::CreateTemporary(dir.path(), "kv cache", 11 * kPage, &budget)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("kv cache"), HasSubstr("disk")));
}

TEST(DiskFaultsTest, ADiskWithoutRoomSaysWhatIsFree) {
  const TempDir dir = TempDir::OnDisk();
  const uint64_t free = *FreeDiskBytes(dir.path());
  const uint64_t bytes = RoundUpToDiskBlock(free + (uint64_t{1} << 30));
  const absl::Status status = CreateIn(dir.path(), bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr(dir.path()), HasSubstr("kv cache"),
                    HasSubstr(absl::StrCat(bytes)), HasSubstr("are free"),
                    HasSubstr("--disk-dir")));
  // A named file is not left behind.
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  EXPECT_EQ(DiskFile::Create(dir / "image", bytes, &budget).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(dir.num_entries(), 0u);
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(DiskFaultsTest, AFileSystemThatDoesNotSayWhatIsFree) {
  struct statfs info;
  if (statfs("/proc", &info) != 0 || info.f_blocks != 0) {
    GTEST_SKIP() << "/proc is no procfs here, as in a bare chroot";
  }
  const absl::Status status = FreeDiskBytes("/proc").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("/proc"), HasSubstr("--disk-space")));
}

class DiskFaultsEngineTest
    : public ::testing::TestWithParam<IoEngine::Backend> {
 protected:
  void SetUp() override {
    auto engine = IoEngine::Create({.queue_depth = 4,
                                    .request_bytes = 4 * kPage,
                                    .backend = GetParam(),
                                    .threads = 2});
    if (absl::IsUnimplemented(engine.status())) {
      GTEST_SKIP() << engine.status();
    }
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  absl::Status Write(DiskFile& file, uint64_t offset, size_t bytes) {
    const HostBuffer buffer = TestBuffer(bytes);
    IoCompletion done;
    done.Expect(1);
    engine_->Write(file, offset, Span(buffer), &done);
    return done.Wait();
  }
  absl::Status Read(const DiskFile& file, uint64_t offset, size_t bytes) {
    const HostBuffer buffer = TestBuffer(bytes);
    IoCompletion done;
    done.Expect(1);
    engine_->Read(file, offset, Span(buffer), &done);
    return done.Wait();
  }

  const TempDir dir_ = TempDir::OnDisk();
  MemoryBudget budget_{Tier::kDisk, uint64_t{64} << 20};
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(DiskFaultsEngineTest, ATruncatedFileIsDataLoss) {
  for (bool direct : {true, false}) {
    const std::string path = dir_ / "image";
    auto file = DiskFile::Create(path, 64 * kPage, &budget_, direct);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ(truncate(path.c_str(), 10 * kPage), 0);
    const absl::Status status = Read(**file, 0, 64 * kPage);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(path), HasSubstr("ends"), HasSubstr("offset")));
    EXPECT_TRUE(Read(**file, 0, 10 * kPage).ok());
    // The file may end within a page, too.
    ASSERT_EQ(truncate(path.c_str(), 2 * kPage + 100), 0);
    EXPECT_EQ(Read(**file, 0, 4 * kPage).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Read(**file, kPage, 2 * kPage).code(),
              absl::StatusCode::kDataLoss);
    EXPECT_TRUE(Read(**file, 0, 2 * kPage).ok());
  }
}

TEST_P(DiskFaultsEngineTest, AFileTooLargeForTheSystemIsExhaustion) {
  auto file =
      DiskFile::CreateTemporary(dir_.path(), "kv", 64 * kPage, &budget_);
  ASSERT_TRUE(file.ok()) << file.status();
  const FileSizeLimit limit(16 * kPage);
  EXPECT_TRUE(Write(**file, 0, 16 * kPage).ok());
  const absl::Status status = Write(**file, 8 * kPage, 40 * kPage);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr((*file)->name()));
  EXPECT_TRUE(Write(**file, 0, 16 * kPage).ok());

  const absl::Status reserve =
      DiskFile::CreateTemporary(dir_.path(), "kv", 64 * kPage, &budget_)
          .status();
  EXPECT_EQ(reserve.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(reserve.message(), HasSubstr("ulimit -f"));
}

TEST_P(DiskFaultsEngineTest, WrongRangesAreRefusedAtOnce) {
  auto made = DiskFile::Create(dir_ / "image", 8 * kPage, &budget_);
  ASSERT_TRUE(made.ok()) << made.status();
  auto file = DiskFile::OpenForRead(dir_ / "image");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Write(**file, 0, kPage).code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Read(**file, 4 * kPage, 8 * kPage).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(**file, 100, kPage).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, DiskFaultsEngineTest,
                         ::testing::Values(IoEngine::Backend::kUring,
                                           IoEngine::Backend::kThreads),
                         [](const auto& info) {
                           return info.param == IoEngine::Backend::kUring
                                      ? "Uring"
                                      : "Threads";
                         });

TEST(DiskFaultsTest, ErrorsOfTheSystemKeepTheirMeaning) {
  const TempDir dir = TempDir::OnDisk();
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  auto file = DiskFile::CreateTemporary(dir.path(), "kv", kPage, &budget);
  ASSERT_TRUE(file.ok()) << file.status();
  const struct {
    int error;
    absl::StatusCode code;
  } kCases[] = {{EIO, absl::StatusCode::kDataLoss},
                {0, absl::StatusCode::kDataLoss},
                {ENOSPC, absl::StatusCode::kResourceExhausted},
                {EDQUOT, absl::StatusCode::kResourceExhausted},
                {EROFS, absl::StatusCode::kPermissionDenied}};
  for (const auto& c : kCases) {
    const absl::Status status =
        (*file)->RequestError(8192, kPage, /*write=*/true, c.error);
    EXPECT_EQ(status.code(), c.code);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr((*file)->name()), HasSubstr("8192")));
  }
}

// The cases below change their process for good, so each has one of its own.
class DiskFaultsProcessTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  // Whether a child is done or the test not possible here, for EXPECT_EXIT.
  std::function<bool(int)> DoneOrSkipped() {
    return [this](int status) {
      skipped_ = WIFEXITED(status) && WEXITSTATUS(status) == kSkipped;
      return skipped_ || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
    };
  }
  bool skipped_ = false;
};

// Runs `body`, which gives the exit status, in a directory, and exits.
[[noreturn]] void Exit(const std::function<int(const std::string& dir)>& body) {
  int status;
  {
    const TempDir dir = TempDir::OnDisk();
    status = body(dir.path());
  }
  _exit(status);
}

// A failure in a child process is printed, and is its exit status.
#define CHILD_EXPECT(condition)                               \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                               \
    }                                                         \
  } while (false)

// Lets this process mount file systems of its own: as root, or as the root of a
// user namespace.
bool EnterOwnMounts() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << absl::StrCat("0 ", user, " 1");
    std::ofstream("/proc/self/gid_map") << absl::StrCat("0 ", group, " 1");
    if (geteuid() != 0) return false;
  }
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// A tmpfs of 1 MiB on `dir` for a scope.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& dir) : dir_(dir) {
    mounted_ = EnterOwnMounts() &&
               mount("none", dir.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(dir_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  const std::string dir_;
  bool mounted_;
};

int FillTheDisk(const std::string& dir, IoEngine::Backend backend) {
  const SmallDisk disk(dir);
  if (!disk.mounted()) return kSkipped;
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  // A file is refused when its room is reserved.
  CHILD_EXPECT(absl::IsResourceExhausted(
      DiskFile::Create(dir + "/image", 2 * kMiB, &budget).status()));
  CHILD_EXPECT(access((dir + "/image").c_str(), F_OK) != 0);
  CHILD_EXPECT(budget.used_bytes() == 0);
  // A write is refused when someone takes room that was not reserved.
  auto file = DiskFile::Create(dir + "/image", kMiB / 2, &budget);
  CHILD_EXPECT(file.ok());
  CHILD_EXPECT(fallocate((*file)->fd(),
                         FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                         kMiB / 2) == 0);
  auto other =
      DiskFile::CreateTemporary(dir, "other", kMiB - 8 * kPage, &budget);
  CHILD_EXPECT(other.ok());
  auto engine = IoEngine::Create({.backend = backend});
  if (absl::IsUnimplemented(engine.status())) return kSkipped;
  CHILD_EXPECT(engine.ok());
  const HostBuffer buffer = TestBuffer(kMiB / 2);
  IoCompletion done;
  done.Expect(1);
  (*engine)->Write(**file, 0, Span(buffer), &done);
  const absl::Status status = done.Wait();
  fprintf(stderr, "%s\n", status.ToString().c_str());
  CHILD_EXPECT(absl::IsResourceExhausted(status));
  // With room again all is well.
  other->reset();
  done.Expect(1);
  (*engine)->Write(**file, 0, Span(buffer), &done);
  CHILD_EXPECT(done.Wait().ok());
  return 0;
}

TEST_F(DiskFaultsProcessTest, AFullDisk) {
  for (IoEngine::Backend backend :
       {IoEngine::Backend::kUring, IoEngine::Backend::kThreads}) {
    EXPECT_EXIT(Exit([backend](const std::string& dir) {
                  return FillTheDisk(dir, backend);
                }),
                DoneOrSkipped(), "");
    if (skipped_) GTEST_SKIP() << "this user may not mount";
  }
}

int UseReadOnlyDisk(const std::string& dir) {
  const SmallDisk disk(dir);
  if (!disk.mounted() || mount("none", dir.c_str(), nullptr,
                               MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
    return kSkipped;
  }
  const absl::Status status = CreateIn(dir);
  CHILD_EXPECT(absl::IsPermissionDenied(status));
  CHILD_EXPECT(absl::StrContains(status.message(), "read-only"));
  return 0;
}

TEST_F(DiskFaultsProcessTest, AReadOnlyDisk) {
  EXPECT_EXIT(Exit(UseReadOnlyDisk), DoneOrSkipped(), "");
  if (skipped_) GTEST_SKIP() << "this user may not mount";
}

int UseUnreadableDirectory(const std::string& dir) {
  CHILD_EXPECT(chmod(dir.c_str(), 0) == 0);
  // Root may read everything, so it becomes another user for a while.
  const bool root = geteuid() == 0;
  if (root && setresuid(65534, 65534, 0) != 0) return kSkipped;
  const absl::Status create = CreateIn(dir);
  const absl::Status open = DiskFile::OpenForRead(dir + "/image").status();
  CHILD_EXPECT(!root || setresuid(0, 0, 0) == 0);
  CHILD_EXPECT(chmod(dir.c_str(), 0700) == 0);
  CHILD_EXPECT(absl::IsPermissionDenied(create));
  CHILD_EXPECT(absl::StrContains(create.message(), "let this user write"));
  CHILD_EXPECT(absl::IsPermissionDenied(open));
  return 0;
}

TEST_F(DiskFaultsProcessTest, AnUnreadableDirectory) {
  EXPECT_EXIT(Exit(UseUnreadableDirectory), DoneOrSkipped(), "");
  if (skipped_) GTEST_SKIP() << "this user cannot become another";
}

int ForbidUring(const std::string& dir) {
  // The filter is like a container runtime's.
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return kSkipped;
  }
  CHILD_EXPECT(absl::IsUnimplemented(
      IoEngine::Create({.backend = IoEngine::Backend::kUring}).status()));
  auto engine = IoEngine::Create({});
  CHILD_EXPECT(engine.ok());
  CHILD_EXPECT((*engine)->backend() == IoEngine::Backend::kThreads);
  MemoryBudget budget(Tier::kDisk, UINT64_MAX);
  auto file = DiskFile::CreateTemporary(dir, "kv", 16 * kPage, &budget);
  CHILD_EXPECT(file.ok());
  const HostBuffer buffer = TestBuffer(16 * kPage);
  FillPattern(1, Span(buffer));
  IoCompletion done;
  done.Expect(1);
  (*engine)->Write(**file, 0, Span(buffer), &done);
  CHILD_EXPECT(done.Wait().ok());
  done.Expect(1);
  FillPattern(2, Span(buffer));
  (*engine)->Read(**file, 0, Span(buffer), &done);
  CHILD_EXPECT(done.Wait().ok());
  CHILD_EXPECT(HasPattern(1, Span(buffer)));
  return 0;
}

TEST_F(DiskFaultsProcessTest, WithoutUringThreadsDoTheWorkAndSaySo) {
  EXPECT_EXIT(Exit(ForbidUring), DoneOrSkipped(),
              "io_uring.*threads read and write instead");
  if (skipped_) GTEST_SKIP() << "no seccomp here";
}

int UseATmpfsTwice(const std::string&) {
  CHILD_EXPECT(CreateIn("/dev/shm").ok());
  CHILD_EXPECT(CreateIn("/dev/shm").ok());
  fprintf(stderr, "END\n");
  return 0;
}

TEST_F(DiskFaultsProcessTest, ADirectoryWithoutDirectIoIsToldOnce) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no tmpfs at /dev/shm";
  // No second line between the first one's end and END.
  EXPECT_EXIT(Exit(UseATmpfsTwice), DoneOrSkipped(),
              "dir=/dev/shm .*tmpfs[^\n]*\nEND");
}

}  // namespace
}  // namespace sluice
