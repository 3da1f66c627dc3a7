#include "server/cli/run/run_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RunStateTest : public testing::Test {
 protected:
  RunStateTest() {
    std::ofstream(dir_ / "in") << "{}\n";
    auto output = OutputFile::Plan((dir_ / "out").string(), "--output");
    EXPECT_TRUE(output.ok()) << output.status();
    output_ = *std::move(output);
    options_.input = (dir_ / "in").string();
    options_.output = output_.get();
    options_.signals = &signals_;
  }

  absl::StatusOr<std::unique_ptr<RunState>> Open() const {
    return RunState::Open(options_, facts_);
  }
  // A run that is killed when its job is stored.
  void RunAndBeKilled() const {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    for (const char* name : {"sluice.db", "sluice.db-wal", "sluice.accepted",
                             "reserve", "other"}) {
      std::ofstream((*state)->path() / name) << "store";
    }
    ASSERT_TRUE((*state)->OnJobCreated().ok());
  }
  std::string Refusal() const {
    const absl::Status status = Open().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  const TempDir temp_;
  const std::filesystem::path& dir_ = temp_.path();
  StopSignals signals_{{}};
  std::unique_ptr<OutputFile> output_;
  RunState::Options options_;
  RunState::Facts facts_ = {{"--max-tokens", "32"}, {"tokenizer.json", "ab12"}};
};

TEST_F(RunStateTest, AnEqualRunGoesOnWithTheSameJob) {
  std::string id;
  {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_FALSE((*state)->resumes());
    EXPECT_EQ((*state)->path(), dir_ / "out.sluice");
    id = (*state)->request_id();
    EXPECT_NE(id, "");
  }
  // Nothing was stored, so nothing is kept.
  EXPECT_FALSE(fs::exists(dir_ / "out.sluice"));
  RunAndBeKilled();
  EXPECT_TRUE(fs::exists(dir_ / "out.sluice" / "sluice.db"));
  auto state = Open();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE((*state)->resumes());
  EXPECT_EQ((*state)->request_id(), id);
  ASSERT_TRUE((*state)->OnJobCreated().ok());
  ASSERT_TRUE((*state)->Finish().ok());
  EXPECT_FALSE(fs::exists(dir_ / "out.sluice"));
}

TEST_F(RunStateTest, AnotherRunIsToldWhatDiffers) {
  RunAndBeKilled();
  facts_["--max-tokens"] = "64";
  EXPECT_THAT(Refusal(), HasSubstr("--max-tokens was 32 and is 64"));
  EXPECT_THAT(Refusal(), HasSubstr("--restart"));
  EXPECT_THAT(Refusal(), Not(HasSubstr("tokenizer")));
  facts_["--max-tokens"] = "";
  EXPECT_THAT(Refusal(), HasSubstr("--max-tokens was 32 and is not given"));
  facts_["--max-tokens"] = "32";
  facts_["tokenizer.json"] = "cd34";
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer.json is another one"));
  facts_["tokenizer.json"] = "ab12";
  std::ofstream(dir_ / "in") << "{ }\n";
  EXPECT_THAT(Refusal(), HasSubstr("the input is another one"));
  // None of these touches the existing files.
  EXPECT_TRUE(fs::exists(dir_ / "out.sluice" / "sluice.db"));
  std::ofstream(dir_ / "in") << "{}\n";
  EXPECT_TRUE((*Open())->resumes());
}

TEST_F(RunStateTest, RestartGivesUpWhatWasThere) {
  RunAndBeKilled();
  facts_["--max-tokens"] = "64";
  options_.restart = true;
  auto state = Open();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE((*state)->resumes());
  EXPECT_FALSE(fs::exists(dir_ / "out.sluice" / "sluice.db"));
}

TEST_F(RunStateTest, NothingOfOthersIsTaken) {
  fs::create_directory(dir_ / "out.sluice");
  std::ofstream(dir_ / "out.sluice" / "sluice.db") << "a coordinator's";
  EXPECT_THAT(Refusal(), HasSubstr("no `sluice run` made"));
  options_.restart = true;
  EXPECT_THAT(Refusal(), HasSubstr("no `sluice run` made"));
  EXPECT_TRUE(fs::exists(dir_ / "out.sluice" / "sluice.db"));
  fs::remove_all(dir_ / "out.sluice");
  std::ofstream(dir_ / "out.sluice") << "a file";
  EXPECT_THAT(Refusal(), HasSubstr("is no directory"));
  fs::remove(dir_ / "out.sluice");
  // Other files stay.
  options_.restart = false;
  fs::create_directory(dir_ / "out.sluice");
  std::ofstream(dir_ / "out.sluice" / "notes") << "mine";
  ASSERT_TRUE(Open().ok());
  EXPECT_TRUE(fs::exists(dir_ / "out.sluice" / "notes"));
}

TEST_F(RunStateTest, NoFileOfTheUsersIsLostInANamedDirectory) {
  options_.state_dir = dir_.string();
  // Files with similar names to a run's may exist.
  for (const char* name : {"sluice.txt", "sluice.db.bak", "notes"}) {
    std::ofstream(dir_ / name) << "mine";
  }
  for (const char* name :
       {"input", "model", "lock", "reserve", "sluice.accepted", "sluice.db-wal",
        "upload-1", "run.json"}) {
    std::ofstream(dir_ / name) << "[\"mine\"]\n";
    for (const bool restart : {false, true}) {
      options_.restart = restart;
      EXPECT_THAT(Refusal(), AllOf(HasSubstr((dir_ / name).string()),
                                   HasSubstr("no `sluice run`"),
                                   HasSubstr("say another --state-dir")));
      EXPECT_TRUE(fs::exists(dir_ / name)) << name;
    }
    fs::remove(dir_ / name);
  }
  // A link that leads nowhere is a user's, too.
  fs::create_symlink("nowhere", dir_ / "model");
  EXPECT_THAT(Refusal(), HasSubstr("model"));
  fs::remove(dir_ / "model");
  // A failed run removes its own files, a restarted one another run's.
  for (const bool killed : {false, true}) {
    if (killed) RunAndBeKilled();
    options_.restart = killed;
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    std::ofstream(dir_ / "sluice.db") << "store";
    std::ofstream(dir_ / "sluice.db-wal") << "store";
    state->reset();
    for (const char* name : {"sluice.db", "sluice.db-wal", "run.json"}) {
      EXPECT_FALSE(fs::exists(dir_ / name)) << name;
    }
    for (const char* name : {"in", "sluice.txt", "sluice.db.bak", "notes"}) {
      EXPECT_TRUE(fs::exists(dir_ / name)) << name;
    }
  }
}

TEST_F(RunStateTest, NeitherInputNorOutputMayBeAFileOfTheRun) {
  const fs::path state = dir_ / "state";
  options_.state_dir = state.string();
  RunAndBeKilled();
  ASSERT_TRUE((*Open())->Finish().ok());
  std::ofstream(state / "input") << "{}\n";
  fs::create_symlink(state / "input", dir_ / "link");
  for (const fs::path& input : {state / "input", dir_ / "link"}) {
    options_.input = input.string();
    for (const bool restart : {false, true}) {
      options_.restart = restart;
      EXPECT_THAT(Refusal(), HasSubstr("--input " + input.string()));
    }
  }
  options_.input = (dir_ / "in").string();
  auto output = OutputFile::Plan((state / "model").string(), "--output");
  ASSERT_TRUE(output.ok()) << output.status();
  options_.output = output->get();
  EXPECT_THAT(Refusal(), HasSubstr("--output"));
  EXPECT_TRUE(fs::exists(state / "input"));
  // A file of another name may be in the directory.
  options_.output = output_.get();
  options_.restart = false;
  options_.input = (state / "prompts").string();
  std::ofstream(options_.input) << "{}\n";
  auto run = Open();
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->OnJobCreated().ok());
  EXPECT_TRUE(fs::exists(options_.input));
}

TEST_F(RunStateTest, APipeThatWasNotReadToItsEndStandsInNobodysWay) {
  options_.state_dir = (dir_ / "state").string();
  fs::create_directory(dir_ / "state");
  std::ofstream(dir_ / "state" / "input.sluice-partial") << "a killed run's";
  options_.input = "/dev/null";
  auto state = Open();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(fs::exists(dir_ / "state" / "input"));
  ASSERT_TRUE((*state)->OnJobCreated().ok());
  EXPECT_FALSE(fs::exists(dir_ / "state" / "input"));
}

TEST_F(RunStateTest, ADamagedManifestIsSaid) {
  RunAndBeKilled();
  std::ofstream(dir_ / "out.sluice" / "run.json") << "{";
  EXPECT_THAT(Refusal(), HasSubstr("run.json is damaged"));
  options_.restart = true;
  EXPECT_TRUE(Open().ok());
}

TEST_F(RunStateTest, AnInputThatCannotBeReadCostsNoAnswers) {
  const std::string in = options_.input;
  for (const fs::path& state : {dir_ / "out.sluice", dir_ / "state"}) {
    if (state == dir_ / "state") options_.state_dir = state.string();
    for (const bool finished : {false, true}) {
      options_.input = in;
      RunAndBeKilled();
      if (finished && !options_.state_dir.empty()) {
        ASSERT_TRUE((*Open())->Finish().ok());
      }
      options_.input = (dir_ / "gone").string();
      EXPECT_THAT(Refusal(), HasSubstr("can't read the input"));
      EXPECT_TRUE(fs::exists(state / "sluice.db"));
      // The input is copied, like a pipe, while another run does so already.
      options_.input = "/dev/null";
      auto other = OutputFile::Plan((state / "input").string(), "--output");
      ASSERT_TRUE(other.ok()) << other.status();
      ASSERT_TRUE((*other)->Open().ok());
      const absl::Status status = Open().status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_TRUE(fs::exists(state / "input.sluice-partial"));
      EXPECT_TRUE(fs::exists(state / "sluice.db"));
      EXPECT_TRUE(fs::exists(state / "run.json"));
    }
    options_.input = in;
    EXPECT_TRUE((*Open())->resumes());
  }
}

TEST_F(RunStateTest, ARunThatBeganWhileAPipeWasReadGoesFirst) {
  const std::string in = options_.input;
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread other([&] {
    // Waits until the run below opens the pipe, after checking the directory.
    std::ofstream writer(pipe);
    writer << "{}\n" << std::flush;
    RunState::Options options = options_;
    options.input = in;
    auto state = RunState::Open(options, facts_);
    EXPECT_TRUE(state.ok()) << state.status();
    std::ofstream(dir_ / "out.sluice" / "sluice.db") << "store";
    EXPECT_TRUE((*state)->OnJobCreated().ok());
  });
  RunState::Options options = options_;
  options.input = pipe;
  const absl::Status status = RunState::Open(options, facts_).status();
  other.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another run began"));
  EXPECT_TRUE(fs::exists(dir_ / "out.sluice" / "sluice.db"));
  EXPECT_TRUE((*Open())->resumes());
}

TEST_F(RunStateTest, OnlyAJobThatIsKnownToHaveNoAnswersIsDropped) {
  const fs::path store = dir_ / "out.sluice" / "sluice.db";
  v1::Job job;
  job.set_id("job_1");
  job.mutable_counts()->set_total(3);
  const auto stop = [&](const absl::StatusOr<v1::Job>& known) {
    auto state = Open();
    EXPECT_TRUE(state.ok()) << state.status();
    std::ofstream(store) << "store";
    EXPECT_TRUE((*state)->OnJobCreated().ok());
    return (*state)->OnStopped(known);
  };
  EXPECT_EQ(stop(job), "nothing was answered yet");
  EXPECT_FALSE(fs::exists(store));
  EXPECT_THAT(stop(absl::DataLossError("the disk is ill")),
              AllOf(HasSubstr("the disk is ill"), HasSubstr("kept in"),
                    HasSubstr("run the same command again")));
  EXPECT_TRUE(fs::exists(store));
  // An earlier run may have left files.
  EXPECT_EQ(stop(job), "nothing was answered yet");
  EXPECT_TRUE(fs::exists(store));
  job.mutable_counts()->set_completed(1);
  job.mutable_counts()->set_failed(1);
  EXPECT_THAT(stop(job), HasSubstr("2 of 3 answers are kept in"));
  EXPECT_TRUE(fs::exists(store));
}

TEST_F(RunStateTest, AJobWithTokensIsKeptThoughItHasNoAnswer) {
  const fs::path store = dir_ / "out.sluice" / "sluice.db";
  v1::Job job;
  job.set_id("job_1");
  job.mutable_counts()->set_total(3);
  {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    std::ofstream(store) << "store";
    ASSERT_TRUE((*state)->OnJobCreated().ok());
    EXPECT_EQ((*state)->OnStopped(job, {.requests = 2, .tokens = 17}),
              absl::StrCat("0 of 3 answers are kept in ",
                           (dir_ / "out.sluice").string(),
                           "; run the same command again to go on; of 2 more, "
                           "17 tokens are kept, too"));
  }
  EXPECT_TRUE(fs::exists(store));
}

TEST_F(RunStateTest, ANamedDirectoryIsKeptAndServesOneRunAfterTheOther) {
  options_.state_dir = (dir_ / "state").string();
  RunAndBeKilled();
  {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE((*state)->resumes());
    ASSERT_TRUE((*state)->Finish().ok());
  }
  EXPECT_TRUE(fs::exists(dir_ / "state" / "sluice.db"));
  {
    // The same again: its answers are there.
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE((*state)->resumes());
    ASSERT_TRUE((*state)->Finish().ok());
  }
  facts_["--max-tokens"] = "64";
  {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_FALSE((*state)->resumes());
  }
  // The run made no job: the kept files belong to no unfinished run.
  EXPECT_TRUE(fs::exists(dir_ / "state" / "sluice.db"));
  facts_["--max-tokens"] = "65";
  EXPECT_TRUE(Open().ok());
}

TEST_F(RunStateTest, WhatCannotBeResumedIsTemporary) {
  auto output = OutputFile::Plan("/dev/null", "--output");
  ASSERT_TRUE(output.ok());
  options_.output = output->get();
  fs::path path;
  {
    auto state = Open();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_FALSE((*state)->durable());
    EXPECT_EQ((*state)->request_id(), "");
    path = (*state)->path();
    std::ofstream(path / "sluice.db") << "store";
    ASSERT_TRUE((*state)->OnJobCreated().ok());
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RunStateTest, TheInputIsReadFromItsBeginning) {
  auto state = Open();
  ASSERT_TRUE(state.ok()) << state.status();
  auto input = (*state)->OpenInput();
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(**input), {}), "{}\n");
  // An input that changes meanwhile makes no job.
  std::ofstream(dir_ / "in") << "{}\n{}\n";
  fs::last_write_time(dir_ / "in",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_TRUE(absl::IsFailedPrecondition((*state)->OnJobCreated()));
}

}  // namespace
}  // namespace sluice
