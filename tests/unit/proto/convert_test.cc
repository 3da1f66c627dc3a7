#include "proto/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/policy.h"
namespace sluice {
namespace {

using ::testing::HasSubstr;

const SamplingParams kSampling = {.temperature = 0.5f,
                                  .top_k = 7,
                                  .top_p = 0.25f,
                                  .min_p = 0.125f,
                                  .repetition_penalty = 1.5f,
                                  .presence_penalty = -2,
                                  .frequency_penalty = 2,
                                  .logit_bias = {{3, -100}, {-1, 0.5f}},
                                  .seed = ~uint64_t{0},
                                  .logprobs = 20};

void ExpectEqual(const SamplingParams& a, const SamplingParams& b) {
  EXPECT_EQ(a.temperature, b.temperature);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.top_p, b.top_p);
  EXPECT_EQ(a.min_p, b.min_p);
  EXPECT_EQ(a.repetition_penalty, b.repetition_penalty);
  EXPECT_EQ(a.presence_penalty, b.presence_penalty);
  EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
  EXPECT_EQ(a.logit_bias, b.logit_bias);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

// Converts through serialized bytes.
template <typename Proto>
Proto Resent(const Proto& message) {
  Proto parsed;
  EXPECT_TRUE(parsed.ParseFromString(message.SerializeAsString()));
  return parsed;
}

// `message` converts; after `change` it does not, and the error says `named`.
template <typename Proto>
void ExpectRefused(Proto message, std::function<void(Proto&)> change,
                   const std::string& named) {
  ASSERT_TRUE(FromProto(message).ok());
  change(message);
  const absl::Status status = FromProto(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << named;
  EXPECT_THAT(std::string(status.message()), HasSubstr(named));
}

TEST(ConvertTest, SamplingParamsThereAndBack) {
  for (const SamplingParams& params : {SamplingParams(), kSampling}) {
    v1::SamplingParams wire;
    ToProto(params, &wire);
    const auto back = FromProto(Resent(wire));
    ASSERT_TRUE(back.ok()) << back.status();
    ExpectEqual(*back, params);
  }
}

TEST(ConvertTest, SamplingParamsRefused) {
  v1::SamplingParams good;
  ToProto(kSampling, &good);
  ExpectRefused<v1::SamplingParams>(
      good, [](auto& m) { m.add_logit_bias_token(4); }, "logit_bias: 3 tokens");
  ExpectRefused<v1::SamplingParams>(
      good, [](auto& m) { m.add_logit_bias_value(4); }, "3 values");
}

StepPlan FullPlan() {
  StepPlan plan;
  plan.epoch = PlanEpoch(9);
  plan.block = BlockId(2);
  plan.step = int64_t{1} << 40;
  plan.release = {SequenceId(5), SequenceId(int64_t{1} << 50)};
  plan.admit.push_back({SequenceId(6), 3, 20, kSampling});
  plan.admit.push_back({SequenceId(7), 0, 1, {}});
  plan.admit.push_back({SequenceId(8), 4, 4, {}, Pooling::kMax});
  plan.micro_batches.push_back({{{SequenceId(6), 0, 3, true}}, {11, 12, 13}});
  plan.micro_batches.push_back(
      {{{SequenceId(7), 4, 1, true}, {SequenceId(8), 10, 2, false, 11, 13, 17}},
       {21, 22, -1}});
  return plan;
}

TEST(ConvertTest, StepPlanThereAndBack) {
  const StepPlan plan = FullPlan();
  v1::StepPlan wire;
  ToProto(plan, &wire);
  const auto back = FromProto(Resent(wire));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->epoch, plan.epoch);
  EXPECT_EQ(back->block, plan.block);
  EXPECT_EQ(back->step, plan.step);
  EXPECT_EQ(back->release, plan.release);
  ASSERT_EQ(back->admit.size(), plan.admit.size());
  for (size_t i = 0; i < plan.admit.size(); ++i) {
    EXPECT_EQ(back->admit[i].sequence, plan.admit[i].sequence);
    EXPECT_EQ(back->admit[i].prompt_tokens, plan.admit[i].prompt_tokens);
    EXPECT_EQ(back->admit[i].max_positions, plan.admit[i].max_positions);
    ExpectEqual(back->admit[i].sampling, plan.admit[i].sampling);
    EXPECT_EQ(back->admit[i].pooling, plan.admit[i].pooling);
  }
  ASSERT_EQ(back->micro_batches.size(), plan.micro_batches.size());
  for (size_t b = 0; b < plan.micro_batches.size(); ++b) {
    const MicroBatch& want = plan.micro_batches[b];
    const MicroBatch& got = back->micro_batches[b];
    EXPECT_EQ(got.tokens, want.tokens);
    ASSERT_EQ(got.segments.size(), want.segments.size());
    for (size_t s = 0; s < want.segments.size(); ++s) {
      EXPECT_EQ(got.segments[s].sequence, want.segments[s].sequence);
      EXPECT_EQ(got.segments[s].start, want.segments[s].start);
      EXPECT_EQ(got.segments[s].num_tokens, want.segments[s].num_tokens);
      EXPECT_EQ(got.segments[s].sample, want.segments[s].sample);
      EXPECT_EQ(got.segments[s].score_begin, want.segments[s].score_begin);
      EXPECT_EQ(got.segments[s].score_end, want.segments[s].score_end);
      EXPECT_EQ(got.segments[s].next_token, want.segments[s].next_token);
    }
  }
}

TEST(ConvertTest, APlanThatOnlyReleases) {
  v1::StepPlan wire;
  wire.add_release(3);
  const auto plan = FromProto(wire);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->release, std::vector<SequenceId>{SequenceId(3)});
  EXPECT_TRUE(plan->micro_batches.empty());
}

TEST(ConvertTest, StepPlanRefused) {
  v1::StepPlan good;
  ToProto(FullPlan(), &good);
  const auto refused = [&](std::function<void(v1::StepPlan&)> change,
                           const std::string& named) {
    ExpectRefused<v1::StepPlan>(good, std::move(change), named);
  };
  refused([](auto& m) { m.set_block(-1); }, "block -1");
  refused([](auto& m) { m.mutable_admit(0)->set_prompt_tokens(-1); },
          "prompt_tokens -1");
  refused([](auto& m) { m.mutable_admit(0)->set_max_positions(0); },
          "max_positions 0");
  refused(
      [](auto& m) {
        m.mutable_admit(1)->mutable_sampling()->add_logit_bias_token(1);
      },
      "logit_bias");
  const auto segment = [](v1::StepPlan& m) {
    return m.mutable_micro_batches(1)->mutable_segments(1);
  };
  refused([&](auto& m) { segment(m)->set_start(-1); }, "start -1");
  refused([&](auto& m) { segment(m)->set_num_tokens(0); }, "num_tokens 0");
  refused([&](auto& m) { segment(m)->set_num_tokens(-2); }, "num_tokens -2");
  refused([&](auto& m) { segment(m)->set_start(INT32_MAX - 1); },
          "start 2147483646");
  refused([&](auto& m) { segment(m)->set_score_begin(10); }, "10 to 13");
  refused([&](auto& m) { segment(m)->set_score_end(14); }, "11 to 14");
  refused([&](auto& m) { segment(m)->set_score_end(10); }, "11 to 10");
  refused([&](auto& m) { segment(m)->set_score_begin(INT32_MIN); },
          "-2147483648 to 13");
  refused([&](auto& m) { segment(m)->set_score_end(INT32_MAX); },
          "11 to 2147483647");
  refused(
      [](auto& m) {
        m.mutable_admit(0)->mutable_sampling()->set_logprobs(257);
      },
      "logprobs: 257");
  refused(
      [](auto& m) { m.mutable_admit(0)->mutable_sampling()->set_logprobs(-2); },
      "logprobs: -2");
  refused([&](auto& m) { segment(m)->set_num_tokens(3); },
          "4 tokens in all, but it carries 3");
  refused([&](auto& m) { m.mutable_micro_batches(0)->add_tokens(1); },
          "3 tokens in all, but it carries 4");
  refused([&](auto& m) { m.mutable_micro_batches(0)->clear_tokens(); },
          "carries 0");
  // The sum must not wrap around to the given size.
  refused(
      [&](auto& m) {
        for (int i = 0; i < 4; ++i) {
          auto* s = m.mutable_micro_batches(0)->add_segments();
          s->set_num_tokens(1 << 30);
        }
      },
      "4294967299 tokens");
}

TEST(ConvertTest, StepResultThereAndBack) {
  StepResult result;
  result.epoch = PlanEpoch(1);
  result.block = BlockId(3);
  result.step = 77;
  result.tokens.push_back({SequenceId(4), 99, -0.5f, {{99, -0.5f}, {7, -2}}});
  result.tokens.push_back({SequenceId(5), -1, 0, {}});
  v1::StepResult wire;
  ToProto(result, &wire);
  const auto parsed = FromProto(Resent(wire));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const StepResult& back = *parsed;
  EXPECT_EQ(back.epoch, result.epoch);
  EXPECT_EQ(back.block, result.block);
  EXPECT_EQ(back.step, result.step);
  ASSERT_EQ(back.tokens.size(), 2u);
  EXPECT_EQ(back.tokens[0].sequence, SequenceId(4));
  EXPECT_EQ(back.tokens[0].token, 99);
  EXPECT_EQ(back.tokens[0].logprob, -0.5f);
  ASSERT_EQ(back.tokens[0].top.size(), 2u);
  EXPECT_EQ(back.tokens[0].top[1].token, 7);
  EXPECT_EQ(back.tokens[0].top[1].logprob, -2);
  EXPECT_EQ(back.tokens[1].token, -1);
  EXPECT_TRUE(back.tokens[1].top.empty());
}

// A result of three segments' scores, of no, one and three alternatives.
StepResult ScoredResult() {
  StepResult result;
  result.epoch = PlanEpoch(1);
  result.block = BlockId(3);
  result.step = 77;
  result.tokens.push_back({SequenceId(4), 99, 0, {}});
  int32_t next = 0;
  for (const auto& [tokens, num_top] :
       {std::pair{5, 0}, std::pair{1, 1}, std::pair{4, 3}}) {
    TokenScores scores;
    scores.sequence = SequenceId(10 + num_top);
    scores.begin = 1 + num_top;
    scores.num_top = num_top;
    for (int i = 0; i < tokens; ++i) {
      scores.logprobs.push_back(-0.5f * static_cast<float>(++next));
    }
    for (int i = 0; i < tokens * num_top; ++i) {
      scores.top.push_back({++next % 3 == 0 ? -1 : next, -1.0f});
    }
    result.scores.push_back(std::move(scores));
  }
  return result;
}

void ExpectEqual(const TokenScores& a, const TokenScores& b) {
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.begin, b.begin);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.num_top, b.num_top);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

TEST(ConvertTest, ScoresThereAndBackInPartsOfAnySize) {
  const StepResult whole = ScoredResult();
  size_t max_parts = 0;
  for (int64_t max_values : {1, 2, 6, 7, 8, 13, 20, 1000}) {
    SCOPED_TRACE(max_values);
    const std::vector<v1::StepResult> parts = ToProtoParts(whole, max_values);
    max_parts = std::max(max_parts, parts.size());
    std::vector<TokenScores> joined;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto part = FromProto(Resent(parts[i]));
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_EQ(part->epoch, whole.epoch);
      EXPECT_EQ(part->block, whole.block);
      EXPECT_EQ(part->step, whole.step);
      const bool last = i + 1 == parts.size();
      EXPECT_EQ(part->more, !last);
      EXPECT_EQ(part->tokens.size(), last ? 1u : 0u);
      int64_t values = 0;
      auto tokens = static_cast<int64_t>(part->tokens.size());
      for (const TokenScores& scores : part->scores) {
        tokens += static_cast<int64_t>(scores.logprobs.size());
        values += static_cast<int64_t>(scores.logprobs.size()) *
                  (1 + 2 * scores.num_top);
        if (joined.empty() || joined.back().sequence != scores.sequence) {
          joined.push_back(scores);
          continue;
        }
        TokenScores& begun = joined.back();
        EXPECT_EQ(scores.begin,
                  begun.begin + static_cast<int32_t>(begun.logprobs.size()));
        begun.logprobs.insert(begun.logprobs.end(), scores.logprobs.begin(),
                              scores.logprobs.end());
        begun.top.insert(begun.top.end(), scores.top.begin(), scores.top.end());
      }
      EXPECT_TRUE(values <= max_values || tokens == 1) << values;
      EXPECT_GT(tokens, 0);
    }
    ASSERT_EQ(joined.size(), whole.scores.size());
    for (size_t i = 0; i < joined.size(); ++i) {
      ExpectEqual(joined[i], whole.scores[i]);
    }
  }
  EXPECT_EQ(max_parts, 11u);  // a token each
}

TEST(ConvertTest, PooledVectorsComeBetweenScoresAndTokens) {
  StepResult whole = ScoredResult();
  whole.scores.resize(1);
  for (int64_t i = 0; i < 5; ++i) {
    whole.pooled.push_back({SequenceId(20 + i), {0.5f, -1.0f, float(i)}});
  }
  for (const int64_t max_values : {1, 7, 14, 1000}) {
    SCOPED_TRACE(max_values);
    std::vector<PooledVector> joined;
    bool scores = true, pooled = true;
    for (const v1::StepResult& wire : ToProtoParts(whole, max_values)) {
      const auto part = FromProto(Resent(wire));
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_TRUE(part->scores.empty() || scores);
      EXPECT_TRUE(part->pooled.empty() || pooled);
      if (!part->pooled.empty()) scores = false;
      if (!part->tokens.empty()) pooled = false;
      EXPECT_LE(part->pooled.size(),
                static_cast<size_t>(std::max<int64_t>(1, max_values / 7)));
      joined.insert(joined.end(), part->pooled.begin(), part->pooled.end());
    }
    ASSERT_EQ(joined.size(), whole.pooled.size());
    for (size_t i = 0; i < joined.size(); ++i) {
      EXPECT_EQ(joined[i].sequence, whole.pooled[i].sequence);
      EXPECT_EQ(joined[i].values, whole.pooled[i].values);
    }
  }
}

TEST(ConvertTest, AResultWithoutScoresIsOnePart) {
  StepResult result = ScoredResult();
  result.scores.clear();
  const std::vector<v1::StepResult> parts = ToProtoParts(result);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_FALSE(parts[0].more());
  EXPECT_EQ(parts[0].tokens_size(), 1);
}

TEST(ConvertTest, AnUnknownPoolingIsRefused) {
  StepPlan plan;
  plan.admit.push_back({SequenceId(8), 4, 4, {}, Pooling::kMax});
  v1::StepPlan good;
  ToProto(plan, &good);
  for (const int pooling : {-1, 7}) {
    ExpectRefused<v1::StepPlan>(
        good,
        [&](auto& m) {
          m.mutable_admit(0)->set_pooling(static_cast<v1::Pooling>(pooling));
        },
        "sequence 8 has the unknown pooling");
  }
}

TEST(ConvertTest, StepResultRefused) {
  v1::StepResult good;
  ToProto(ScoredResult(), &good);
  const auto refused = [&](std::function<void(v1::TokenScores&)> change,
                           const std::string& named) {
    ExpectRefused<v1::StepResult>(
        good, [&](auto& m) { change(*m.mutable_scores(2)); }, named);
  };
  refused([](auto& s) { s.set_begin(-1); }, "position -1");
  refused([](auto& s) { s.set_begin(INT32_MAX); }, "position 2147483647");
  refused([](auto& s) { s.set_num_top(-1); }, "-1 alternatives");
  refused([](auto& s) { s.set_num_top(2); }, "2 alternatives");
  refused([](auto& s) { s.set_num_top(21); }, "21 alternatives");
  refused([](auto& s) { s.add_logprobs(0); }, "5 scores");
  refused([](auto& s) { s.add_top_tokens(0); }, "13 tokens");
  refused([](auto& s) { s.clear_top_logprobs(); }, "0 log-probabilities");
}

// Any received message is refused or within its limits.
TEST(ConvertTest, DamagedScoresAreRefusedOrConsistent) {
  v1::StepPlan plan;
  ToProto(FullPlan(), &plan);
  v1::StepResult result;
  ToProto(ScoredResult(), &result);
  const std::string plan_bytes = plan.SerializeAsString();
  const std::string result_bytes = result.SerializeAsString();
  std::mt19937 random(5);
  const auto damaged = [&](std::string bytes) {
    for (int changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    return bytes;
  };
  int plans = 0, results = 0;
  for (int round = 0; round < 20'000; ++round) {
    if (plan.ParseFromString(damaged(plan_bytes))) {
      if (const auto parsed = FromProto(plan); parsed.ok()) {
        ++plans;
        for (const MicroBatch& batch : parsed->micro_batches) {
          for (const Segment& s : batch.segments) {
            if (s.score_begin == s.score_end) continue;
            ASSERT_GT(s.score_begin, s.start);
            ASSERT_GT(s.score_end, s.score_begin);
            ASSERT_LE(s.score_end - 1, s.start + s.num_tokens);
          }
        }
      }
    }
    if (result.ParseFromString(damaged(result_bytes))) {
      if (const auto parsed = FromProto(result); parsed.ok()) {
        ++results;
        for (const TokenScores& s : parsed->scores) {
          ASSERT_GE(s.begin, 0);
          ASSERT_LE(s.num_top, kMaxTopLogprobs);
          ASSERT_EQ(s.top.size(), s.logprobs.size() * s.num_top);
        }
      }
    }
  }
  EXPECT_GT(plans, 100);
  EXPECT_GT(results, 100);
}

Policy FullPolicy() {
  return {.gbs = 3,
          .num_microbatches = 4,
          .max_step_tokens = 500,
          .automatic_weights = false,
          .automatic_kv_cache = false,
          .automatic_activations = false,
          .weights = {0.5, 0.25, 0.25},
          .kv_cache = {0, 0, 1},
          .activations = {1, 0, 0},
          .dtype = DType::kBFloat16,
          .compress_weights = WeightFormat::kInt4,
          .compress_kv = WeightFormat::kInt8,
          .attention_site = AttentionSite::kDevice,
          .sparsity = 0.125f,
          .schedule = Schedule::kRowByRow,
          .overlap = false,
          .packing = false,
          .compute_threads = 6,
          .ranks = 4,
          .link_dtype = DType::kBFloat16};
}

TEST(ConvertTest, PolicyThereAndBack) {
  Policy half;
  half.dtype = DType::kFloat16;
  for (const Policy& policy : {Policy(), FullPolicy(), half}) {
    v1::Policy wire;
    ToProto(policy, &wire);
    const auto back = FromProto(Resent(wire));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == policy) << PolicyText(*back);
  }
}

TEST(ConvertTest, PolicyFieldsThatAreAbsentHaveTheirDefaults) {
  v1::Policy wire;
  ToProto(Policy(), &wire);
  for (int field = 9; field <= 16; ++field) {
    wire.GetReflection()->ClearField(
        &wire, wire.GetDescriptor()->FindFieldByNumber(field));
  }
  const auto back = FromProto(Resent(wire));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == Policy()) << PolicyText(*back);
}

TEST(ConvertTest, PolicyRefused) {
  v1::Policy good;
  ToProto(FullPolicy(), &good);
  const auto refused = [&](std::function<void(v1::Policy&)> change,
                           const std::string& named) {
    ExpectRefused<v1::Policy>(good, std::move(change), named);
  };
  refused([](auto& m) { m.set_gbs(0); }, "gbs 0");
  refused([](auto& m) { m.set_num_microbatches(-1); }, "num_microbatches -1");
  refused([](auto& m) { m.set_max_step_tokens(0); }, "max_step_tokens 0");
  refused([](auto& m) { m.set_compute_threads(-1); }, "compute_threads -1");
  refused([](auto& m) { m.clear_dtype(); }, "dtype 0");
  refused([](auto& m) { m.set_dtype(static_cast<v1::DType>(17)); }, "dtype 17");
  refused([](auto& m) { m.mutable_weights()->set_disk(0.3); }, "weights");
  refused([](auto& m) { m.mutable_kv_cache()->set_device(-1); }, "kv_cache");
  refused([](auto& m) { m.clear_activations(); }, "activations");
  refused([](auto& m) { m.set_sparsity(1.5f); }, "sparsity 1.5");
  refused([](auto& m) { m.set_link_dtype(v1::DTYPE_FLOAT16); }, "link_dtype 3");
  refused([](auto& m) { m.set_ranks(65); }, "65 ranks");
  refused([](auto& m) { m.set_ranks(-1); }, "-1 ranks");
  refused([](auto& m) { m.set_sparsity(-0.5f); }, "sparsity -0.5");
  refused([](auto& m) { m.set_sparsity(NAN); }, "sparsity nan");
  refused(
      [](v1::Policy& m) {
        m.set_compress_weights(static_cast<v1::NumberFormat>(3));
      },
      "compress_weights 3");
  refused(
      [](v1::Policy& m) {
        m.set_compress_kv(static_cast<v1::NumberFormat>(-1));
      },
      "compress_kv -1");
  refused(
      [](v1::Policy& m) {
        m.set_attention_site(static_cast<v1::AttentionSite>(2));
      },
      "attention_site 2");
  refused([](v1::Policy& m) { m.set_schedule(static_cast<v1::Schedule>(9)); },
          "schedule 9");
}

}  // namespace
}  // namespace sluice
