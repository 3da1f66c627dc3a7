#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "coordinator/jobs/job_manager.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_metrics.h"

namespace sluice {

// A JobManager on a temporary directory, which can be closed and opened again.
struct TestJobs {
  TestJobs();

  absl::Status Open();
  void Close() { manager.reset(); }
  void Reopen();

  absl::StatusOr<v1::Job> Submit(absl::string_view input,
                                 const v1::JobSpec& spec = {});
  // Takes and answers requests until there are none; returns how many.
  int AnswerAll();
  static Generation Answer(const Request& request);

  // Waits until the job has ended.
  v1::Job WaitForEnd(const std::string& id);
  v1::Job WaitFor(const std::string& id,
                  const std::function<bool(const v1::Job&)>& condition);
  v1::Job Get(const std::string& id);
  // All result lines from the start up to the first one missing.
  std::vector<nlohmann::json> Results(const std::string& id);

  TempDir dir;
  FakeTokenizer tokenizer{FakeTokenizer::kBytes};
  ManualClock clock;
  TestMetrics metrics;
  JobManager::Options options;
  std::unique_ptr<JobManager> manager;
};

// `count` lines {"prompt": "p<i>"}.
std::string Prompts(int count);

}  // namespace sluice
