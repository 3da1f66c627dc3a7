#include "server/cli/jobs/cluster_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::ClusterState State() {
  v1::ClusterState state;
  state.set_model("llama");
  state.set_num_layers(32);
  state.set_dtype("bfloat16");
  state.set_epoch(3);
  state.set_state("running");
  v1::WorkerInfo* worker = state.add_workers();
  worker->set_name("worker-1");
  worker->set_state(v1::WORKER_STATE_READY);
  worker->set_layer_end(16);
  worker->set_device("cpu: AMD EPYC 9B45 128-Core Processor, AVX-512 bf16");
  worker->set_host_memory_bytes(uint64_t{48} << 30);
  worker->set_next_link("nccl");
  worker->set_busy_seconds(1);
  worker->set_idle_seconds(1);
  worker = state.add_workers();
  worker->set_name("w\x1b[2J\nfake");
  worker->set_state(v1::WORKER_STATE_LEFT_OUT);
  worker->set_stage(-1);
  worker->set_detail(
      "sits out for 30 s, because nobody could open a link to it at "
      "127.0.0.1:7072: Connection refused");
  v1::AbsentWorker* absent = state.add_absent();
  absent->set_name("w3");
  absent->set_kind(v1::AbsentWorker::KIND_LOST);
  absent->set_reason("nothing was heard of it");
  absent->set_seconds_ago(12);
  return state;
}

TEST(ClusterReportTest, FitsAnyTerminal) {
  const std::string text = ClusterToText(State());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("w\\x1b[2J\\nfake"));
  EXPECT_THAT(text,
              HasSubstr("worker-1             ready         layers 0-15"));
  EXPECT_THAT(text, HasSubstr("hands on by NCCL"));
  v1::ClusterState other = State();
  other.mutable_workers(0)->set_next_link("tcp");
  EXPECT_THAT(ClusterToText(other), HasSubstr("hands on by TCP"));
  other.mutable_workers(0)->set_next_link("grpc");
  EXPECT_THAT(ClusterToText(other), HasSubstr("hands on by gRPC"));
  EXPECT_THAT(text, HasSubstr("w3                   lost          12 s ago"));
  EXPECT_THAT(text, HasSubstr("nothing was heard of it"));
}

TEST(ClusterReportTest, StatesAreWordsAsThoseOfJobs) {
  const auto json = nlohmann::json::parse(ClusterToJson(State()));
  EXPECT_EQ(json["workers"][0]["state"], "ready");
  EXPECT_EQ(json["workers"][1]["state"], "left_out");
  EXPECT_EQ(json["workers"][1]["name"], "w\x1b[2J\nfake");
  EXPECT_EQ(json["absent"][0]["kind"], "lost");
  EXPECT_TRUE(json["plan"].is_null());
  for (int i = v1::WorkerState_MIN; i <= v1::WorkerState_MAX; ++i) {
    if (!v1::WorkerState_IsValid(i)) continue;
    EXPECT_THAT(WorkerStateName(static_cast<v1::WorkerState>(i)),
                testing::MatchesRegex("[a-z_]+"));
  }
}

TEST(ClusterReportTest, AModelOfTheHubHasItsCommitBesideItsName) {
  v1::ClusterState state = State();
  EXPECT_THAT(ClusterToText(state), HasSubstr("model llama (32 layers, "));
  EXPECT_EQ(nlohmann::json::parse(ClusterToJson(state))["model_commit"], "");
  state.set_model("org/name");
  state.set_model_dir(
      "/hub/models--org--name/snapshots/"
      "0123456789abcdef0123456789abcdef01234567");
  EXPECT_THAT(ClusterToText(state),
              HasSubstr("model org/name (commit 0123456789ab, 32 layers, "));
  EXPECT_EQ(nlohmann::json::parse(ClusterToJson(state))["model_commit"],
            "0123456789ab");
}

TEST(ClusterReportTest, WorkersStandBelowTheirPipelines) {
  v1::ClusterState state = State();
  for (int p = 0; p < 2; ++p) {
    v1::PipelineInfo* pipeline = state.add_pipelines();
    pipeline->set_pipeline(p);
    pipeline->set_epoch(5 + p);
    pipeline->set_num_stages(1);
    pipeline->set_state("running");
    pipeline->set_predicted_tokens_per_second(12.5);
  }
  state.mutable_workers(0)->set_pipeline(1);
  state.mutable_workers(1)->set_pipeline(-1);
  const std::string text = ClusterToText(state);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_THAT(text, HasSubstr("pipeline 1: plan 6 of 1 stages"));
  EXPECT_LT(text.find("pipeline 1:"), text.find("worker-1"));
  EXPECT_NE(text.find("fake"), std::string::npos);
  EXPECT_EQ(text.find("worker-1"), text.rfind("worker-1"));
  const auto json = nlohmann::json::parse(ClusterToJson(state));
  EXPECT_EQ(json["pipelines"][1]["epoch"], 6);
  EXPECT_EQ(json["workers"][0]["pipeline"], 1);
}

}  // namespace
}  // namespace sluice
