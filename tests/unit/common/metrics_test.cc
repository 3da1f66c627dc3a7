#include "common/metrics/metrics.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(NullMetricsTest, TakesEverythingAndKeepsItsObjects) {
  const std::unique_ptr<MetricsRegistry> metrics = CreateNullMetrics();
  Counter* counter = metrics->GetCounter("sluice_a_total", "A.");
  Gauge* gauge = metrics->GetGauge("sluice_b", "B.", {{"stage", "1"}});
  Histogram* histogram =
      metrics->GetHistogram("sluice_c_seconds", "C.", {0.1, 1}, {{"x", "y"}});
  ASSERT_NE(counter, nullptr);
  ASSERT_NE(gauge, nullptr);
  ASSERT_NE(histogram, nullptr);
  counter->Increment();
  counter->Add(2.5);
  gauge->Set(-1);
  histogram->Observe(1e9);
  EXPECT_EQ(metrics->GetCounter("sluice_a_total", "A."), counter);
  EXPECT_EQ(metrics->GetGauge("sluice_b", "B.", {{"stage", "1"}}), gauge);
}

}  // namespace
}  // namespace sluice
