#include "common/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/policy_keys.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Policy Updated(const std::string& text, Policy policy = {}) {
  const absl::Status status = UpdatePolicy(text, &policy);
  EXPECT_TRUE(status.ok()) << text << ": " << status;
  return policy;
}

void ExpectRefused(const std::string& text, const std::string& named) {
  Policy policy;
  const absl::Status status = UpdatePolicy(text, &policy);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr(named)) << text;
}

// A file of the test's own, removed at its end.
class PolicyFile {
 public:
  explicit PolicyFile(const std::string& contents)
      : path_(std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("policy_test_", ::testing::UnitTest::GetInstance()
                                               ->current_test_info()
                                               ->name())) {
    std::ofstream(path_) << contents;
  }
  ~PolicyFile() { std::filesystem::remove(path_); }
  std::string Text() const { return "@" + path_.string(); }

 private:
  const std::filesystem::path path_;
};

TEST(PolicyTest, EachKey) {
  EXPECT_EQ(Updated("gbs=12").gbs, 12);
  EXPECT_EQ(Updated("num-microbatches=3").num_microbatches, 3);
  EXPECT_EQ(Updated("max-step-tokens=77").max_step_tokens, 77);
  EXPECT_EQ(Updated("threads=5").compute_threads, 5);
  EXPECT_EQ(Updated("threads=0").compute_threads, 0);
  EXPECT_EQ(Updated("tensor-parallel=2").ranks, 2);
  EXPECT_EQ(Updated(PolicyText(Updated("tensor-parallel=64"))).ranks, 64);
  EXPECT_EQ(Updated("").ranks, 0);
  EXPECT_TRUE(Policy().slicing);
  EXPECT_FALSE(Updated("slicing=off").slicing);
  EXPECT_TRUE(Updated("slicing=off slicing=on").slicing);
  EXPECT_EQ(Updated("slice-context=20000").slice_context, 20000);
  EXPECT_EQ(Updated("compress-weights=int8").compress_weights,
            WeightFormat::kInt8);
  EXPECT_EQ(Updated("compress-weights=int4").compress_weights,
            WeightFormat::kInt4);
  EXPECT_EQ(Updated("compress-kv=int4").compress_kv, WeightFormat::kInt4);
  EXPECT_EQ(Updated("compress-kv=int4 compress-kv=none").compress_kv,
            WeightFormat::kFull);
  EXPECT_EQ(Updated("attention-site=device").attention_site,
            AttentionSite::kDevice);
  EXPECT_EQ(Updated("attention-site=device,attention-site=host").attention_site,
            AttentionSite::kHost);
  EXPECT_FLOAT_EQ(Updated("sparsity=0.1").sparsity, 0.1f);
  EXPECT_EQ(Updated("schedule=row").schedule, Schedule::kRowByRow);
  EXPECT_EQ(Updated("schedule=row schedule=zigzag").schedule,
            Schedule::kZigZag);
  EXPECT_FALSE(Updated("overlap=off").overlap);
  EXPECT_TRUE(Updated("overlap=off overlap=on").overlap);
  EXPECT_FALSE(Updated("packing=off").packing);
  EXPECT_EQ(Updated("").link_dtype, DType::kFloat32);
  EXPECT_EQ(Updated("link-dtype=bfloat16").link_dtype, DType::kBFloat16);
  EXPECT_TRUE(Updated("packing=off").overlap);
}

TEST(PolicyTest, WhatIsNotNamedStays) {
  Policy before;
  before.gbs = 9;
  before.dtype = DType::kBFloat16;
  before.automatic_weights = false;
  before.weights = {0, 0.25, 0.75};
  Policy after = Updated("sparsity=0.5", before);
  EXPECT_EQ(after.sparsity, 0.5f);
  after.sparsity = before.sparsity;
  EXPECT_TRUE(after == before);
  EXPECT_TRUE(Updated("", before) == before);
}

TEST(PolicyTest, FractionsInPerCent) {
  const Policy policy = Updated("w=0/50/50,c=20/30/50 h=0/0/100");
  EXPECT_FALSE(policy.automatic_weights);
  EXPECT_FALSE(policy.automatic_kv_cache);
  EXPECT_EQ(policy.weights, (TierFractions{0, 0.5, 0.5}));
  EXPECT_EQ(policy.kv_cache, (TierFractions{0.2, 0.3, 0.5}));
  EXPECT_EQ(policy.activations, (TierFractions{0, 0, 1}));
  EXPECT_FALSE(policy.automatic_activations);
  const Policy automatic = Updated("w=auto c=auto h=auto", policy);
  EXPECT_TRUE(automatic.automatic_weights);
  EXPECT_TRUE(automatic.automatic_kv_cache);
  EXPECT_TRUE(automatic.automatic_activations);
}

TEST(PolicyTest, TheNineFractionsOneByOne) {
  const Policy policy = Updated(
      "w.device=0.1 w.host=0.2 w.disk=0.7 c.device=0.25 c.host=0 c.disk=0.75 "
      "h.device=0.5 h.host=0.5 h.disk=0");
  EXPECT_FALSE(policy.automatic_weights);
  EXPECT_FALSE(policy.automatic_kv_cache);
  EXPECT_EQ(policy.weights, (TierFractions{0.1, 0.2, 0.7}));
  EXPECT_EQ(policy.kv_cache, (TierFractions{0.25, 0, 0.75}));
  EXPECT_EQ(policy.activations, (TierFractions{0.5, 0.5, 0}));
  // The first named share sets an automatic kind's other shares to 0.
  EXPECT_EQ(Updated("w.disk=1").weights, (TierFractions{0, 0, 1}));
}

// A value of each key that is not its default.
const std::map<absl::string_view, std::string>& OtherValues() {
  static const auto* const kValues =
      new std::map<absl::string_view, std::string>{{"gbs", "3"},
                                                   {"num-microbatches", "4"},
                                                   {"max-step-tokens", "99"},
                                                   {"threads", "2"},
                                                   {"tensor-parallel", "2"},
                                                   {"w", "0/50/50"},
                                                   {"c", "0/50/50"},
                                                   {"h", "0/50/50"},
                                                   {"compress-weights", "int8"},
                                                   {"compress-kv", "int4"},
                                                   {"schedule", "row"},
                                                   {"overlap", "off"},
                                                   {"packing", "off"},
                                                   {"sparsity", "0.125"},
                                                   {"attention-site", "device"},
                                                   {"slicing", "off"},
                                                   {"slice-context", "4096"},
                                                   {"link-dtype", "bfloat16"}};
  return *kValues;
}

TEST(PolicyKeysTest, EachIsSetGotCopiedAndNamed) {
  EXPECT_EQ(PolicyKeys().size(), OtherValues().size());
  Policy all;
  for (const PolicyKey& key : PolicyKeys()) {
    const std::string& value = OtherValues().at(key.name);
    std::set<absl::string_view> named;
    Policy policy;
    EXPECT_NE(key.get(policy), value) << key.name;
    ASSERT_TRUE(
        UpdatePolicy(absl::StrCat(key.name, "=", value), &policy, &named).ok());
    EXPECT_EQ(key.get(policy), value) << key.name;
    EXPECT_THAT(named, ElementsAre(key.name));
    EXPECT_FALSE(policy == Policy()) << key.name;
    // Nothing else is set or copied.
    Policy copy;
    key.copy(policy, &copy);
    EXPECT_TRUE(copy == policy) << key.name;
    key.copy(Policy(), &copy);
    EXPECT_TRUE(copy == Policy()) << key.name;
    key.copy(policy, &all);
    EXPECT_THAT(PolicyText(policy),
                HasSubstr(absl::StrCat(key.name, "=", value)));
    ExpectRefused(
        std::string(key.name.data(), key.name.size()),
        absl::StrCat("expected key=value, of which the value is ", key.values));
  }
  EXPECT_TRUE(Updated(PolicyText(all)) == all) << PolicyText(all);
}

TEST(PolicyKeysTest, AnErrorNamesThemAll) {
  Policy policy;
  const std::string error(UpdatePolicy("speed=1", &policy).message());
  for (const PolicyKey& key : PolicyKeys()) {
    EXPECT_THAT(error, testing::ContainsRegex(
                           absl::StrCat("[ ,]", key.name, "(,| and |$)")));
  }
  EXPECT_THAT(error, testing::EndsWith("slice-context and link-dtype"));
}

TEST(PolicyKeysTest, SharesOfATierAreTheirKinds) {
  std::set<absl::string_view> named;
  Policy policy;
  ASSERT_TRUE(UpdatePolicy("c.disk=1 w=auto", &policy, &named).ok());
  EXPECT_THAT(named, ElementsAre("c", "w"));
  EXPECT_EQ(FindPolicyKey("h.host")->name, "h");
  EXPECT_EQ(FindPolicyKey("gbs.host"), nullptr);
  EXPECT_EQ(FindPolicyKey("hh"), nullptr);
}

TEST(PolicyKeysTest, WhatAnswersDependOn) {
  EXPECT_EQ(
      PolicyKeyNames([](const PolicyKey& key) { return key.changes_answers; },
                     " ", " "),
      "compress-weights compress-kv sparsity attention-site link-dtype");
  EXPECT_EQ(
      PolicyValues(
          Policy(),
          [](const PolicyKey& key) { return key.plan == PlanRole::kAside; },
          ", ", " and "),
      "schedule=zigzag, overlap=on, packing=on and sparsity=1");
}

TEST(PolicyTest, AFileWithComments) {
  const PolicyFile file(
      "# throughput\n"
      "gbs=8, num-microbatches=2\r\n"
      "\n"
      "\tw=0/0/100  # all of it\n"
      "#gbs=9\n"
      "overlap=off");
  const Policy policy = Updated(file.Text());
  EXPECT_EQ(policy.gbs, 8);
  EXPECT_EQ(policy.num_microbatches, 2);
  EXPECT_EQ(policy.weights, (TierFractions{0, 0, 1}));
  EXPECT_FALSE(policy.overlap);
}

TEST(PolicyTest, ErrorsNameTheKey) {
  ExpectRefused("gbs=0", "gbs=0");
  ExpectRefused("gbs=many", "gbs=many");
  ExpectRefused("num-microbatches=-1", "num-microbatches=-1");
  ExpectRefused("max-step-tokens=", "max-step-tokens=");
  ExpectRefused("threads=-1", "threads=-1");
  ExpectRefused("w=0/50", "w=0/50");
  ExpectRefused("w=0/50/51", "w=0/50/51");
  ExpectRefused("c=-10/60/50", "c=-10/60/50");
  ExpectRefused("c=nan/50/50", "c=nan/50/50");
  ExpectRefused("h=much", "h=much");
  ExpectRefused("w.disk=1.5", "w.disk=1.5");
  ExpectRefused("w.disk=nan", "w.disk=nan");
  ExpectRefused("w.tape=1", "w.tape");
  ExpectRefused("w.=1", "w.");
  ExpectRefused("compress-weights=int3", "compress-weights=int3");
  ExpectRefused("compress-kv=bfloat16", "compress-kv=bfloat16");
  ExpectRefused("attention-site=moon", "attention-site=moon");
  ExpectRefused("sparsity=0", "sparsity=0");
  ExpectRefused("sparsity=1.1", "sparsity=1.1");
  ExpectRefused("sparsity=nan", "sparsity=nan");
  ExpectRefused("schedule=diagonal", "schedule=diagonal");
  ExpectRefused("overlap=maybe", "overlap=maybe");
  ExpectRefused("packing=1", "packing=1");
  ExpectRefused("slicing=512", "slicing=512");
  ExpectRefused("slice-context=-1", "slice-context=-1");
  ExpectRefused("slice-context=268435457",
                "slice-context=268435457: expected a number from 0 to");
  ExpectRefused("speed=11", "speed");
  ExpectRefused("gbs", "gbs: expected key=value");
  ExpectRefused("=4", "=4: expected key=value");
  // These shares are wrong only together.
  ExpectRefused("w.disk=0.5", "the shares of w, 0/0/50");
  ExpectRefused("c.host=0.5 c.disk=0.6", "the shares of c");
  ExpectRefused("h.disk=0.5", "the shares of h");
}

TEST(PolicyTest, FilesThatCannotBeRead) {
  ExpectRefused("@/nowhere/policy", "/nowhere/policy");
  ExpectRefused("@", "can't read");
  ExpectRefused("@/", "can't read the file '/': Is a directory");
  ExpectRefused("@/none", "can't read the file '/none': No such file or");
  const PolicyFile long_file(std::string(100000, '#'));
  ExpectRefused(long_file.Text(), "has more than 65536 bytes");
}

TEST(PolicyTest, TheTextSaysAllAndReadsBack) {
  for (const std::string text :
       {"",
        "w=0/50/50 c=10/20/70 h=100/0/0 gbs=3 num-microbatches=4 "
        "max-step-tokens=99 threads=2 compress-weights=int8 "
        "compress-kv=int4 attention-site=device sparsity=0.125 "
        "schedule=row overlap=off link-dtype=bfloat16",
        "packing=off", "slicing=off slice-context=4096"}) {
    const Policy policy = Updated(text);
    EXPECT_TRUE(Updated(PolicyText(policy)) == policy) << PolicyText(policy);
  }
}

}  // namespace
}  // namespace sluice
