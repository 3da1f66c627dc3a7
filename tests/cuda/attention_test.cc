#include "runtime/kernels/cuda/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cuda/attention/attention_inputs.h"
#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/device/launch.h"
#include "tests/cuda/support/attention_world.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/block.h"
#endif

namespace sluice {
namespace {

using Choice = AttentionWorld::Choice;
using testing::HasSubstr;

enum class Kind { kDecode, kSparse, kPrefill };

// Plans are made for these devices; the emulation is none of them in
// particular.
constexpr AttentionDevice kT4{40, 75, 64 << 10};
constexpr AttentionDevice kA100{108, 80, 163 << 10};
constexpr AttentionDevice kH100{132, 90, 227 << 10};
constexpr AttentionDevice kTiny{1, 90, 227 << 10};

std::string Describe(const Choice& choice) {
  std::string text = absl::StrCat(
      std::string(KvFormatName(choice.shape.kv.format)), " computed in ",
      std::string(DTypeName(choice.shape.dtype)), ", ", choice.shape.num_heads,
      " heads on ", choice.shape.kv.num_kv_heads, " of ",
      choice.shape.kv.head_dim, ", window ", choice.window, ", seed ",
      choice.seed, ":");
  for (const auto& s : choice.sequences) {
    absl::StrAppend(&text, " ", s.start, "+", s.num_tokens);
  }
  return text;
}

// Returns how far the whole result may be off, relative to its norm: for
// float32, by what its sums cost; for other types, by what rounding the result
// costs, and what the kernel is allowed to round on the way.
double Bound(const Choice& choice, Kind kind) {
  if (choice.shape.dtype == DType::kFloat32) return 3e-6;
  if (kind == Kind::kPrefill && choice.shape.TensorCores()) {
    return choice.shape.kv.format == KvFormat::kBFloat16 ? 6e-3 : 3e-3;
  }
  if (choice.shape.dtype == DType::kBFloat16) return 2.2e-3;
  // K and V that come from codes are rounded to float16 as well.
  return choice.shape.kv.quantized() ? 1e-3 : 4e-4;
}

// Returns how far the result may be off from the CPU's, which rounds queries
// and weights to 15 or 7 bits for the quantized formats.
double CpuBound(const Choice& choice, Kind kind) {
  switch (choice.shape.kv.format) {
    case KvFormat::kInt8:
      return Bound(choice, kind) + 1e-3;
    case KvFormat::kInt4:
      return Bound(choice, kind) + 3e-2;
    default:
      return Bound(choice, kind);
  }
}

std::vector<double> Doubles(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}

void ExpectAgreement(const Choice& choice, Kind kind,
                     const AttentionDevice& device) {
  SCOPED_TRACE(Describe(choice));
  const AttentionWorld world(choice);
  const auto got = world.OnDevice(device);
  EXPECT_LT(RelativeError(got, world.Definition()), Bound(choice, kind));
  EXPECT_LT(RelativeError(got, Doubles(world.OnCpu())), CpuBound(choice, kind));
}

template <typename T>
T Pick(std::mt19937& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

// A random choice. One in a few has a long context, and then few heads.
Choice RandomChoice(unsigned seed, Kind kind, KvFormat format) {
  std::mt19937 random(seed * 2654435761u + 17);
  Choice choice;
  choice.seed = seed;
  AttentionShape& shape = choice.shape;
  shape.kv.num_layers = 1;
  shape.kv.format = format;
  shape.kv.page_alignment = random() % 4 == 0 ? 4096 : 64;
  if (format != KvFormat::kFloat32 && random() % 3 > 0) {
    const bool half = format == KvFormat::kFloat16 ||
                      (format != KvFormat::kBFloat16 && random() % 2 == 0);
    shape.dtype = half ? DType::kFloat16 : DType::kBFloat16;
  }
  const bool is_long = random() % 8 == 0;
  shape.kv.num_kv_heads = is_long ? 1 : Pick<int>(random, {1, 2, 3});
  shape.num_heads = shape.kv.num_kv_heads *
                    (is_long ? Pick<int>(random, {1, 4})
                             : Pick<int>(random, {1, 1, 2, 3, 4, 7, 8, 9, 17}));
  shape.kv.head_dim =
      random() % 4 == 0
          ? Pick<int>(random, {1, 5, 10, 20, 33, 63, 66, 100, 129})
          : Pick<int>(random, {8, 16, 24, 32, 40, 64, 64, 72, 80, 96, 112, 128,
                               128, 160, 200, 256});
  if (is_long) shape.kv.head_dim = std::min(shape.kv.head_dim, 40);
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.kv.head_dim));
  if (random() % 4 == 0) choice.window = 1 + random() % 100;
  if (seed % 3 == 0) shape.cap = 2;
  if (seed % 7 == 0) choice.scale = 0.5F;
  if (seed % 5 == 0) {
    shape.alibi_heads = 4;
    shape.first_head = static_cast<int>(seed % 4);
    shape.rounded_alibi = seed % 2 == 0;
  }
  choice.spread = Pick<float>(random, {0.1f, 1, 4});
  const int sequences = 1 + random() % 3;
  for (int s = 0; s < sequences; ++s) {
    const int longest = is_long ? 3000 : 150;
    AttentionWorld::Sequence sequence;
    sequence.start = random() % 3 == 0 ? random() % 3 : random() % longest;
    sequence.num_tokens = kind == Kind::kPrefill ? 1 + random() % 70 : 1;
    choice.sequences.push_back(sequence);
  }
  return choice;
}

// Random shapes of each kind; as many as SLUICE_TEST_CASES says under a
// sanitizer of the device, which takes its time.
unsigned Cases() {
  const char* cases = std::getenv("SLUICE_TEST_CASES");
  return cases != nullptr ? std::atoi(cases) : 50;
}

// Returns one of four devices on the emulation; on a device, that one.
AttentionDevice DeviceFor(unsigned seed) {
#ifdef SLUICE_CUDA_EMULATED
  constexpr const AttentionDevice* kAll[] = {&kT4, &kTiny, &kA100, &kH100};
  return *kAll[seed % 4];
#else
  return CurrentAttentionDevice().value();
#endif
}

class CudaAttentionTest : public testing::TestWithParam<KvFormat> {};

TEST_P(CudaAttentionTest, DecodeOfRandomShapes) {
  for (unsigned seed = 0; seed < Cases() && !HasFailure(); ++seed) {
    ExpectAgreement(RandomChoice(seed, Kind::kDecode, GetParam()),
                    Kind::kDecode, DeviceFor(seed));
  }
}

// Some of the segments are of one token.
TEST_P(CudaAttentionTest, PrefillOfRandomShapes) {
  for (unsigned seed = 100; seed < 100 + Cases() && !HasFailure(); ++seed) {
    ExpectAgreement(RandomChoice(seed, Kind::kPrefill, GetParam()),
                    Kind::kPrefill, DeviceFor(seed));
  }
}

TEST_P(CudaAttentionTest, SparseOfRandomShapes) {
  for (unsigned seed = 200; seed < 200 + Cases(); ++seed) {
    const Choice choice = RandomChoice(seed, Kind::kSparse, GetParam());
    SCOPED_TRACE(Describe(choice));
    const AttentionWorld world(choice);
    const float sparsity = 0.05f + seed % 10 / 10.5f;
    // Where two scores are nearly equal, rounding may choose the other one.
    const double bound = choice.shape.kv.quantized() ? 6e-2 : 3e-3;
    ASSERT_LT(RelativeError(world.OnDevice(DeviceFor(seed), sparsity),
                            world.Definition(sparsity)),
              Bound(choice, Kind::kSparse) + bound);
  }
}

// The context has thousands of positions, in heads as large as models have.
TEST_P(CudaAttentionTest, LongContexts) {
  Choice choice;
  choice.shape.kv = {1, 1, 128, GetParam()};
  choice.shape.num_heads = 4;
  choice.shape.scale = 0.1f;
  choice.sequences = {{4000, 1}, {0, 1}, {2047, 1}, {2500, 40}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    choice.shape.dtype = dtype;
    ExpectAgreement(choice, Kind::kPrefill, DeviceFor(3));
  }
}

#ifdef SLUICE_CUDA_EMULATED
// It must not matter what threads a device lets go first: no barrier is
// missing.
TEST_P(CudaAttentionTest, SameBitsInAnyOrderOfThreads) {
  for (unsigned seed = 300; seed < 315; ++seed) {
    const Choice choice = RandomChoice(seed, Kind::kPrefill, GetParam());
    SCOPED_TRACE(Describe(choice));
    const AttentionWorld world(choice);
    for (const float sparsity : {1.0f, 0.4f}) {
      const auto want = world.OnDevice(DeviceFor(seed), sparsity);
      for (const auto order :
           {emulation::Order::kBackward, emulation::Order::kShuffled}) {
        emulation::SetOrder(order);
        EXPECT_EQ(world.OnDevice(DeviceFor(seed), sparsity), want);
      }
      emulation::SetOrder(emulation::Order::kForward);
    }
  }
}
#endif

TEST_P(CudaAttentionTest, ScoresThatAreNoNumbersHaveNoWeight) {
  for (unsigned seed = 400; seed < 412; ++seed) {
    Choice choice = RandomChoice(seed, Kind::kPrefill, GetParam());
    choice.nan_in_k = true;
    choice.nan_position = 5;
    // Whoever sees that position sees others, too.
    choice.window = 0;
    for (auto& sequence : choice.sequences) sequence.start += 6;
    SCOPED_TRACE(Describe(choice));
    const AttentionWorld world(choice);
    ASSERT_LT(
        RelativeError(world.OnDevice(DeviceFor(seed)), world.Definition()),
        Bound(choice, Kind::kPrefill));
    // Sparse attention keeps it, and shows it.
    choice.sequences = {{40, 1}};
    for (const float x : AttentionWorld(choice).OnDevice(DeviceFor(3), 0.2f)) {
      ASSERT_TRUE(std::isnan(x));
    }
  }
}

TEST_P(CudaAttentionTest, ValuesThatAreNoNumbersShow) {
  for (unsigned seed = 420; seed < 432; ++seed) {
    Choice choice = RandomChoice(seed, Kind::kDecode, GetParam());
    choice.nan_position = 30;
    choice.window = 0;
    choice.sequences = {{29, 1}, {30, 1}, {45, 20}};
    SCOPED_TRACE(Describe(choice));
    const AttentionWorld world(choice);
    const auto got = world.OnDevice(DeviceFor(seed));
    const int width = choice.shape.num_heads * choice.shape.kv.head_dim;
    const int element = choice.shape.kv.head_dim / 2;
    for (int row = 0; row < world.rows; ++row) {
      for (int head = 0; head < choice.shape.num_heads; ++head) {
        const float x =
            got[row * width + head * choice.shape.kv.head_dim + element];
        ASSERT_EQ(std::isnan(x), row > 0) << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CudaAttentionTest,
    testing::Values(KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
                    KvFormat::kInt8, KvFormat::kInt4),
    [](const auto& info) { return std::string(KvFormatName(info.param)); });

// The positions that are kept are exactly the expected ones, with scores that
// are equal, infinite, no numbers, or zeros of both signs.
TEST(CudaSparseAttentionTest, KeepsTheFirstOfTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937 random(3);
  for (int test = 0; test < 60; ++test) {
    const int n = 1 + random() % (test % 3 == 0 ? 2000 : 300);
    Choice choice;
    choice.shape.kv = {1, 1, 8, KvFormat::kFloat32};
    choice.shape.num_heads = 1;
    choice.sequences = {{n - 1, 1}};
    const AttentionWorld world(choice);
    std::vector<float> scores(n);
    const int kinds = test % 2 == 0 ? 5 : 1000000;
    for (float& s : scores) {
      s = (static_cast<int>(random() % kinds) - kinds / 2) * 0.25f;
      if (test % 5 == 1 && random() % 20 == 0) s = -0.0f;
      if (test % 5 == 2 && random() % 20 == 0) s = -kInfinity;
      if (test % 5 == 3 && random() % 100 == 0) s = std::nanf("");
      if (test % 5 == 4 && random() % 100 == 0) s = kInfinity;
    }
    const float sparsity = 0.001f + test / 61.0f;
    const int count = SparseCount(sparsity, n);
    std::vector<int> want(n);
    std::iota(want.begin(), want.end(), 0);
    const auto size = [&](int i) {
      return std::isnan(scores[i]) ? kInfinity : scores[i];
    };
    std::stable_sort(want.begin(), want.end(),
                     [&](int a, int b) { return size(a) > size(b); });
    want.resize(count);
    std::sort(want.begin(), want.end());

    const DeviceArray<float> device_scores(scores);
    const DeviceArray<int32_t> kept(static_cast<size_t>(n));
    const DeviceArray<std::byte> out(8 * sizeof(float));
    const DeviceArray<std::byte> memory(world.memory);
    const DeviceArray<int32_t> pages(world.pages);
    const DeviceArray<AttentionSegment> segments(
        std::vector<AttentionSegment>{world.host_segments[0]});
    DecodeArgs args;
    args.common.block = MakeKvBlock(choice.shape.kv);
    args.common.kv = memory.data();
    args.common.segments = segments.data();
    args.common.pages = pages.data();
    args.common.out = out.data();
    args.common.num_heads = args.common.group = 1;
    args.scores = device_scores.data();
    args.score_stride = n;
    ASSERT_TRUE(Launch(AttendKept(KvFormat::kFloat32), dim3(1, 1),
                       dim3(kKeptThreads), KeptSharedBytes(8), nullptr,
                       KeptArgs{args, sparsity, kept.data()})
                    .ok());
    auto got = kept.Read();
    got.resize(count);
    ASSERT_EQ(got, want) << "of " << n;
  }
}

class CudaAttentionPlanTest : public testing::Test {
 protected:
  CudaAttentionPlanTest() {
    shape_.kv = {1, 8, 128, KvFormat::kBFloat16};
    shape_.num_heads = 32;
    shape_.dtype = DType::kBFloat16;
  }
  AttentionShape shape_;
};

TEST_F(CudaAttentionPlanTest, SplitsWhereThereIsLittleElseToDo) {
  const auto few = PlanDecode(shape_, kH100, 1, 4096);
  ASSERT_TRUE(few.ok());
  EXPECT_GT(few->splits, 8);
  // A split keeps all warps busy.
  EXPECT_GE(few->pages_per_split, few->warps);
  EXPECT_GE(few->splits * few->pages_per_split * kPageTokens, 4096 + 31);
  EXPECT_EQ(few->workspace_bytes, size_t{4} * 32 * few->splits * 130);
  // There are only as many splits as work space allows: few, or none.
  const auto fewer =
      PlanDecode(shape_, kH100, 1, 4096, size_t{4} * 32 * 130 * 5 + 1);
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(fewer->splits, 5);
  EXPECT_EQ(fewer->workspace_bytes, size_t{4} * 32 * 5 * 130);
  EXPECT_GE(fewer->splits * fewer->pages_per_split * kPageTokens, 4096 + 31);
  const auto whole = PlanDecode(shape_, kH100, 1, 4096, 0);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->splits, 1);
  EXPECT_EQ(whole->workspace_bytes, 0u);
  EXPECT_GE(whole->pages_per_split * kPageTokens, 4096 + 31);
  const auto many = PlanDecode(shape_, kH100, 256, 1000);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->splits, 1);
  EXPECT_EQ(many->workspace_bytes, 0u);
  const auto none = PlanDecode(shape_, kH100, 0, 1000);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(LaunchDecode(shape_, kH100, *none, {}, nullptr, nullptr).ok());
}

// Every format and head size has a block that fits, on the least device.
TEST_F(CudaAttentionPlanTest, FitsEverywhere) {
  for (const AttentionDevice& device : {kT4, kA100, kH100}) {
    for (const KvFormat format :
         {KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16,
          KvFormat::kInt8, KvFormat::kInt4}) {
      for (int head_dim = 1; head_dim <= kMaxHeadDim; ++head_dim) {
        shape_.kv.format = format;
        shape_.kv.head_dim = head_dim;
        const auto decode = PlanDecode(shape_, device, 4, 100);
        ASSERT_TRUE(decode.ok()) << decode.status();
        const auto sparse = PlanSparse(shape_, device, 4, 100, 0.5f, 1 << 20);
        ASSERT_TRUE(sparse.ok()) << sparse.status();
        const auto prefill = PlanPrefill(shape_, device);
        ASSERT_TRUE(prefill.ok()) << prefill.status();
        for (const size_t bytes :
             {decode->shared_bytes, sparse->scores.shared_bytes,
              prefill->shared_bytes}) {
          ASSERT_LE(bytes, device.shared_bytes);
        }
      }
    }
  }
}

TEST_F(CudaAttentionPlanTest, TwoBlocksOfLlamaFitAProcessor) {
  for (const AttentionDevice& device : {kA100, kH100}) {
    const auto decode = PlanDecode(shape_, device, 256, 2000);
    ASSERT_TRUE(decode.ok());
    EXPECT_GE(decode->stages, 2);
    EXPECT_LE(2 * (decode->shared_bytes + 1024), device.shared_bytes + 1024);
    const auto prefill = PlanPrefill(shape_, device);
    ASSERT_TRUE(prefill.ok());
    EXPECT_EQ(prefill->tile_rows, 128);
    EXPECT_EQ(prefill->stages, 2);
    EXPECT_LE(2 * (prefill->shared_bytes + 1024), device.shared_bytes + 1024);
  }
}

TEST_F(CudaAttentionPlanTest, SaysWhatItCannotDo) {
  const auto code = [&](auto change) {
    AttentionShape shape = shape_;
    change(shape);
    EXPECT_EQ(PlanPrefill(shape, kH100).status(), shape.Validate());
    EXPECT_EQ(PlanSparse(shape, kH100, 1, 1, 0.5f, 1 << 20).status(),
              shape.Validate());
    return PlanDecode(shape, kH100, 1, 1).status().code();
  };
  using Code = absl::StatusCode;
  EXPECT_EQ(code([](auto& s) { s.num_heads = 12; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& s) { s.num_heads = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& s) { s.kv.num_kv_heads = 0; }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& s) { s.kv.head_dim = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& s) { s.kv.page_alignment = 32; }),
            Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& s) { s.kv.head_dim = 264; }), Code::kUnimplemented);
  EXPECT_EQ(code([](auto& s) { s.num_heads = 65536; }), Code::kUnimplemented);

  EXPECT_EQ(PlanDecode(shape_, kH100, -1, 1).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(PlanDecode(shape_, kH100, 1, 0).status().code(),
            Code::kInvalidArgument);
  for (const float sparsity : {0.0f, 1.0f, -1.0f, std::nanf("")}) {
    EXPECT_EQ(
        PlanSparse(shape_, kH100, 1, 1, sparsity, 1 << 20).status().code(),
        Code::kInvalidArgument);
  }
  const auto sparse = PlanSparse(shape_, kH100, 1, 1000, 0.5f, 8 * 32000 - 1);
  EXPECT_EQ(sparse.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(sparse.status().message()), HasSubstr("256000"));

  const AttentionDevice old{20, 70, 96 << 10};
  EXPECT_EQ(PlanDecode(shape_, old, 1, 1).status().code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(PlanPrefill(shape_, old).status().code(),
            Code::kFailedPrecondition);
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16}) {
    shape_.kv.format = format;
    const AttentionDevice small{20, 80, 4 << 10};
    EXPECT_EQ(PlanDecode(shape_, small, 1, 1).status().code(),
              Code::kUnimplemented);
    EXPECT_EQ(PlanPrefill(shape_, small).status().code(), Code::kUnimplemented);
  }
}

TEST_F(CudaAttentionPlanTest, LaunchesRefuseWhatIsMissing) {
  alignas(8) float x[2] = {};
  AttentionSegment segment;
  int32_t page = 0;
  alignas(16) std::byte room[32];
  const AttentionData good{x, 2, x, room, &segment, &page, 0};
  const auto decode = PlanDecode(shape_, kH100, 1, 4096);
  const auto sparse = PlanSparse(shape_, kH100, 1, 4096, 0.5f, 1 << 30);
  const auto prefill = PlanPrefill(shape_, kH100);
  ASSERT_TRUE(decode.ok() && sparse.ok() && prefill.ok());
  const auto expect_refused = [&](const AttentionData& data) {
    for (const absl::Status& status :
         {LaunchDecode(shape_, kH100, *decode, data, room, nullptr),
          LaunchSparse(shape_, kH100, *sparse, data, room, nullptr),
          LaunchPrefill(shape_, kH100, *prefill, data, 1, &page, 1, nullptr)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    }
  };
  for (int i = 0; i < 9; ++i) {
    AttentionData data = good;
    if (i == 0) data.q = nullptr;
    if (i == 1) data.out = nullptr;
    if (i == 2) data.segments = nullptr;
    if (i == 3) data.pages = nullptr;
    if (i == 4) data.window = -1;
    if (i == 5) data.q = x + 1;
    if (i == 6) data.q_stride = 1;
    if (i == 7) data.out = x + 1;
    if (i == 8) data.kv = nullptr;
    expect_refused(data);
  }
  for (void* workspace :
       {static_cast<void*>(nullptr), static_cast<void*>(room + 4)}) {
    EXPECT_EQ(
        LaunchDecode(shape_, kH100, *decode, good, workspace, nullptr).code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        LaunchSparse(shape_, kH100, *sparse, good, workspace, nullptr).code(),
        absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(LaunchPrefill(shape_, kH100, *prefill, good, 1, nullptr, 1, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      LaunchPrefill(shape_, kH100, *prefill, {}, 0, nullptr, 0, nullptr).ok());
  // The device's own refusals come back, too.
  DecodePlan huge = *decode;
  huge.shared_bytes = 1 << 20;
  EXPECT_EQ(
      LaunchDecode(shape_, DeviceFor(3), huge, good, room, nullptr).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaAttentionPlanTest, KnowsTheDevice) {
  const auto device = CurrentAttentionDevice();
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_GT(device->processors, 0);
  EXPECT_GE(device->capability, 75);
  EXPECT_GE(device->shared_bytes, size_t{48} << 10);
}

TEST(AttentionBatchTest, PutsKindsApart) {
  const std::vector<int32_t> pages = {7, 3, 9, 1};
  alignas(16) std::byte kv[64];
  const std::vector<SegmentView> views = {{0, 40, 1, pages, kv + 32},
                                          {1, 0, 33, pages, kv + 16},
                                          {34, 99, 1, pages, kv + 16},
                                          {35, 31, 5, pages, kv + 48}};
  const BatchView view{.rows = 40, .segments = views};
  AttentionInputs batch;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(FillAttentionInputs(view, 0, 4, 4, 0, 32, &batch).ok());
    ASSERT_EQ(batch.segments.size(), 4u);
    EXPECT_EQ(batch.pages,
              std::vector<int32_t>({7, 3, 7, 3, 7, 3, 9, 1, 7, 3}));
    EXPECT_EQ(batch.segments[3].first_page, 8);
    EXPECT_EQ(batch.kv, kv + 16);
    EXPECT_EQ(batch.segments[0].kv_offset, 16);
    EXPECT_EQ(batch.segments[3].kv_offset, 32);
    ASSERT_EQ(batch.decode.size(), 2u);
    EXPECT_EQ(batch.decode[1].row, 34);
    EXPECT_EQ(batch.decode[1].first_page, 4);
    EXPECT_EQ(batch.max_context, 100);
    ASSERT_EQ(batch.prefill.size(), 2u);
    EXPECT_EQ(batch.prefill[1].start, 31);
    EXPECT_EQ(batch.tile_begin, std::vector<int32_t>({0, 5, 6}));
  }
  ASSERT_TRUE(FillAttentionInputs(view, 2, 1, 4, 50, 32, &batch).ok());
  EXPECT_EQ(batch.max_context, 50);
  EXPECT_EQ(batch.tile_begin, std::vector<int32_t>({0}));
}

TEST(AttentionBatchTest, RefusesWhatKernelsCannotRead) {
  const std::vector<int32_t> pages = {0, 1};
  alignas(16) std::byte kv[32];
  const auto fill = [&](SegmentView view) {
    AttentionInputs batch;
    const std::vector<SegmentView> views = {view};
    return FillAttentionInputs({.rows = 1, .segments = views}, 0, 1, 1, 0, 32,
                               &batch)
        .code();
  };
  EXPECT_EQ(fill({0, 63, 1, pages, kv}), absl::StatusCode::kOk);
  for (const SegmentView& view :
       std::vector<SegmentView>{{0, 64, 1, pages, kv},
                                {0, 0, 65, pages, kv},
                                {0, -1, 1, pages, kv},
                                {0, 0, 0, pages, kv},
                                {0, 0, 1, pages, nullptr},
                                {0, 0, 1, pages, kv + 8}}) {
    EXPECT_EQ(fill(view), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
