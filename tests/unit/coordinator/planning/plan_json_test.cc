#include "coordinator/planning/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

Plan TwoStages() {
  Plan plan;
  plan.block = {.gbs = 64,
                .num_microbatches = 3,
                .num_blocks = 2,
                .max_step_tokens = 320};
  for (int s = 0; s < 2; ++s) {
    StagePlan& stage = plan.stages.emplace_back();
    stage.worker = s == 0 ? "a" : "b \"quoted\"";
    stage.machine = s;
    stage.layers = {11 * s, 11 * (s + 1)};
    stage.policy.gbs = 64;
    stage.policy.num_microbatches = 3;
    stage.policy.max_step_tokens = 320;
    stage.policy.slice_context = 7000;
    stage.policy.automatic_weights = false;
    stage.policy.automatic_kv_cache = false;
    stage.policy.automatic_activations = false;
    // Thirds have no exact decimal form.
    stage.policy.weights = {0, 1.0 / 3, 2.0 / 3};
    stage.policy.kv_cache = {0, 0.123456789, 1 - 0.123456789};
    stage.policy.compress_weights = WeightFormat::kInt4;
    stage.busy[static_cast<int>(Resource::kDiskRead)] = 12.25 + s;
    stage.seconds = 13.5;
    stage.capacities = {{"host memory", 1e9 / 3, 2e9}};
  }
  plan.kv_positions = 122880;
  plan.slicing = "prompts are cut into slices";
  plan.steps = 130.5;
  plan.seconds = 14.75;
  plan.tokens_per_second = 65.0625;
  plan.latency_seconds = 3.5;
  plan.bytes_per_token[static_cast<int>(Resource::kDiskRead)] = 1e7;
  plan.binding_resource = Resource::kDiskRead;
  plan.binding_stage = 1;
  return plan;
}

TEST(PlanJsonTest, WhatItPrintsItReadsAndPrintsAgain) {
  const std::string text = PlanToJson(TwoStages());
  const absl::StatusOr<Plan> plan = ParsePlan(text);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(PlanToJson(*plan), text);
  ASSERT_EQ(plan->stages.size(), 2u);
  EXPECT_EQ(plan->stages[1].worker, "b \"quoted\"");
  EXPECT_EQ(plan->stages[1].layers, (LayerRange{11, 22}));
  EXPECT_NEAR(plan->stages[0].policy.weights.disk, 2.0 / 3, 1e-9);
  EXPECT_FALSE(plan->stages[0].policy.automatic_weights);
  EXPECT_EQ(plan->stages[0].policy.compress_weights, WeightFormat::kInt4);
  EXPECT_EQ(plan->block.num_blocks, 2);
  EXPECT_EQ(plan->block.gbs, 64);
  EXPECT_EQ(plan->block.num_microbatches, 3);
  EXPECT_EQ(plan->block.max_step_tokens, 320);
  EXPECT_EQ(plan->block.steps_in_flight, 3);
  EXPECT_EQ(plan->block.slice_context, 7000);
  EXPECT_EQ(plan->kv_positions, 122880);
  EXPECT_EQ(SequencePositions(*plan), 320);
  EXPECT_EQ(plan->slicing, "prompts are cut into slices");
  EXPECT_EQ(plan->binding_resource, Resource::kDiskRead);
  EXPECT_EQ(plan->binding_stage, 1);
  EXPECT_EQ(plan->seconds, 14.75);
}

TEST(PlanJsonTest, ThePredictionMayBeLeftOut) {
  const auto plan = ParsePlan(
      R"({"version": 1, "num_blocks": 1,
          "stages": [{"layers": [0, 4], "policy": "gbs=8 w=0/50/50"}]})");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->block.gbs, 8);
  EXPECT_EQ(plan->stages[0].policy.weights.disk, 0.5);
  EXPECT_TRUE(plan->stages[0].policy.automatic_kv_cache);
}

TEST(PlanJsonTest, ErrorsNameTheKey) {
  const Json good = Json::parse(PlanToJson(TwoStages()));
  const auto refused = [&](const char* pointer, const Json& value) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    const absl::Status status = ParsePlan(bad.dump()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pointer << value << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("/version", 2), HasSubstr("version: expected 1"));
  EXPECT_THAT(refused("/extra", 2), HasSubstr("unknown key extra"));
  EXPECT_THAT(refused("/num_blocks", 0), HasSubstr("num_blocks"));
  EXPECT_THAT(refused("/num_blocks", "2"), HasSubstr("num_blocks"));
  EXPECT_THAT(refused("/stages", Json::array()), HasSubstr("stages"));
  EXPECT_THAT(refused("/stages/0/layers", {0, 10}),
              HasSubstr("stages[1].layers: expected to begin with layer 10"));
  EXPECT_THAT(refused("/stages/0/layers", {3, 3}),
              HasSubstr("stages[0].layers"));
  EXPECT_THAT(refused("/stages/0/layers", {-1, 3}),
              HasSubstr("stages[0].layers"));
  EXPECT_THAT(refused("/stages/1/policy", "gbs=0"),
              HasSubstr("stages[1].policy"));
  EXPECT_THAT(refused("/stages/1/policy", "@/etc/passwd"),
              HasSubstr("stages[1].policy: expected key=value"));
  EXPECT_THAT(refused("/stages/1/policy", "gbs=65"),
              HasSubstr("the gbs, num-microbatches, max-step-tokens, slicing "
                        "and slice-context of the first stage"));
  EXPECT_THAT(refused("/kv_positions", -1), HasSubstr("kv_positions"));
  EXPECT_THAT(refused("/slicing", 1), HasSubstr("slicing: expected a text"));
  EXPECT_THAT(refused("/stages/1/color", "red"),
              HasSubstr("unknown key stages[1].color"));
  EXPECT_THAT(refused("/stages/0/predicted/disk read", -1),
              HasSubstr("stages[0].predicted.disk read"));
  EXPECT_THAT(refused("/stages/0/capacities/0/bytes", "many"),
              HasSubstr("stages[0].capacities[0].bytes"));
  EXPECT_THAT(refused("/predicted/stage", 2), HasSubstr("predicted.stage"));
  EXPECT_THAT(refused("/predicted/binding", "love"),
              HasSubstr("predicted.binding"));
  EXPECT_THAT(std::string(ParsePlan("{").status().message()),
              HasSubstr("expected JSON, which this is not"));
  EXPECT_THAT(
      std::string(ParsePlan(R"({"version":1,"machine":"m","fingerprint":"f"})")
                      .status()
                      .message()),
      HasSubstr("this is the profile of a machine, for --profile; a plan is"));
  EXPECT_THAT(std::string(ParsePlan("[1]").status().message()),
              HasSubstr("expected a JSON object"));
}

TEST(PlanJsonTest, LooksLikePlan) {
  EXPECT_TRUE(LooksLikePlan(" \n{\"version\""));
  EXPECT_FALSE(LooksLikePlan("gbs=4 # {"));
  EXPECT_FALSE(LooksLikePlan(""));
}

TEST(PlanJsonTest, SeveralPipelines) {
  Plan other = TwoStages();
  other.block.num_blocks = 5;
  const std::string text = PlansToJson({TwoStages(), other});
  const auto plans = ParsePlans(text);
  ASSERT_TRUE(plans.ok()) << plans.status();
  ASSERT_EQ(plans->size(), 2u);
  EXPECT_EQ((*plans)[1].block.num_blocks, 5);
  EXPECT_EQ(PlansToJson(*plans), text);
  // One is written as it always was, and read so.
  EXPECT_EQ(PlansToJson({other}), PlanToJson(other));
  EXPECT_EQ(ParsePlans(PlanToJson(other))->size(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(ParsePlan(text).status()));
}

TEST(PlanJsonTest, PipelinesThatMakeNoSense) {
  Json json = Json::parse(PlansToJson({TwoStages(), TwoStages()}));
  json["pipelines"][1]["stages"][1]["layers"] = {12, 22};
  const absl::Status status = ParsePlans(json.dump()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("pipelines[1]"));
  for (const char* text :
       {R"({"version": 1, "pipelines": []})", R"({"pipelines": [{}]})",
        R"({"version": 1, "pipelines": 7})",
        R"({"version": 1, "pipelines": [7]})", "[]", "", "{"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePlans(text).status())) << text;
  }
  json = Json::parse(PlansToJson({TwoStages(), TwoStages()}));
  json["extra"] = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(ParsePlans(json.dump()).status()));
}

}  // namespace
}  // namespace sluice
