#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/steps/step_scheduler.h"
#include "scheduler/steps/workload.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Totals {
  double steps = 0, micro_batches = 0, prefill = 0, chunks = 0, pairs = 0;
  double decode = 0, positions = 0, read = 0, head = 0;
};

Totals Sum(const std::vector<StepShape>& kinds) {
  Totals t;
  for (const StepShape& k : kinds) {
    t.steps += k.count;
    t.micro_batches += k.count * k.micro_batches;
    t.prefill += k.count * k.prefill_rows;
    t.chunks += k.count * k.prefill_chunks;
    t.pairs += k.count * k.prefill_pairs;
    t.decode += k.count * k.decode_rows;
    t.positions += k.count * k.decode_positions;
    t.read += k.count * k.read_positions;
    t.head += k.count * k.head_rows;
  }
  return t;
}

// The job in the scheduler that runs it, block after block, as fast as the
// slowest.
Totals Scheduled(const Workload& workload, const BlockShape& block) {
  StepScheduler::Options options;
  options.num_blocks = block.num_blocks;
  options.gbs = block.gbs;
  options.num_microbatches = block.num_microbatches;
  options.max_step_tokens = block.max_step_tokens;
  options.steps_in_flight = block.steps_in_flight;
  options.slice_context = block.slice_context;
  options.kv_pages = int64_t{1} << 40;
  options.refill = block.refill;
  options.reserve = StepScheduler::Reserve::kMaximum;
  StepScheduler scheduler = *StepScheduler::Create(options);
  struct Sequence {
    int32_t prompt, left;
  };
  std::map<int64_t, Sequence> sequences;
  // Classes are evenly mixed, as the workload says.
  std::multimap<std::pair<double, size_t>, LengthClass> order;
  for (size_t c = 0; c < workload.classes.size(); ++c) {
    const LengthClass& of = workload.classes[c];
    for (int64_t j = 0; j < of.count; ++j) {
      order.insert({{(j + 0.5) / static_cast<double>(of.count), c}, of});
    }
  }
  for (const auto& [at, of] : order) {
    const auto id = static_cast<int64_t>(sequences.size());
    sequences[id] = {of.prompt, of.output};
    scheduler.Enqueue(SequenceId(id), of.prompt, of.prompt + of.output);
  }
  Totals t;
  std::vector<std::vector<StepScheduler::StepDecision>> steps(block.num_blocks);
  const auto begin = [&](int32_t b, StepScheduler::StepDecision decision) {
    if (!decision.micro_batches.empty()) t.steps += 1;
    t.micro_batches += static_cast<double>(decision.micro_batches.size());
    for (const auto& micro_batch : decision.micro_batches) {
      for (const Segment& segment : micro_batch) {
        const Sequence& sequence = sequences[segment.sequence.value()];
        const double n = segment.num_tokens, start = segment.start;
        t.read += start;
        t.head += segment.sample ? 1 : 0;
        if (segment.start >= sequence.prompt) {
          t.decode += 1;
          t.positions += start + 1;
        } else {
          t.prefill += n;
          t.chunks += 1;
          t.pairs += n * start + n * (n + 1) / 2;
        }
      }
    }
    steps[b].push_back(std::move(decision));
  };
  while (scheduler.running() + scheduler.waiting() > 0) {
    for (int32_t b = 0; b < block.num_blocks; ++b) {
      for (const StepScheduler::StepDecision& step : steps[b]) {
        scheduler.OnStepDone(BlockId(b));
        for (const auto& micro_batch : step.micro_batches) {
          for (const Segment& segment : micro_batch) {
            if (!segment.sample) continue;
            if (--sequences[segment.sequence.value()].left == 0) {
              scheduler.Finish(segment.sequence);
            }
          }
        }
      }
      steps[b].clear();
      if (auto step = scheduler.FormStep(BlockId(b)))
        begin(b, *std::move(step));
    }
    // Slices until the pipeline is full, the blocks in turn.
    for (bool any = true; any;) {
      any = false;
      for (int32_t b = 0; b < block.num_blocks; ++b) {
        auto slice = scheduler.FormSlice(BlockId(b));
        if (!slice.has_value()) continue;
        any = true;
        begin(b, *std::move(slice));
      }
    }
  }
  return t;
}

void ExpectNear(const Totals& got, const Totals& want, double off) {
  const auto near = [&](const char* what, double a, double b) {
    EXPECT_NEAR(a, b, off * b + 1e-6 * b) << what;
  };
  near("steps", got.steps, want.steps);
  near("micro-batches", got.micro_batches, want.micro_batches);
  near("prefill", got.prefill, want.prefill);
  near("chunks", got.chunks, want.chunks);
  near("pairs", got.pairs, want.pairs);
  near("decode", got.decode, want.decode);
  near("positions", got.positions, want.positions);
  near("read", got.read, want.read);
  near("head", got.head, want.head);
}

TEST(WorkloadTest, AddsUpItsClasses) {
  const Workload workload = {{{100, 10, 3}, {20, 50, 2}, {9999, 1, 0}}};
  EXPECT_EQ(workload.requests(), 5);
  EXPECT_EQ(workload.prompt_tokens(), 340);
  EXPECT_EQ(workload.output_tokens(), 130);
  EXPECT_EQ(workload.longest(), 110) << "nobody asks for the longer one";
  EXPECT_TRUE(workload.Check().ok());
}

TEST(WorkloadTest, RefusesWhatMakesNoSense) {
  const auto error = [](const Workload& workload) {
    EXPECT_EQ(workload.Check().code(), absl::StatusCode::kInvalidArgument);
    return std::string(workload.Check().message());
  };
  EXPECT_THAT(error({}), HasSubstr("no requests"));
  EXPECT_THAT(error({{{10, 10, 0}}}), HasSubstr("no requests"));
  EXPECT_THAT(error({{{0, 10, 1}}}), HasSubstr("0 prompt tokens"));
  EXPECT_THAT(error({{{10, 0, 1}}}), HasSubstr("0 generated"));
  EXPECT_THAT(error({{{10, 10, -1}}}), HasSubstr("-1 requests"));
  EXPECT_THAT(error({{{10, 10, 1, 10}}}), HasSubstr("10 of them shared"));
  EXPECT_THAT(error({{{10, 10, 1, -1}}}), HasSubstr("-1 of them shared"));
  EXPECT_THAT(error({{{1 << 30, 10, 1}}}), HasSubstr("1073741824"));
  EXPECT_THAT(error({{{1, 1, int64_t{1} << 40}, {2, 2, int64_t{1} << 40}}}),
              HasSubstr("at most"));
}

TEST(BlockStepsTest, OnePrefillAndOneDecodeStepLessThanTokens) {
  const std::vector<StepShape> kinds =
      BlockSteps({{{512, 32, 100}}}, {.gbs = 10, .num_microbatches = 5});
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].count, 2);
  EXPECT_EQ(kinds[0].micro_batches, 5);
  EXPECT_EQ(kinds[0].prefill_rows, 50 * 512);
  EXPECT_EQ(kinds[0].prefill_chunks, 50);
  EXPECT_EQ(kinds[0].prefill_pairs, 50.0 * 512 * 513 / 2);
  EXPECT_EQ(kinds[0].head_rows, 50);
  EXPECT_EQ(kinds[0].decode_rows, 0);
  EXPECT_EQ(kinds[1].count, 2 * 31);
  EXPECT_EQ(kinds[1].decode_rows, 50);
  // FlexGen A.3 takes s + n / 2.
  EXPECT_EQ(kinds[1].decode_positions, 50 * (512 + 16));
  EXPECT_EQ(kinds[1].read_positions, 50 * (512 + 15));
  EXPECT_EQ(kinds[1].head_rows, 50);
  EXPECT_EQ(kinds[1].prefill_rows, 0);
}

TEST(BlockStepsTest, OneTokenIsPrefillsAlone) {
  const std::vector<StepShape> kinds = BlockSteps({{{7, 1, 3}}}, {.gbs = 8});
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_EQ(kinds[0].prefill_rows, 21);
  EXPECT_EQ(kinds[0].micro_batches, 1);
}

TEST(StepsOfTest, FollowsSmallJobsExactly) {
  // The three prompts fit into one step; decoding follows.
  const std::vector<StepShape> kinds =
      StepsOf({{{10, 4, 3}}},
              {.gbs = 4, .num_microbatches = 1, .max_step_tokens = 64}, 2);
  ASSERT_EQ(kinds.size(), 2u);
  const StepShape& prefill = kinds[0].prefill_rows > 0 ? kinds[0] : kinds[1];
  const StepShape& decode = kinds[0].prefill_rows > 0 ? kinds[1] : kinds[0];
  EXPECT_EQ(prefill.count, 1);
  EXPECT_EQ(prefill.prefill_rows, 30);
  EXPECT_EQ(prefill.prefill_pairs, 3 * 55);
  EXPECT_EQ(prefill.head_rows, 3);
  EXPECT_EQ(decode.count, 3);
  EXPECT_EQ(decode.decode_rows, 3);
  EXPECT_NEAR(decode.decode_positions, 3 * 12, 1e-9);
  EXPECT_NEAR(decode.read_positions, 3 * 11, 1e-9);
}

TEST(StepsOfTest, IsWhatTheSchedulerDoes) {
  std::mt19937 random(7);
  const auto any = [&](int from, int to) {
    return from + static_cast<int>(random() % (to - from + 1));
  };
  for (int i = 0; i < 200; ++i) {
    BlockShape block;
    block.gbs = any(1, 12);
    block.num_microbatches = any(1, 4);
    block.num_blocks = any(1, 3);
    block.max_step_tokens = block.gbs + any(0, 80);
    block.refill = any(0, 3) > 0;
    if (block.refill && any(0, 1) > 0) {
      block.steps_in_flight = any(1, 6);
      block.slice_context = any(0, 1) * any(1, 200);
    }
    // There are few enough requests to be followed to the end.
    const int slots = block.gbs * block.num_microbatches * block.num_blocks;
    Workload workload;
    const int classes = any(1, 4);
    for (int c = 0; c < classes; ++c) {
      workload.classes.push_back(
          {any(1, 90), any(1, 40), any(1, 1 + 9 * slots / classes)});
    }
    ASSERT_LT(workload.requests(), 2000);
    SCOPED_TRACE(absl::StrCat(
        "job ", i, ": gbs ", block.gbs, " x ", block.num_microbatches, " x ",
        block.num_blocks, ", ", block.max_step_tokens, " tokens, refill ",
        block.refill, ", in flight ", block.steps_in_flight, ", context ",
        block.slice_context, ", ", workload.requests(), " requests"));
    ExpectNear(Sum(StepsOf(workload, block, 1000)), Scheduled(workload, block),
               0);
    // Merging keeps the sums.
    const std::vector<StepShape> few = StepsOf(workload, block, 3);
    EXPECT_LE(few.size(), 3u);
    ExpectNear(Sum(few), Sum(StepsOf(workload, block, 1000)), 0);
  }
}

TEST(StepsOfTest, WhatIsSharedIsNotPrefilled) {
  const BlockShape block = {.gbs = 4, .max_step_tokens = 64};
  for (const int64_t count : {20, 20000}) {
    const Workload workload = {{{100, 5, count, 70}}};
    const Totals totals = Sum(StepsOf(workload, block, 8));
    const auto n = static_cast<double>(count);
    EXPECT_NEAR(totals.prefill, 30 * n, 1e-6 * n);
    EXPECT_NEAR(totals.pairs, (100 * 101 - 70 * 71) / 2 * n, 1e-6 * n);
    EXPECT_NEAR(totals.decode, 4 * n, 1e-6 * n);
  }
}

TEST(StepsOfTest, SlicesAreInThePipelineTogether) {
  // One prompt at a time, in 8 chunks, 4 of which follow each other.
  const Workload workload = {{{800, 1, 10}}};
  BlockShape block = {.gbs = 1, .max_step_tokens = 100, .steps_in_flight = 4};
  for (const StepShape& kind : StepsOf(workload, block, 8)) {
    EXPECT_EQ(kind.in_flight, 4);
    EXPECT_EQ(kind.prefill_rows, 100);
  }
  block.steps_in_flight = 0;
  for (const StepShape& kind : StepsOf(workload, block, 8)) {
    EXPECT_EQ(kind.in_flight, 1);
  }
}

TEST(StepsOfTest, MultipliesTheMiddleOfLongJobs) {
  const std::vector<Workload> workloads = {
      {{{100, 30, 9000}}},
      {{{20, 60, 3000}, {200, 10, 4500}, {64, 1, 600}}},
      {{{500, 100, 2900}}},
  };
  for (const Workload& workload : workloads) {
    for (const BlockShape& block : {BlockShape{.gbs = 8,
                                   .num_microbatches = 2,
                                   .num_blocks = 2,
                                   .max_step_tokens = 64},
                                    BlockShape{.gbs = 16,
                                    .num_microbatches = 1,
                                    .num_blocks = 1,
                                    .max_step_tokens = 512},
                                    BlockShape{.gbs = 8,
                                    .num_microbatches = 4,
                                    .num_blocks = 1,
                                    .max_step_tokens = 128,
                                    .refill = false}}) {
      SCOPED_TRACE(absl::StrCat(workload.requests(), " requests, gbs ",
                                block.gbs, " x ", block.num_microbatches));
      const Totals got = Sum(StepsOf(workload, block, 16));
      const Totals want = Scheduled(workload, block);
      ExpectNear(got, want, 0.02);
      // Sums that must not be lost are not.
      EXPECT_NEAR(got.prefill, workload.prompt_tokens(), 1e-3);
      EXPECT_NEAR(got.decode, workload.output_tokens() - workload.requests(),
                  1e-3);
      EXPECT_NEAR(got.positions, want.positions, 1e-6 * want.positions);
      EXPECT_NEAR(got.pairs, want.pairs, 1e-6 * want.pairs);
      EXPECT_NEAR(got.head, want.head, 1e-6 * want.head);
    }
  }
}

TEST(StepsOfTest, KindsTellPrefillFromDecoding) {
  const std::vector<StepShape> kinds =
      StepsOf({{{512, 64, 100000}}},
              {.gbs = 64, .num_microbatches = 4, .num_blocks = 2}, 8);
  ASSERT_GE(kinds.size(), 2u);
  ASSERT_LE(kinds.size(), 8u);
  double only_decode = 0, steps = 0;
  for (const StepShape& kind : kinds) {
    EXPECT_GT(kind.count, 0);
    EXPECT_GT(kind.micro_batches, 0);
    EXPECT_LE(kind.micro_batches, 4);
    EXPECT_LE(kind.decode_rows, 256 * 1.001);
    EXPECT_LE(kind.prefill_rows + kind.decode_rows, 4 * 2048 * 1.01);
    steps += kind.count;
    if (kind.prefill_rows == 0) only_decode += kind.count;
  }
  // A sequence needs 64 steps of its block: 100000 of them in 512 slots.
  EXPECT_GT(steps, 64 * 2 * 100000 / 512);
}

TEST(StepsOfTest, TheSameEveryTime) {
  const Workload workload = {{{100, 30, 3000}, {10, 3, 77}}};
  const BlockShape block = {.gbs = 8, .num_microbatches = 2};
  const std::vector<StepShape> a = StepsOf(workload, block, 8);
  const std::vector<StepShape> b = StepsOf(workload, block, 8);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].count, b[i].count);
    EXPECT_EQ(a[i].decode_positions, b[i].decode_positions);
  }
}

}  // namespace
}  // namespace sluice
