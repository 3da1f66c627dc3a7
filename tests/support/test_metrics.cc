#include "tests/support/test_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

std::string KeyOf(const std::string& name, const MetricLabels& labels) {
  if (labels.empty()) return name;
  return absl::StrCat(
      name, "{", absl::StrJoin(labels, ",", absl::PairFormatter("=")), "}");
}

}  // namespace

// It outlives its series, as its users may hold it longer.
class TestMetrics::Metric : public Counter, public Gauge, public Histogram {
 public:
  Metric(TestMetrics* owner, std::string key)
      : owner_(owner), key_(std::move(key)) {}
  void Add(double amount) override {
    MutexLock lock(&owner_->mu_);
    owner_->values_[key_] += amount;
  }
  void Set(double value) override {
    MutexLock lock(&owner_->mu_);
    owner_->values_[key_] = value;
  }
  void Observe(double) override { Add(1); }

 private:
  TestMetrics* const owner_;
  const std::string key_;
};

TestMetrics::TestMetrics() = default;
TestMetrics::~TestMetrics() = default;

TestMetrics::Metric* TestMetrics::Get(const std::string& name,
                                      const MetricLabels& labels) {
  const std::string key = KeyOf(name, labels);
  MutexLock lock(&mu_);
  values_.try_emplace(key, 0);
  auto& metric = metrics_[key];
  if (metric == nullptr) metric = std::make_unique<Metric>(this, key);
  return metric.get();
}

Counter* TestMetrics::GetCounter(const std::string& name, const std::string&,
                                 const MetricLabels& labels) {
  return Get(name, labels);
}

Gauge* TestMetrics::GetGauge(const std::string& name, const std::string&,
                             const MetricLabels& labels) {
  return Get(name, labels);
}

Histogram* TestMetrics::GetHistogram(const std::string& name,
                                     const std::string&,
                                     const std::vector<double>&,
                                     const MetricLabels& labels) {
  return Get(name, labels);
}

void TestMetrics::Remove(const std::string& name, const MetricLabels& labels) {
  MutexLock lock(&mu_);
  values_.erase(KeyOf(name, labels));
}

double TestMetrics::Value(const std::string& key) const {
  MutexLock lock(&mu_);
  const auto it = values_.find(key);
  return it == values_.end() ? -1 : it->second;
}

}  // namespace sluice
