// Tests that all programs' metrics use each name with one meaning.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host/disk_gauge.h"
#include "common/metrics/metrics.h"
#include "common/metrics/metrics_server.h"
#include "coordinator/dispatch/dispatch_metrics.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_metrics.h"
#include "tests/support/test_metrics.h"
#include "tests/support/test_paths.h"
#include "worker/worker_metrics.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// Also notes the registered metrics.
class Catalogue : public TestMetrics {
 public:
  struct Entry {
    std::string type, help;
    std::vector<double> buckets;
    std::set<std::string> labels;
    bool operator==(const Entry&) const = default;
  };

  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override {
    Note(name, {"counter", help, {}, {}}, labels);
    return TestMetrics::GetCounter(name, help, labels);
  }
  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override {
    Note(name, {"gauge", help, {}, {}}, labels);
    return TestMetrics::GetGauge(name, help, labels);
  }
  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override {
    Note(name, {"histogram", help, buckets, {}}, labels);
    return TestMetrics::GetHistogram(name, help, buckets, labels);
  }

  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  void Note(const std::string& name, Entry entry, const MetricLabels& labels) {
    for (const auto& [label, value] : labels) entry.labels.insert(label);
    const auto [it, is_new] = entries_.try_emplace(name, entry);
    EXPECT_TRUE(is_new || it->second == entry)
        << name << " is registered in two ways: " << it->second.type << " \""
        << it->second.help << "\" and " << entry.type << " \"" << entry.help
        << "\", or with other labels or buckets";
  }

  std::map<std::string, Entry> entries_;
};

v1::ClusterState TwoWorkers() {
  v1::ClusterState state;
  for (const char* name : {"a", "b"}) {
    v1::WorkerInfo* worker = state.add_workers();
    worker->set_name(name);
    worker->set_state(v1::WORKER_STATE_READY);
    worker->set_stage(state.workers_size() - 1);
    worker->set_seconds_since_heartbeat(0.5);
    v1::ResourceUse* use = worker->add_resources();
    use->set_resource("compute");
    use->set_predicted_seconds(1);
  }
  return state;
}

// Registers all metrics of coordinator and workers.
void RegisterAll(Catalogue* all) {
  DispatchMetrics dispatch(all);
  dispatch.Set(TwoWorkers(), 1, 0, absl::Seconds(1));
  BlockDriver::Stats stats;
  stats.steps = stats.tokens = stats.prompt_tokens = stats.replays = 1;
  dispatch.Observe(stats);
  JobMetrics jobs(all);
  for (int state = 0; state < v1::JobState_ARRAYSIZE; ++state) {
    jobs.SetJobs(static_cast<v1::JobState>(state), 0);
  }
  StoredResult result;
  result.outcome = "stop";
  jobs.CountResult(result);
  jobs.SetWaiting(0);
  jobs.SetState("/");
  jobs.SetProgress({{JobId(1), {1, 2, 3}}});
  jobs.SetQueued("lab", 1, 2, 3);
  jobs.CountRefused("lab");
  for (const char* name : {"a", "b"}) {
    const WorkerMetrics worker(all, name);
    worker.ForStage(StageId(0));
    const MemoryBudget budget(Tier::kHost, 100);
    worker.SetBudgets(nullptr, &budget, nullptr);
    worker.CountRuntime({}, {});
  }
  SetDiskFree(all, "/");
  SetBuildInfo(all, "cpu");
}

TEST(MetricNamesTest, ANameHasOneTypeHelpLabelsAndBuckets) {
  Catalogue all;
  RegisterAll(&all);
  EXPECT_GT(all.entries().size(), 40u);
  for (const auto& [name, entry] : all.entries()) {
    EXPECT_TRUE(absl::StartsWith(name, "sluice_")) << name;
    EXPECT_FALSE(entry.help.empty()) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), entry.type == "counter") << name;
    EXPECT_TRUE(std::is_sorted(entry.buckets.begin(), entry.buckets.end()))
        << name;
    EXPECT_EQ(entry.buckets.empty(), entry.type != "histogram") << name;
  }
}

TEST(MetricNamesTest, StepsHaveOneLayoutAndRequestsBucketsOfDays) {
  Catalogue all;
  RegisterAll(&all);
  const auto buckets = [&](const char* name) {
    return all.entries().at(name).buckets;
  };
  EXPECT_EQ(buckets("sluice_step_seconds"),
            buckets("sluice_stage_step_seconds"));
  EXPECT_GE(buckets("sluice_step_seconds").back(), 600);
  EXPECT_EQ(buckets("sluice_request_queue_time_seconds"),
            buckets("sluice_e2e_request_latency_seconds"));
  EXPECT_GE(buckets("sluice_e2e_request_latency_seconds").back(), 7 * 86400);
}

TEST(MetricNamesTest, TheReadmeNamesThemAll) {
  std::ifstream file(TestsDir() + "/../server/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  Catalogue all;
  RegisterAll(&all);
  for (const auto& [name, entry] : all.entries()) {
    EXPECT_THAT(readme.str(), HasSubstr(absl::StrCat("`", name)));
  }
}

TEST(MetricNamesTest, AWorkerThatIsGoneIsDownAndItsPlanIsGone) {
  Catalogue all;
  DispatchMetrics dispatch(&all);
  v1::ClusterState state = TwoWorkers();
  dispatch.Set(state, 0, 0, absl::Seconds(10));
  EXPECT_EQ(all.Value("sluice_worker_up{worker=b}"), 1);
  EXPECT_EQ(all.Value("sluice_worker_heartbeat_age_seconds{worker=b}"), 0.5);
  const std::string predicted =
      "sluice_plan_predicted_seconds{resource=compute,stage=1,worker=b}";
  EXPECT_EQ(all.Value(predicted), 1);
  state.mutable_workers()->RemoveLast();
  dispatch.Set(state, 0, 0, absl::Seconds(11));
  EXPECT_EQ(all.Value("sluice_worker_up{worker=a}"), 1);
  EXPECT_EQ(all.Value("sluice_worker_up{worker=b}"), 0);
  EXPECT_EQ(all.Value("sluice_worker_heartbeat_age_seconds{worker=b}"), -1);
  EXPECT_EQ(all.Value(predicted), -1);
  dispatch.Set(state, 0, 0, absl::Hours(2));
  EXPECT_EQ(all.Value("sluice_worker_up{worker=b}"), -1);
  EXPECT_EQ(all.Value("sluice_worker_up{worker=a}"), 1);
}

TEST(MetricNamesTest, AWorkerThatWasStoppedIsNotDown) {
  Catalogue all;
  DispatchMetrics dispatch(&all);
  v1::ClusterState state = TwoWorkers();
  dispatch.Set(state, 0, 0, absl::Seconds(10));
  EXPECT_EQ(all.Value("sluice_workers_gone_total{how=left}"), 0);
  state.mutable_workers()->RemoveLast();
  v1::AbsentWorker* absent = state.add_absent();
  absent->set_name("b");
  absent->set_kind(v1::AbsentWorker::KIND_LEFT);
  for (int s : {11, 12}) dispatch.Set(state, 0, 0, absl::Seconds(s));
  EXPECT_EQ(all.Value("sluice_worker_up{worker=b}"), -1);
  EXPECT_EQ(all.Value("sluice_worker_heartbeat_age_seconds{worker=b}"), -1);
  EXPECT_EQ(all.Value("sluice_workers_gone_total{how=left}"), 1);
  state.mutable_workers()->RemoveLast();
  for (int s : {13, 14}) dispatch.Set(state, 0, 0, absl::Seconds(s));
  EXPECT_EQ(all.Value("sluice_worker_up{worker=a}"), 0);
  EXPECT_EQ(all.Value("sluice_workers_gone_total{how=lost}"), 1);
  EXPECT_EQ(all.Value("sluice_workers_gone_total{how=left}"), 1);
}

TEST(MetricNamesTest, NamesOfGoneWorkersDoNotPileUp) {
  Catalogue all;
  DispatchMetrics dispatch(&all);
  for (int i = 0; i < 1000; ++i) {
    v1::ClusterState state;
    state.add_workers()->set_name(absl::StrCat("w", i));
    dispatch.Set(state, 0, 0, absl::Seconds(i));
  }
  int up = 0;
  for (int i = 0; i < 1000; ++i) {
    up += all.Value(absl::StrCat("sluice_worker_up{worker=w", i, "}")) >= 0;
  }
  EXPECT_LT(up, 300);
  EXPECT_EQ(all.Value("sluice_worker_up{worker=w999}"), 1);
}

}  // namespace
}  // namespace sluice
