// A job of 100,000 requests is accepted, run and read back: its memory must not
// depend on its size.

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The peak memory of this process in MiB.
int64_t PeakMib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) != 0) continue;
    int64_t kib = 0;
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (absl::SimpleAtoi(words[words.size() - 2], &kib)) return kib / 1024;
  }
  return -1;
}

TEST(JobMemoryTest, AHundredThousandRequests) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have memory needs of their own";
  constexpr int kRequests = 100'000;
  TestJobs jobs;
  ASSERT_TRUE(jobs.Open().ok());
  auto upload = jobs.manager->BeginUpload({});
  ASSERT_TRUE(upload.ok());
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(
        (*upload)
            ->Append(absl::StrCat("{\"custom_id\": \"request number ", i,
                                  "\", \"prompt\": \"a short prompt, number ",
                                  i, "\", \"max_tokens\": 8}\n"))
            .ok());
  }
  auto job = (*upload)->Commit();
  ASSERT_TRUE(job.ok()) << job.status();
  upload->reset();
  EXPECT_EQ(job->counts().total(), kRequests);
  EXPECT_EQ(jobs.AnswerAll(), kRequests);
  EXPECT_EQ(jobs.WaitForEnd(job->id()).counts().completed(), kRequests);
  int64_t offset = 0;
  while (offset < kRequests) {
    auto chunk = jobs.manager->ReadResults(job->id(), offset, 1 << 20);
    ASSERT_TRUE(chunk.ok());
    ASSERT_FALSE(chunk->results().empty());
    offset = chunk->next_offset();
  }
  EXPECT_GT(PeakMib(), 0);
  EXPECT_LT(PeakMib(), 128);
}

}  // namespace
}  // namespace sluice
