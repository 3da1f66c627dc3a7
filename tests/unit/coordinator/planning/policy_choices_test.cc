#include "coordinator/planning/policy_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/policy_keys.h"
#include "coordinator/planning/plan_json.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PolicyChoicesTest, WhatIsNamedIsFixedAndNothingElse) {
  const auto choices = ChoicesLeftBy(
      {"gbs=1 compress-weights=int4", "max-step-tokens=2 attention-site=host"});
  ASSERT_TRUE(choices.ok()) << choices.status();
  EXPECT_THAT(choices->gbs, ElementsAre(1));
  EXPECT_THAT(choices->max_step_tokens, ElementsAre(2));
  EXPECT_THAT(choices->num_microbatches, IsEmpty());
  EXPECT_THAT(choices->threads, IsEmpty());
  EXPECT_EQ(choices->slicing, std::nullopt);
  EXPECT_EQ(choices->slice_context, std::nullopt);
  EXPECT_THAT(choices->attention_sites, ElementsAre(AttentionSite::kHost));
  EXPECT_THAT(choices->weight_formats, ElementsAre(WeightFormat::kInt4));
  EXPECT_THAT(choices->kv_formats, ElementsAre(WeightFormat::kFull));
}

bool Same(const PolicyChoices& x, const PolicyChoices& y) {
  const auto all = [](const PolicyChoices& c) {
    return std::tie(c.gbs, c.num_microbatches, c.num_blocks, c.max_step_tokens,
                    c.threads, c.ranks, c.attention_sites, c.slicing,
                    c.slice_context, c.weight_formats, c.kv_formats,
                    c.link_dtype);
  };
  return all(x) == all(y);
}

TEST(PolicyChoicesTest, EachKeyThatAPlanHasCanBeFixed) {
  const PolicyChoices free = *ChoicesLeftBy({});
  for (const PolicyKey& key : PolicyKeys()) {
    bool fixed = false;
    for (const char* value : {"2", "int8", "on", "device", "bfloat16", "row"}) {
      const auto choices = ChoicesLeftBy({absl::StrCat(key.name, "=", value)});
      if (choices.ok() && !Same(*choices, free)) fixed = true;
    }
    EXPECT_EQ(fixed, key.plan == PlanRole::kChosen) << key.name;
  }
}

TEST(PolicyChoicesTest, FormatsAreNeverLeftToIt) {
  const auto choices = ChoicesLeftBy({});
  ASSERT_TRUE(choices.ok());
  EXPECT_THAT(choices->gbs, IsEmpty());
  EXPECT_THAT(choices->weight_formats, ElementsAre(WeightFormat::kFull));
  EXPECT_THAT(choices->kv_formats, ElementsAre(WeightFormat::kFull));
}

TEST(PolicyChoicesTest, SharesOfTiersLeaveNothingToPlan) {
  EXPECT_EQ(ChoicesLeftBy({"slicing=off"})->slicing, false);
  EXPECT_EQ(ChoicesLeftBy({"slicing=on"})->slicing, true);
  EXPECT_EQ(ChoicesLeftBy({"slice-context=9"})->slice_context, 9);
  EXPECT_TRUE(absl::IsInvalidArgument(ChoicesLeftBy({"w=0/50/50"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ChoicesLeftBy({"gbs=x"}).status()));
  EXPECT_TRUE(NamesFractions({"gbs=4", "c=0/0/100"}));
  EXPECT_FALSE(NamesFractions({"gbs=4", "c=auto"}));
  EXPECT_FALSE(NamesFractions({}));
}

class PlanFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = testing::TempDir() + "/policy_choices_plan.json";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(PlanFileTest, APlanIsTakenFromAFile) {
  const std::string path = Write(R"({"version": 1, "num_blocks": 3,
                "stages": [{"layers": [0, 2], "policy": "gbs=4"}]})");
  const auto plan = PlanNamedBy({"@" + path});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->has_value());
  EXPECT_EQ((*plan)->block.num_blocks, 3);
  const absl::Status beside = PlanNamedBy({"@" + path, "gbs=3"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(beside));
  EXPECT_THAT(std::string(beside.message()), HasSubstr(path));
}

TEST_F(PlanFileTest, ABadPlanNamesItsFile) {
  const std::string path = Write("{\"version\": 1}");
  const absl::Status status = PlanNamedBy({"@" + path}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST_F(PlanFileTest, PlansOfSeveralPipelines) {
  const std::string one = R"({"version": 1, "num_blocks": 3,
                "stages": [{"layers": [0, 2], "policy": "gbs=4"}]})";
  const std::string path =
      Write(R"({"version": 1, "pipelines": [)" + one + ", " + one + "]}");
  const auto plans = PlansNamedBy({"@" + path});
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_EQ(plans->size(), 2u);
  const absl::Status status = PlanNamedBy({"@" + path}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 pipelines"));
  EXPECT_TRUE(PlansNamedBy({})->empty());
}

TEST_F(PlanFileTest, KeyValuePairsAreNoPlan) {
  const auto plan = PlanNamedBy({"@" + Write("gbs=4\n"), "threads=1"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->has_value());
  EXPECT_FALSE(PlanNamedBy({})->has_value());
}

TEST(DefaultGbsTest, BoundsTheLogits) {
  DecoderSpec spec;
  spec.vocab_size = 32000;
  EXPECT_EQ(DefaultGbs(spec), 256);
  spec.vocab_size = 128256;
  EXPECT_EQ(DefaultGbs(spec), 128);
  spec.vocab_size = 1000000;
  EXPECT_EQ(DefaultGbs(spec), 64);
}

}  // namespace
}  // namespace sluice
