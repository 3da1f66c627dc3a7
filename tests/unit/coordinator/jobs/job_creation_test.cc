// Tests of the creation of jobs: by request ids, and from files of the
// coordinator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "coordinator/jobs/job_manager.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class JobCreationTest : public testing::Test, public TestJobs {
 protected:
  JobCreationTest() { EXPECT_TRUE(Open().ok()); }
};

TEST_F(JobCreationTest, RequestIdsMakeCreationIdempotent) {
  v1::JobSpec spec;
  spec.set_request_id("r");
  auto job = Submit(Prompts(2), spec);
  ASSERT_TRUE(job.ok());
  for (int i = 0; i < 2; ++i) {
    auto again = Submit(Prompts(2), spec);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->id(), job->id());
    EXPECT_EQ(again->counts().total(), 2);
    if (i == 0) Reopen();
  }
  // The input may be cut anywhere.
  auto upload = manager->BeginUpload(spec);
  const std::string text = Prompts(2);
  for (const char c : text) {
    ASSERT_TRUE((*upload)->Append(std::string(1, c)).ok());
  }
  EXPECT_EQ((*upload)->Commit()->id(), job->id());
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
  spec.set_request_id("other");
  EXPECT_NE(Submit(Prompts(2), spec)->id(), job->id());
}

TEST_F(JobCreationTest, ARepeatedUploadAnswersWithTheJobAsItIsAtItsEnd) {
  v1::JobSpec spec;
  spec.set_request_id("r");
  const std::string id = Submit(Prompts(1), spec)->id();
  auto upload = manager->BeginUpload(spec);
  auto late = manager->BeginUpload(spec);
  ASSERT_TRUE(upload.ok() && late.ok());
  EXPECT_TRUE((*upload)->Append(Prompts(1)).ok());
  EXPECT_TRUE((*late)->Append(Prompts(1)).ok());
  AnswerAll();
  WaitForEnd(id);
  const auto job = (*upload)->Commit();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::JOB_STATE_COMPLETED);
  ASSERT_TRUE(manager->DeleteJob(id).ok());
  EXPECT_TRUE(absl::IsUnavailable((*late)->Commit().status()));
}

TEST_F(JobCreationTest, AnUploadThatIsStoppedMakesNoJob) {
  v1::JobSpec spec;
  spec.set_request_id("r");
  bool stopped = false;
  auto upload = manager->BeginUpload(spec, [&] { return stopped; });
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE((*upload)->Append(Prompts(2)).ok());
  stopped = true;
  EXPECT_TRUE(absl::IsCancelled((*upload)->Append(Prompts(2))));
  EXPECT_TRUE(absl::IsCancelled((*upload)->Commit().status()));
  upload->reset();
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
}

TEST_F(JobCreationTest, ARequestIdIsNotForAnotherJob) {
  v1::JobSpec spec;
  spec.set_request_id("r");
  const std::string id = Submit(Prompts(2), spec)->id();
  const absl::Status other_data = Submit(Prompts(5), spec).status();
  EXPECT_TRUE(absl::IsAlreadyExists(other_data)) << other_data;
  EXPECT_THAT(std::string(other_data.message()), HasSubstr(id));
  spec.mutable_defaults()->set_max_tokens(7);
  const absl::Status other_spec = Submit(Prompts(2), spec).status();
  EXPECT_TRUE(absl::IsAlreadyExists(other_spec)) << other_spec;
  EXPECT_THAT(std::string(other_spec.message()), HasSubstr("another spec"));
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 1);
}

class InputPathTest : public JobCreationTest {
 protected:
  InputPathTest() {
    root_ = dir.path() / "root";
    std::filesystem::create_directories(root_ / "sub");
    Write(root_ / "sub" / "in.jsonl", Prompts(3));
    Write(dir.path() / "secret", Prompts(3));
    options.input_root = root_;
    Reopen();
  }
  static void Write(const std::filesystem::path& path,
                    const std::string& text) {
    std::ofstream(path) << text;
  }
  absl::StatusOr<v1::Job> From(const std::string& path,
                               const std::string& request_id = "") {
    v1::JobSpec spec;
    spec.set_input_path(path);
    spec.set_request_id(request_id);
    return manager->CreateFromPath(spec);
  }
  std::filesystem::path root_;
};

TEST_F(InputPathTest, ReadsFilesUnderTheRoot) {
  auto job = From("sub/in.jsonl", "r");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->counts().total(), 3);
  EXPECT_TRUE(From("./sub/../sub/in.jsonl").ok());
  EXPECT_TRUE(From((root_ / "sub" / "in.jsonl").string()).ok());
  std::filesystem::create_symlink("sub/in.jsonl", root_ / "link");
  EXPECT_TRUE(From("link").ok());
  // The call is idempotent even if the file is removed.
  std::filesystem::remove(root_ / "sub" / "in.jsonl");
  EXPECT_EQ(From("sub/in.jsonl", "r")->id(), job->id());
}

TEST_F(InputPathTest, AFileThatNobodyWaitsForAnyMoreMakesNoJob) {
  v1::JobSpec spec;
  spec.set_input_path("sub/in.jsonl");
  for (int before = 0; before < 3; ++before) {
    int asked = 0;
    const auto stopped = [&] { return ++asked > before; };
    EXPECT_TRUE(
        absl::IsCancelled(manager->CreateFromPath(spec, stopped).status()));
  }
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
}

TEST_F(InputPathTest, NothingLeadsOut) {
  std::filesystem::create_symlink(dir.path() / "secret", root_ / "out");
  std::filesystem::create_directory_symlink(dir.path(), root_ / "up");
  for (const std::string& path :
       {std::string("../secret"), std::string("sub/../../secret"),
        (dir.path() / "secret").string(), std::string("out"),
        std::string("up/secret"), std::string("up/none"),
        std::string("../none"), std::string("/etc/passwd"),
        root_.string() + "-other/x"}) {
    const absl::Status status = From(path).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << path << ": " << status;
  }
  EXPECT_EQ(manager->ListJobs({})->jobs_size(), 0);
}

TEST_F(InputPathTest, OnlyRegularFiles) {
  EXPECT_TRUE(absl::IsNotFound(From("none").status()));
  EXPECT_TRUE(absl::IsNotFound(From("sub/in.jsonl/x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(From("sub").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(From("").status()));
  ASSERT_EQ(mkfifo((root_ / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(From("fifo").status()));
  Write(root_ / "empty", "");
  EXPECT_TRUE(absl::IsInvalidArgument(From("empty").status()));
}

TEST_F(InputPathTest, NoRootNoFiles) {
  options.input_root.clear();
  Reopen();
  const absl::Status status = From("sub/in.jsonl").status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
}

}  // namespace
}  // namespace sluice
