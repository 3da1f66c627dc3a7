#include "server/cli/run/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/policy.h"
#include "scheduler/plan/plan.h"
namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SweepStats Stats() {
  SweepStats stats;
  stats.projection_seconds = 3;
  stats.attention_seconds = 1;
  stats.dequantize_seconds = 0.5;
  stats.head_seconds = 0.25;
  stats.weight_stall_seconds = 2;
  stats.kv_stall_seconds = 0.75;
  stats.host_attention_seconds = 2.5;
  stats.h2d_seconds = 1.5;
  stats.h2d_bytes = 3'000'000'000;
  stats.disk_read_seconds = 4;
  stats.disk_read_bytes = 2'000'000'000;
  stats.weight_read_bytes = 1'500'000'000;
  stats.kv_read_bytes = 500'000'000;
  stats.kv_write_bytes = 7;
  return stats;
}

RuntimeReport Report() {
  RuntimeReport report;
  report.stats = Stats();
  report.placement = {.weight_bytes = 1000,
                      .weight_host_bytes = 250,
                      .weight_device_bytes = 125,
                      .kv_bytes = 0,
                      .activation_bytes = 800,
                      .activation_host_bytes = 200,
                      .activation_device_bytes = 100};
  report.device_peak_bytes = 5 << 20;
  report.host_peak_bytes = 3 << 20;
  return report;
}

TEST(RunReportTest, Figures) {
  Policy policy;
  policy.gbs = 7;
  const nlohmann::ordered_json json = RuntimeFigures(policy, Report(), Stats());
  EXPECT_EQ(json["policy"]["asked"], PolicyText(policy));
  EXPECT_EQ(json["policy"]["realised"]["weights"],
            nlohmann::ordered_json(
                {{"device", 0.125}, {"host", 0.25}, {"disk", 0.625}}));
  EXPECT_EQ(
      json["policy"]["realised"]["kv_cache"],
      nlohmann::ordered_json({{"device", 0.0}, {"host", 1.0}, {"disk", 0.0}}));
  EXPECT_EQ(json["policy"]["realised"]["activations"],
            nlohmann::ordered_json(
                {{"device", 0.125}, {"host", 0.25}, {"disk", 0.625}}));
  EXPECT_EQ(json["bytes_moved"]["h2d"], 3'000'000'000);
  EXPECT_EQ(json["bytes_moved"]["d2h"], 0);
  EXPECT_EQ(json["wire_seconds"]["h2d"], 1.5);
  EXPECT_EQ(json["host_attention_seconds"], 2.5);
  EXPECT_EQ(json["peak_memory_bytes"]["device"], 5 << 20);
  EXPECT_EQ(json["bytes_moved"]["disk_read"], 2'000'000'000);
  EXPECT_EQ(json["bytes_moved"]["disk_write"], 0);
  EXPECT_EQ(json["disk_bytes"]["weights"]["read"], 1'500'000'000);
  EXPECT_EQ(json["disk_bytes"]["kv_cache"]["read"], 500'000'000);
  EXPECT_EQ(json["disk_bytes"]["kv_cache"]["write"], 7);
  EXPECT_EQ(json["disk_bytes"]["activations"]["read"], 0);
  EXPECT_EQ(json["stall_seconds"]["weights"], 2);
  EXPECT_EQ(json["stall_seconds"]["kv_cache"], 0.75);
  EXPECT_EQ(json["stall_seconds"]["activations"], 0);
  EXPECT_EQ(json["compute_seconds"]["projections"], 3);
  EXPECT_EQ(json["compute_seconds"]["dequantize"], 0.5);
  EXPECT_EQ(json["wire_seconds"]["disk_read"], 4);
  EXPECT_EQ(json["peak_memory_bytes"]["host"], 3 << 20);
  EXPECT_EQ(json["peak_memory_bytes"]["disk"], 0);
}

TEST(RunReportTest, Table) {
  const std::string table = RuntimeTable(Report(), Stats(), 5, 2);
  EXPECT_THAT(table, HasSubstr("projections                   3.000   30.0 %"));
  EXPECT_THAT(table, HasSubstr("between steps                 2.500   25.0 %"));
  EXPECT_THAT(table, HasSubstr("wire: disk read               4.000   40.0 %  "
                               "2.000 GB, 0.50 GB/s while busy"));
  EXPECT_THAT(table, HasSubstr("disk: KV cache                0.500 GB read, "
                               "0.000 GB written"));
  EXPECT_THAT(table, Not(HasSubstr("disk: activations")));
  EXPECT_THAT(table,
              HasSubstr("host: attention               2.500   25.0 %\n"));
  EXPECT_THAT(table, HasSubstr("wire: host to device          1.500   15.0 %  "
                               "3.000 GB, 2.00 GB/s while busy"));
  EXPECT_THAT(table,
              HasSubstr("of --host-memory            3.0 MiB set aside"));
  EXPECT_THAT(table, HasSubstr("of --device-memory          5.0 MiB\n"));
  EXPECT_THAT(table, Not(HasSubstr("peak memory")));  // not known
  // Resources without time or bytes are not shown.
  EXPECT_THAT(table, Not(HasSubstr("waiting for activations")));
  EXPECT_THAT(table, Not(HasSubstr("disk write")));
  EXPECT_THAT(table, Not(HasSubstr("device to host")));
  EXPECT_THAT(table, Not(HasSubstr("--disk-space")));
}

TEST(RunReportTest, WhatWasTakenWhatWasSetAsideAndWhatStaysOnDisk) {
  RuntimeReport report = Report();
  report.resident_peak_bytes = uint64_t{3} << 30;
  report.host_peak_bytes = uint64_t{16} << 30;
  report.placement.kv_bytes = report.placement.kv_host_bytes = uint64_t{13}
                                                               << 30;
  report.kv_host_peak_bytes = 32 << 20;
  report.disk_peak_bytes = uint64_t{15} << 30;
  report.disk_image_bytes = uint64_t{14} << 30;
  const std::string table = RuntimeTable(report, Stats(), 5, 1);
  EXPECT_THAT(table, HasSubstr("peak memory                 3.0 GiB\n"));
  EXPECT_THAT(table,
              HasSubstr("of --host-memory           16.0 GiB set aside, at "
                        "most; 13.0 GiB of it for KV cache, 32.0 MiB needed"));
  EXPECT_THAT(table,
              HasSubstr("of --disk-space            15.0 GiB; 14.0 GiB of it "
                        "weights, which stay for the next run"));
  const nlohmann::ordered_json json = RuntimeFigures(Policy(), report, Stats());
  EXPECT_EQ(json["peak_memory_bytes"]["resident"], uint64_t{3} << 30);
  EXPECT_EQ(json["kv_cache_bytes"]["room"], uint64_t{13} << 30);
  EXPECT_EQ(json["kv_cache_bytes"]["needed"], 32 << 20);
  EXPECT_EQ(json["weight_image_bytes"], uint64_t{14} << 30);
}

TEST(RunReportTest, AnEmptyRunDividesByNothing) {
  const std::string table = RuntimeTable({}, {}, 0, 1);
  EXPECT_THAT(table, Not(HasSubstr("nan")));
  EXPECT_THAT(table, Not(HasSubstr("inf")));
}

TEST(RuntimeReportTest, SumsAndDifferences) {
  RuntimeReport sum = Report();
  sum += Report();
  EXPECT_EQ(sum.stats.projection_seconds, 6);
  EXPECT_EQ(sum.stats.disk_read_bytes, 4'000'000'000u);
  EXPECT_EQ(sum.placement.weight_bytes, 2000u);
  EXPECT_EQ(sum.placement.activation_host_bytes, 400u);
  EXPECT_EQ(sum.host_peak_bytes, 6u << 20);
  EXPECT_EQ(sum.device_peak_bytes, 10u << 20);
  EXPECT_EQ(sum.placement.activation_device_bytes, 200u);
  const SweepStats difference = sum.stats - Stats();
  EXPECT_EQ(difference.projection_seconds, 3);
  EXPECT_EQ(difference.kv_stall_seconds, 0.75);
  EXPECT_EQ(difference.disk_read_bytes, 2'000'000'000u);
}

}  // namespace
}  // namespace sluice
