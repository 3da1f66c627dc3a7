#include "server/cli/jobs/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/compression/compression.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class OutputFileTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return (dir_ / name).string();
  }
  void Put(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name) << text;
  }
  std::string Get(const std::string& name) const {
    std::ifstream in(dir_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  std::unique_ptr<OutputFile> Plan(const std::string& name,
                                   const std::string& flag = "--output") const {
    auto file = OutputFile::Plan(Path(name), flag);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::string Refusal(const std::string& path) const {
    const absl::Status status = OutputFile::Plan(path, "--output").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--output " + path));
    return std::string(status.message());
  }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
};

TEST_F(OutputFileTest, WhatWasThereStaysUntilTheNewIsWhole) {
  Put("out", "old");
  auto file = Plan("out");
  EXPECT_THAT(Names(), UnorderedElementsAre("out"));  // a plan makes nothing
  ASSERT_TRUE(file->Write("new").ok());
  ASSERT_TRUE(file->Flush().ok());
  EXPECT_EQ(Get("out"), "old");
  EXPECT_EQ(Get("out.sluice-partial"), "new");
  ASSERT_TRUE(file->Commit().ok());
  file.reset();
  EXPECT_EQ(Get("out"), "new");
  EXPECT_THAT(Names(), UnorderedElementsAre("out"));
}

TEST_F(OutputFileTest, WhatIsNotCommittedLeavesNothing) {
  Put("out", "old");
  auto file = Plan("out");
  ASSERT_TRUE(file->Write("new").ok());
  file.reset();
  EXPECT_EQ(Get("out"), "old");
  EXPECT_THAT(Names(), UnorderedElementsAre("out"));
}

TEST_F(OutputFileTest, TakesTheRestOfAKilledProcessesPlace) {
  Put("out.sluice-partial", "much that was written by one that was killed");
  auto file = Plan("out");
  ASSERT_TRUE(file->Write("new").ok());
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Get("out"), "new");
  EXPECT_THAT(Names(), UnorderedElementsAre("out"));
}

TEST_F(OutputFileTest, OneWritesAtATime) {
  auto first = Plan("out");
  ASSERT_TRUE(first->Write("first").ok());
  auto second = Plan("out");
  const absl::Status status = second->Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another process"));
  second.reset();  // and takes nothing away
  ASSERT_TRUE(first->Commit().ok());
  EXPECT_EQ(Get("out"), "first");
}

TEST_F(OutputFileTest, KeepsPermissionsAndFollowsLinks) {
  Put("real", "old");
  ASSERT_EQ(chmod(Path("real").c_str(), 0640), 0);
  fs::create_symlink("real", dir_ / "link");
  auto file = Plan("link");
  ASSERT_TRUE(file->Write("new").ok());
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Get("real"), "new");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  struct stat info {};
  ASSERT_EQ(stat(Path("real").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);

  // A new file gets what umask leaves.
  const mode_t before = umask(027);
  ASSERT_TRUE(WriteOutputFile(Path("fresh"), "--output", "x").ok());
  umask(before);
  ASSERT_EQ(stat(Path("fresh").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);

  // Writing to a dangling link makes its target.
  fs::create_symlink("later", dir_ / "dangling");
  ASSERT_TRUE(WriteOutputFile(Path("dangling"), "--output", "y").ok());
  EXPECT_EQ(Get("later"), "y");
}

TEST_F(OutputFileTest, AppendsInPlace) {
  Put("out", "one\n");
  auto file = Plan("out");
  ASSERT_TRUE(file->Open(true).ok());
  ASSERT_TRUE(file->Write("two\n").ok());
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(Get("out"), "one\ntwo\n");
}

TEST_F(OutputFileTest, WritesDirectlyWhereNothingCanBeReplaced) {
  auto null = OutputFile::Plan("/dev/null", "--output");
  ASSERT_TRUE(null.ok()) << null.status();
  EXPECT_FALSE((*null)->is_file());
  EXPECT_TRUE((*null)->Write("x").ok());
  EXPECT_TRUE((*null)->Commit().ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));

  auto full = OutputFile::Plan("/dev/full", "--output");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE((*full)->Write("x").ok());
  const absl::Status status = (*full)->Commit();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/full"));

  for (const char* name : {"-", "/dev/stdout"}) {
    auto out = OutputFile::Plan(name, "--output");
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ((*out)->path(), "-");
    EXPECT_FALSE((*out)->is_file());
  }
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(Plan("pipe")->is_file());
}

// Containers mount single files, into folders that may take no others.
TEST_F(OutputFileTest, WritesAFileInPlaceWhoseFolderTakesNoOther) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  Put("out", "old and longer");
  ASSERT_EQ(chmod(dir_.c_str(), 0555), 0);
  EXPECT_THAT(Refusal(Path("new")), HasSubstr("no file can be made"));
  auto file = Plan("out");
  EXPECT_TRUE(file->is_file());
  EXPECT_FALSE(file->folder_writable());
  ASSERT_TRUE(file->Write("new").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Plan("out")->Open()));
  ASSERT_TRUE(file->Commit().ok());
  file.reset();
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  EXPECT_EQ(Get("out"), "new");
  EXPECT_THAT(Names(), UnorderedElementsAre("out"));
}

// A target that turns out not to be replaceable when all is computed.
TEST_F(OutputFileTest, KeepsWhatCannotTakeItsPlace) {
  Put("out", "old and longer");
  auto file = Plan("out");
  ASSERT_TRUE(file->Write("new").ok());
  fs::remove(dir_ / "out");
  fs::create_directory(dir_ / "out");
  const absl::Status status = file->Commit();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is whole in"));
  EXPECT_EQ(Get("out.sluice-partial"), "new");
}

TEST_F(OutputFileTest, ANameThatPromisesACompressedFileIsRefused) {
  for (const char* name : {"a.jsonl.gz", "a.GZ", "a.zst", "a.xz", "a.bz2"}) {
    EXPECT_THAT(Refusal(Path(name)), HasSubstr("pack the file"));
  }
  const absl::Status status =
      OutputFile::Plan(Path("a.xz"), "--output", nullptr, true).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("name it .gz or .zst"));
}

TEST_F(OutputFileTest, ACompressedFileCanBeAppendedTo) {
  for (const char* name : {"a.gz", "b.zst"}) {
    for (const char* text : {"one\n", "two\n"}) {
      auto file = OutputFile::Plan(Path(name), "--output", nullptr, true);
      ASSERT_TRUE(file.ok()) << file.status();
      ASSERT_TRUE((*file)->Open(/*append=*/true).ok());
      EXPECT_EQ((*file)->continues(), std::string(text) == "two\n");
      ASSERT_TRUE((*file)->Write(text).ok());
      ASSERT_TRUE((*file)->Flush().ok());
      ASSERT_TRUE((*file)->Commit().ok());
    }
    const std::string packed = Get(name);
    absl::string_view rest = packed;
    DecompressingReader reader([&](char* out, size_t size) {
      const size_t n = rest.copy(out, size);
      rest.remove_prefix(n);
      return absl::StatusOr<size_t>(n);
    });
    std::string text(100, '\0');
    size_t filled = 0;
    while (const size_t n =
               reader.Read(text.data() + filled, text.size() - filled)
                   .value_or(0)) {
      filled += n;
    }
    EXPECT_EQ(text.substr(0, filled), "one\ntwo\n");
  }
}

TEST_F(OutputFileTest, SaysBeforehandWhatCannotBeWritten) {
  EXPECT_THAT(Refusal(dir_.string()), HasSubstr("directory"));
  EXPECT_THAT(Refusal(Path("missing/out")), HasSubstr("no directory"));
  EXPECT_THAT(Refusal(Path("new/")), HasSubstr("directory"));
  Put("file", "");
  EXPECT_THAT(Refusal(Path("file/out")), HasSubstr("Not a directory"));
  if (geteuid() == 0) return;  // may write everywhere
  ASSERT_EQ(chmod(Path("file").c_str(), 0444), 0);
  EXPECT_THAT(Refusal(Path("file")), HasSubstr("Permission denied"));
}

TEST_F(OutputFileTest, OneFileIsNotTwo) {
  Put("in", "requests");
  fs::create_symlink("in", dir_ / "soft");
  fs::create_hard_link(dir_ / "in", dir_ / "hard");
  for (const char* name : {"in", "soft", "hard"}) {
    auto output = Plan(name);
    const absl::Status status =
        CheckDistinct({{Path("in"), "--input"}}, {output.get()});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--input " + Path("in") + " and --output " +
                          Path(name) + " are one file"));
  }
  // Files that do not exist yet are compared by name.
  fs::create_directory_symlink(dir_, dir_ / "again");
  auto output = Plan("out");
  auto errors = Plan("again/out", "--errors");
  EXPECT_TRUE(absl::IsInvalidArgument(
      CheckDistinct({}, {output.get(), nullptr, errors.get()})));
  auto others = Plan("errors", "--errors");
  EXPECT_TRUE(CheckDistinct({{Path("in"), "--input"}, {"-", "--input"}},
                            {output.get(), others.get()})
                  .ok());
  // Writing to devices loses no data.
  auto null = OutputFile::Plan("/dev/null", "--output");
  EXPECT_TRUE(
      CheckDistinct({{"/dev/null", "--input"}}, {null->get(), null->get()})
          .ok());
}

}  // namespace
}  // namespace sluice
