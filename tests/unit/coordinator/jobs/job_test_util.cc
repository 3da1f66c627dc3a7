#include "tests/unit/coordinator/jobs/job_test_util.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "coordinator/jobs/job_state.h"

namespace sluice {

TestJobs::TestJobs() {
  options.state_dir = dir.path() / "state";
  options.requests.served_model = "test-model";
  options.requests.max_model_len = 512;
  options.requests.default_max_tokens = 16;
  options.requests.tokenizer = &tokenizer;
  options.clock = &clock;
  options.metrics = &metrics;
}

absl::Status TestJobs::Open() {
  SLUICE_ASSIGN_OR_RETURN(manager, JobManager::Create(options));
  return absl::OkStatus();
}

void TestJobs::Reopen() {
  Close();
  ASSERT_TRUE(Open().ok());
}

absl::StatusOr<v1::Job> TestJobs::Submit(absl::string_view input,
                                         const v1::JobSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(auto upload, manager->BeginUpload(spec));
  SLUICE_RETURN_IF_ERROR(upload->Append(input));
  return upload->Commit();
}

Generation TestJobs::Answer(const Request& request) {
  Generation generation;
  generation.text = "answer to " + request.custom_id;
  generation.tokens = {68, 69};
  generation.generated = 2;
  generation.finish_reason = FinishReason::kLength;
  return generation;
}

int TestJobs::AnswerAll() {
  int answered = 0;
  while (true) {
    auto requests = manager->TakeRequests(64);
    EXPECT_TRUE(requests.ok()) << requests.status();
    if (!requests.ok() || requests->empty()) return answered;
    for (const Request& request : *requests) {
      manager->Complete(request, Answer(request));
      ++answered;
    }
  }
}

v1::Job TestJobs::Get(const std::string& id) {
  auto job = manager->GetJob(id);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : v1::Job();
}

v1::Job TestJobs::WaitForEnd(const std::string& id) {
  return WaitFor(id,
                 [](const v1::Job& job) { return IsTerminal(job.state()); });
}

v1::Job TestJobs::WaitFor(
    const std::string& id,
    const std::function<bool(const v1::Job&)>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (true) {
    v1::Job job = Get(id);
    if (condition(job) || testing::Test::HasFailure()) return job;
    EXPECT_LT(absl::Now(), deadline) << "waited in vain: " << job.DebugString();
    // Others may wait too, and take the news away.
    manager->WaitForChanges(absl::Milliseconds(20));
  }
}

std::vector<nlohmann::json> TestJobs::Results(const std::string& id) {
  std::vector<nlohmann::json> lines;
  int64_t offset = 0;
  while (true) {
    auto chunk = manager->ReadResults(id, offset, 1 << 20);
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    if (!chunk.ok() || chunk->results().empty()) return lines;
    for (const v1::Result& result : chunk->results()) {
      EXPECT_EQ(result.index(), offset++);
      lines.push_back(nlohmann::json::parse(result.line()));
      EXPECT_EQ(result.is_error(), !lines.back()["error"].is_null());
    }
    EXPECT_EQ(chunk->next_offset(), offset);
  }
}

std::string Prompts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": \"p", i, "\"}\n");
  }
  return lines;
}

}  // namespace sluice
