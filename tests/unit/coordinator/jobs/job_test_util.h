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
#include "coordinator/job_manager.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// A directory of its own, removed at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Token b + 3 is byte b; 1 is <s>, put before every text, 2 is </s>.
class ByteTokenizer : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text, bool add_special_tokens) const override;
  std::string Decode(std::span<const int32_t> ids,
                     bool skip_special_tokens) const override;
  std::unique_ptr<DecodeStream> NewDecodeStream(
      bool skip_special_tokens) const override;
  int32_t vocab_size() const override { return 259; }
  std::optional<int32_t> TokenToId(absl::string_view token) const override;
  std::string IdToToken(int32_t id) const override;
  bool IsSpecial(int32_t id) const override { return id < 3; }
  const std::map<std::string, std::string>& special_tokens() const override {
    return special_;
  }

 private:
  const std::map<std::string, std::string> special_ = {{"bos_token", "<s>"},
                                                       {"eos_token", "</s>"}};
};

// Turned by hand. Thread-safe.
class ManualClock : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration Monotonic() const override;
  void Advance(absl::Duration by);

 private:
  mutable Mutex mu_;
  absl::Duration passed_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

// Keeps what was counted. Thread-safe.
class TestMetrics : public MetricsRegistry {
 public:
  TestMetrics();
  ~TestMetrics() override;
  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override;
  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override;
  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override;
  void Remove(const std::string& name, const MetricLabels& labels) override;
  // "name{label=value}"; a counter's or gauge's value, a histogram's count.
  double Value(const std::string& key) const;

 private:
  class Metric;
  Metric* Get(const std::string& name, const MetricLabels& labels);
  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<Metric>> metrics_ ABSL_GUARDED_BY(mu_);
};

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
  ByteTokenizer tokenizer;
  ManualClock clock;
  TestMetrics metrics;
  JobManager::Options options;
  std::unique_ptr<JobManager> manager;
};

// `count` lines {"prompt": "p<i>"}.
std::string Prompts(int count);

}  // namespace sluice
