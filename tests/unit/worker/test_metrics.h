#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"

namespace sluice {

// Keeps values by "name{label=value,...}". Thread-safe.
class TestMetrics : public MetricsRegistry {
 public:
  double Value(const std::string& key) const {
    MutexLock lock(&mu_);
    auto it = values_.find(key);
    return it == values_.end() ? -1 : it->second;
  }

  Counter* GetCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels) override {
    return Get(name, labels);
  }
  Gauge* GetGauge(const std::string& name, const std::string& help,
                  const MetricLabels& labels) override {
    return Get(name, labels);
  }
  // Counts observations.
  Histogram* GetHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets,
                          const MetricLabels& labels) override {
    return Get(name, labels);
  }
  void Remove(const std::string& name, const MetricLabels& labels) override {
    MutexLock lock(&mu_);
    values_.erase(Key(name, labels));
  }

 private:
  class Metric : public Counter, public Gauge, public Histogram {
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

  static std::string Key(const std::string& name, const MetricLabels& labels) {
    std::string key = absl::StrCat(name, "{");
    for (const auto& [label, value] : labels) {
      absl::StrAppend(&key, key.back() == '{' ? "" : ",", label, "=", value);
    }
    return key + '}';
  }

  Metric* Get(const std::string& name, const MetricLabels& labels) {
    const std::string key = Key(name, labels);
    MutexLock lock(&mu_);
    values_.try_emplace(key, 0);
    metrics_.push_back(std::make_unique<Metric>(this, key));
    return metrics_.back().get();
  }

  mutable Mutex mu_;
  std::map<std::string, double> values_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Metric>> metrics_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
