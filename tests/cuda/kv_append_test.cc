#include "runtime/kernels/cuda/attention/kv_append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/kv/kv_layout.h"
#include "tests/cuda/support/device_array.h"
#include "tests/cuda/support/parity.h"

namespace sluice {
namespace {

constexpr int kPositions = 200;

// Sines and cosines of all positions, as numbers they could be.
struct Angles {
  Angles(Random& random, int half)
      : half(half), cos(kPositions * half), sin(kPositions * half) {
    for (size_t i = 0; i < cos.size(); ++i) {
      const float angle = static_cast<float>(random.Int(0, 6283)) / 1000.0f;
      cos[i] = std::cos(angle);
      sin[i] = std::sin(angle);
    }
  }
  int half;
  std::vector<float> cos, sin;
};

TEST(RotateRowsTest, EqualsTheCpu) {
  Random random(1);
  for (int i = 0; i < 40; ++i) {
    const int head_dim = 2 * random.Int(1, 128);
    const Angles angles(random, i % 7 == 0 ? 0 : random.Int(1, head_dim / 2));
    const int rows = random.Int(1, 6);
    const int heads = random.Int(1, 5);
    const int stride = heads * head_dim + random.Int(0, 9);
    std::vector<int32_t> positions(rows);
    for (int32_t& p : positions) p = random.Int(0, kPositions - 1);
    const std::vector<float> q = random.Normal(rows * stride);
    const DeviceArray<float> dcos(angles.cos), dsin(angles.sin);
    const DeviceArray<int32_t> dpositions(positions);
    const std::vector<float> got = InAnyOrder([&] {
      const DeviceArray<float> dq(q);
      EXPECT_TRUE(RotateRows({dcos.data(), dsin.data(), angles.half},
                             dpositions.data(), rows, heads, head_dim, stride,
                             dq.data(), nullptr)
                      .ok());
      return dq.Read();
    });
    std::vector<float> want = q;
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < heads; ++head) {
        const int at = row * stride + head * head_dim;
        const int angle = positions[row] * angles.half;
        RotateHead(q.data() + at, angles.cos.data() + angle,
                   angles.sin.data() + angle, angles.half, head_dim, 1.0f,
                   want.data() + at);
      }
    }
    ASSERT_EQ(got, want) << head_dim << " " << angles.half;
  }
}

// A batch with its pages.
struct Case {
  Case(Random& random, KvFormat format, int head_dim, bool rotary)
      : layout{1, random.Int(1, 3), head_dim, format},
        angles(random, rotary ? random.Int(1, head_dim / 2) : 0) {
    const int num_segments = random.Int(1, 4);
    int rows = 0;
    for (int s = 0; s < num_segments; ++s) {
      const int tokens = random.Coin() ? 1 : random.Int(1, 70);
      const int start = random.Int(0, kPositions - tokens);
      // Pages come in any order.
      std::vector<int32_t> numbers((start + tokens + kPageTokens - 1) /
                                   kPageTokens);
      std::iota(numbers.begin(), numbers.end(), 0);
      std::shuffle(numbers.begin(), numbers.end(), random.engine());
      arenas.push_back(
          random.Bytes(numbers.size() * layout.layer_page_bytes()));
      pages.push_back(std::move(numbers));
      segments.push_back({.row = rows, .start = start, .num_tokens = tokens});
      rows += tokens;
    }
    for (int s = 0; s < num_segments; ++s) segments[s].pages = pages[s];
    const int width = layout.num_kv_heads * head_dim;
    stride = 2 * width + random.Int(0, 5);
    kv = random.Normal(rows * stride, 0.3f, 2);
  }

  const float* k() const { return kv.data(); }
  const float* v() const {
    return kv.data() + layout.num_kv_heads * layout.head_dim;
  }
  // Return all bytes of all arenas, after the CPU, or the device, has stored K
  // and V.
  std::vector<std::byte> ByCpu() const;
  std::vector<std::byte> ByDevice() const;

  KvLayout layout;
  Angles angles;
  std::vector<std::vector<std::byte>> arenas;
  std::vector<std::vector<int32_t>> pages;
  std::vector<SegmentView> segments;
  int stride = 0;
  std::vector<float> kv;
};

std::vector<std::byte> Case::ByCpu() const {
  std::vector<std::byte> all;
  const int n = layout.head_dim;
  std::vector<float> rotated(n);
  for (size_t s = 0; s < segments.size(); ++s) {
    std::vector<std::byte> arena = arenas[s];
    for (int i = 0; i < segments[s].num_tokens; ++i) {
      const int position = segments[s].start + i;
      std::byte* page = arena.data() + pages[s][position / kPageTokens] *
                                           layout.layer_page_bytes();
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        const int at = (segments[s].row + i) * stride + head * n;
        RotateHead(k() + at, angles.cos.data() + position * angles.half,
                   angles.sin.data() + position * angles.half, angles.half, n,
                   1.0f, rotated.data());
        StoreKv(rotated.data(), n, v() + at, n, position % kPageTokens, 1, n,
                layout.format, page + layout.head_offset(head));
      }
    }
    all.insert(all.end(), arena.begin(), arena.end());
  }
  return all;
}

std::vector<std::byte> Case::ByDevice() const {
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> memory;
  std::vector<AttentionSegment> device_segments;
  std::vector<int32_t> table;
  std::byte* kv_begin = nullptr;
  for (size_t s = 0; s < segments.size(); ++s) {
    memory.push_back(std::make_unique<DeviceArray<std::byte>>(arenas[s]));
    if (s == 0 || memory[s]->data() < kv_begin) kv_begin = memory[s]->data();
  }
  for (size_t s = 0; s < segments.size(); ++s) {
    device_segments.push_back({.kv_offset = memory[s]->data() - kv_begin,
                               .first_page = static_cast<int32_t>(table.size()),
                               .row = segments[s].row,
                               .start = segments[s].start,
                               .num_tokens = segments[s].num_tokens});
    table.insert(table.end(), pages[s].begin(), pages[s].end());
  }
  BatchView batch;
  batch.segments = segments;
  std::vector<KvRun> runs;
  const int32_t longest =
      MakeKvRuns(batch, 0, static_cast<int32_t>(segments.size()), &runs);
  const DeviceArray<AttentionSegment> dsegments(device_segments);
  const DeviceArray<int32_t> dtable(table);
  const DeviceArray<KvRun> druns(runs);
  const DeviceArray<float> dkv(kv), dcos(angles.cos), dsin(angles.sin);
  KvAppendArgs args;
  args.block = MakeKvBlock(layout);
  args.num_kv_heads = layout.num_kv_heads;
  args.kv = kv_begin;
  args.segments = dsegments.data();
  args.pages = dtable.data();
  args.runs = druns.data();
  args.num_runs = static_cast<int32_t>(runs.size());
  args.k = dkv.data();
  args.v = dkv.data() + (v() - k());
  args.stride = stride;
  args.rotary = {dcos.data(), dsin.data(), angles.half};
  const absl::Status status = AppendKv(args, layout.format, longest, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::byte> all;
  for (const auto& arena : memory) {
    const std::vector<std::byte> bytes = arena->Read();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

class AppendKvTest : public testing::TestWithParam<KvFormat> {};

// All other bytes of the pages stay as they were.
TEST_P(AppendKvTest, EqualsTheCpuBitForBit) {
  Random random(2);
  constexpr int kUsual[] = {64, 80, 96, 128, 256, 40, 16};
  for (int i = 0; i < 48; ++i) {
    const int head_dim = i % 3 == 2 ? random.Int(1, 150) : kUsual[i % 7];
    const bool rotary = head_dim > 1 && i % 4 != 0;
    SCOPED_TRACE(testing::Message() << i << ": " << head_dim);
    const Case one(random, GetParam(), head_dim, rotary);
    ASSERT_TRUE(InAnyOrder([&] { return one.ByDevice(); }) == one.ByCpu());
  }
}

// Rows hold constants, zeros of either sign, what float16 can't hold, and what
// is no number.
TEST_P(AppendKvTest, OddValues) {
  Random random(3);
  const bool quantized = KvLayout{.format = GetParam()}.quantized();
  const float odd[] = {0.0f,
                       -0.0f,
                       1.5f,
                       1e-9f,
                       65504.0f,
                       7e4f,
                       -3e5f,
                       std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 24; ++i) {
    Case one(random, GetParam(), i % 2 == 0 ? 80 : 33, false);
    for (float& x : one.kv) {
      const bool constant = i % 3 == 0;
      if (constant || random.Int(0, 40) == 0) {
        // NaN as bfloat16 has other bits on a device.
        x = odd[constant ? i / 3 % 8 : random.Int(0, quantized ? 8 : 7)];
      }
    }
    SCOPED_TRACE(i);
    ASSERT_TRUE(InAnyOrder([&] { return one.ByDevice(); }) == one.ByCpu());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, AppendKvTest,
    testing::Values(KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
                    KvFormat::kInt8, KvFormat::kInt4),
    [](const auto& info) { return std::string(KvFormatName(info.param)); });

TEST(AppendKvArgsTest, WhatCannotBeIsRefused) {
  KvAppendArgs args;
  args.num_runs = 1 << 20;
  args.num_kv_heads = 1 << 11;
  EXPECT_EQ(AppendKv(args, KvFormat::kInt4, 32, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  args.num_runs = 1;
  EXPECT_EQ(AppendKv(args, KvFormat::kInt4, 33, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MakeKvRunsTest, CutsAtPages) {
  BatchView batch;
  const SegmentView segments[] = {{.start = 5, .num_tokens = 1},
                                  {.start = 30, .num_tokens = 40},
                                  {.start = 64, .num_tokens = 32}};
  batch.segments = segments;
  std::vector<KvRun> runs;
  EXPECT_EQ(MakeKvRuns(batch, 1, 2, &runs), 32);
  ASSERT_EQ(runs.size(), 4u);
  const int want[4][3] = {{0, 0, 2}, {0, 2, 32}, {0, 34, 6}, {1, 0, 32}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(runs[i].segment, want[i][0]);
    EXPECT_EQ(runs[i].first, want[i][1]);
    EXPECT_EQ(runs[i].count, want[i][2]);
  }
  EXPECT_EQ(MakeKvRuns(batch, 0, 1, &runs), 1);
}

}  // namespace
}  // namespace sluice
