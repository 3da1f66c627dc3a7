#include "common/host/write_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/host/read_file.h"
#include "common/threads/thread.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(WriteFileTest, AFileTakesTheOldOnesPlace) {
  const TempDir dir = TempDir::OnDisk();
  const std::filesystem::path path = dir / "file";
  for (const std::string text : {"old and long", "new", ""}) {
    ASSERT_TRUE(ReplaceFile(path, text).ok());
    EXPECT_EQ(*ReadSmallFile(path, 100), text);
    EXPECT_EQ(dir.num_entries(), 1u);
  }
  EXPECT_TRUE(SyncDirectory(dir.path()).ok());
}

// Readers see one writer's file whole, whoever else writes.
TEST(WriteFileTest, WritersDoNotMix) {
  const TempDir dir = TempDir::OnDisk();
  const std::filesystem::path path = dir / "file";
  ASSERT_TRUE(ReplaceFile(path, std::string(10'000, 'a')).ok());
  Thread other("writer", [&] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(ReplaceFile(path, std::string(20'000, 'b')).ok());
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(ReplaceFile(path, std::string(10'000, 'a')).ok());
    const std::string text = *ReadSmallFile(path, 1 << 20);
    EXPECT_EQ(text, std::string(text[0] == 'a' ? 10'000 : 20'000, text[0]));
  }
  other.Join();
  EXPECT_EQ(dir.num_entries(), 1u);
}

TEST(WriteFileTest, AFullDiskLeavesTheOldFile) {
  const TempDir dir = TempDir::OnDisk();
  const std::filesystem::path path = dir / "file";
  ASSERT_TRUE(ReplaceFile(path, "old").ok());
  {
    const FileSizeLimit limit(4096);
    const absl::Status status = ReplaceFile(path, std::string(10'000, 'x'));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("cannot write ", path.string(), ": ")));
  }
  EXPECT_EQ(*ReadSmallFile(path, 100), "old");
  EXPECT_EQ(dir.num_entries(), 1u);
}

TEST(WriteFileTest, ADirectoryIsMadeInOneThatIsThere) {
  const TempDir dir;
  const std::string path = dir.path().string();
  for (const std::string& made : {path + "/a", path + "/a", path + "/b/"}) {
    EXPECT_TRUE(MakeDirectory("--x", made).ok());
    EXPECT_TRUE(std::filesystem::is_directory(made));
  }
  for (const char* below : {"/no/x", "/no/x/", "/no/y/x"}) {
    const absl::Status status = MakeDirectory("--x", path + below);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("--x " + path + below +
                                    ": there is no directory " + path + "/no"),
              std::string::npos)
        << status;
    EXPECT_FALSE(std::filesystem::exists(path + "/no"));
  }
  ASSERT_TRUE(ReplaceFile(path + "/file", "x").ok());
  EXPECT_FALSE(MakeDirectory("--x", path + "/file").ok());
  EXPECT_FALSE(MakeDirectory("--x", path + "/file/x").ok());
}

TEST(WriteFileTest, WhatIsInTheWayIsNamed) {
  const TempDir dir = TempDir::OnDisk();
  EXPECT_EQ(ReplaceFile(dir.path(), "text").code(),
            absl::StatusCode::kFailedPrecondition);
  const absl::Status missing = ReplaceFile(dir / "none/file", "text");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(dir / "none/file"));
  const absl::Status no_folder = SyncDirectory(dir / "none");
  EXPECT_EQ(no_folder.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(no_folder.message(), HasSubstr(dir / "none"));
}

}  // namespace
}  // namespace sluice
