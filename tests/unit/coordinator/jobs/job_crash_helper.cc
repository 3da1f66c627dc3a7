// A coordinator's job half, to be killed at any moment: opens the state
// directory, uploads jobs (if asked to) and answers requests until all have
// ended. Prints "acknowledged <job id>" for each upload that Commit answered.
//
//   job_crash_helper STATE_DIR UPLOADS REQUESTS

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/host/logging.h"
#include "common/threads/clock.h"
#include "tests/unit/coordinator/jobs/job_test_util.h"

namespace sluice {
namespace {

int Run(const std::string& state_dir, int uploads, int requests) {
  FakeTokenizer tokenizer{FakeTokenizer::kBytes};
  auto metrics = CreateNullMetrics();
  JobManager::Options options;
  options.state_dir = state_dir;
  options.requests.served_model = "m";
  options.requests.max_model_len = 64;
  options.requests.tokenizer = &tokenizer;
  options.clock = Clock::Real();
  options.metrics = metrics.get();
  auto manager = JobManager::Create(options);
  if (!manager.ok()) {
    std::fprintf(stderr, "%s\n", manager.status().ToString().c_str());
    return 1;
  }
  for (int i = 0; i < uploads; ++i) {
    auto upload = (*manager)->BeginUpload({});
    if (!upload.ok() || !(*upload)->Append(Prompts(requests)).ok()) return 1;
    auto job = (*upload)->Commit();
    if (!job.ok()) return 1;
    std::printf("acknowledged %s\n", job->id().c_str());
    std::fflush(stdout);
  }
  while (true) {
    auto batch = (*manager)->TakeRequests(50);
    if (!batch.ok()) return 1;
    if (batch->empty()) return 0;
    for (const Request& request : *batch) {
      (*manager)->Complete(request, TestJobs::Answer(request));
    }
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  sluice::SetLogLevel("error");
  return sluice::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
}
