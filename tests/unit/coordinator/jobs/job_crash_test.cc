// kill -9 at random moments of uploads and of completions, with real processes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/support/test_paths.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

struct Child {
  std::string output;
  bool finished = false;  // by itself, successfully
};

// Runs the helper, and kills it after `patience` unless it ends before.
Child RunHelper(const std::filesystem::path& state_dir, int uploads,
                int requests, absl::Duration patience) {
  int out[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  const std::string program = BinDir() + "/job_crash_helper";
  const std::string uploads_text = absl::StrCat(uploads);
  const std::string requests_text = absl::StrCat(requests);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    execl(program.c_str(), program.c_str(), state_dir.c_str(),
          uploads_text.c_str(), requests_text.c_str(), nullptr);
    _exit(127);
  }
  close(out[1]);
  Child child;
  const absl::Time deadline = absl::Now() + patience;
  bool killed = false;
  while (true) {
    pollfd ready = {out[0], POLLIN, 0};
    const absl::Duration left = deadline - absl::Now();
    poll(&ready, 1,
         killed ? -1
                : static_cast<int>(
                      std::max<int64_t>(0, absl::ToInt64Milliseconds(left))));
    if (!killed && absl::Now() >= deadline) {
      kill(pid, SIGKILL);
      killed = true;
      continue;
    }
    if (ready.revents == 0) continue;
    char buffer[4096];
    const ssize_t n = read(out[0], buffer, sizeof(buffer));
    if (n <= 0) break;
    child.output.append(buffer, n);
  }
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  child.finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(child.finished || WIFSIGNALED(status)) << child.output;
  return child;
}

TEST(JobCrashTest, EveryAcknowledgedRequestHasOneResult) {
  constexpr int kRounds = 12, kRequests = 6000;
  TestJobs jobs;
  jobs.options.requests.served_model = "m";
  std::mt19937 random(20240607);
  std::set<std::string> acknowledged;
  // The helper's time without a kill tells when to kill it.
  const absl::Time start = absl::Now();
  Child child =
      RunHelper(jobs.options.state_dir, 1, kRequests, absl::InfiniteDuration());
  ASSERT_TRUE(child.finished);
  const absl::Duration whole = absl::Now() - start;
  int kills = 0;
  for (int round = 0; round <= kRounds; ++round) {
    if (round > 0) {
      const absl::Duration patience =
          whole * std::uniform_real_distribution<double>(0.05, 1.5)(random);
      child = RunHelper(jobs.options.state_dir, 2, kRequests, patience);
      kills += !child.finished;
    }
    for (absl::string_view line : absl::StrSplit(child.output, '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words.size() == 2) acknowledged.insert(words[1]);
    }
  }
  EXPECT_GT(kills, 0);
  EXPECT_FALSE(acknowledged.empty());

  ASSERT_TRUE(jobs.Open().ok());
  jobs.AnswerAll();
  v1::ListJobsRequest all;
  all.set_page_size(1000);
  auto list = jobs.manager->ListJobs(all);
  ASSERT_TRUE(list.ok());
  for (const v1::Job& job : list->jobs()) {
    // Acknowledgements may have been lost with their process, jobs not.
    acknowledged.erase(job.id());
    const v1::Job end = jobs.WaitForEnd(job.id());
    EXPECT_EQ(end.state(), v1::JOB_STATE_COMPLETED);
    EXPECT_EQ(end.counts().total(), kRequests) << "half an upload";
    EXPECT_EQ(end.counts().completed(), kRequests);
    const auto lines = jobs.Results(job.id());
    ASSERT_EQ(lines.size(), static_cast<size_t>(kRequests));
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_EQ(lines[i]["custom_id"], absl::StrCat("line-", i + 1));
    }
  }
  EXPECT_TRUE(acknowledged.empty()) << "lost: " << *acknowledged.begin();
  // Broken-off uploads leave no file behind.
  for (const auto& entry :
       std::filesystem::directory_iterator(jobs.options.state_dir)) {
    EXPECT_NE(entry.path().filename().string().substr(0, 7), "upload-");
  }
}

}  // namespace
}  // namespace sluice
