#include "worker/link/frame.h"

#include <grpcpp/support/slice.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "proto/wire_limits.h"
#include "runtime/quant/convert_floats.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr FrameLimits kLimits = {
    .max_rows = 64, .cols = 8, .max_micro_batches = 4};

std::shared_ptr<StepPlan> Plan(std::vector<int> tokens_of_batches) {
  auto plan = std::make_shared<StepPlan>();
  plan->epoch = PlanEpoch(7);
  plan->block = BlockId(2);
  plan->step = 41;
  plan->release = {SequenceId(5)};
  for (int tokens : tokens_of_batches) {
    MicroBatch batch;
    if (tokens > 0) {
      batch.segments.push_back({SequenceId(9), 3, tokens, true});
      batch.tokens.assign(tokens, 17);
    }
    plan->micro_batches.push_back(batch);
  }
  return plan;
}

ActivationFrame Frame(int micro_batch, int rows, std::vector<int> batches) {
  ActivationFrame frame;
  frame.epoch = PlanEpoch(7);
  frame.block = BlockId(2);
  frame.step = 41;
  frame.micro_batch = micro_batch;
  if (micro_batch == 0) frame.plan = Plan(std::move(batches));
  ActivationPool pool;
  frame.hidden = pool.Acquire(rows, kLimits.cols);
  for (int64_t i = 0; i < rows * kLimits.cols; ++i) {
    frame.hidden->data()[i] = 0.5f * static_cast<float>(i) - 3;
  }
  return frame;
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()),
                     slice.size());
}

// Makes a buffer of slices of `part` bytes.
grpc::ByteBuffer Slices(const std::string& text, size_t part) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < text.size(); i += part) {
    slices.emplace_back(text.substr(i, part));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<ActivationFrame> Decode(const std::string& text,
                                       size_t part = 1 << 20) {
  ActivationPool pool;
  return DecodeFrame(Slices(text, part), kLimits, &pool);
}

// A well-formed message to be spoilt by tests.
v1::Frame Proto(int rows = 3) {
  v1::Frame frame;
  EXPECT_TRUE(
      frame.ParseFromString(Flatten(*EncodeFrame(Frame(0, rows, {rows, 1})))));
  return frame;
}

absl::StatusOr<ActivationFrame> Decode(const v1::Frame& frame) {
  return Decode(frame.SerializeAsString());
}

TEST(FrameTest, IsAProtobufMessage) {
  const ActivationFrame frame = Frame(0, 3, {3, 1});
  const auto bytes = EncodeFrame(frame);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  v1::Frame proto;
  ASSERT_TRUE(proto.ParseFromString(Flatten(*bytes)));
  EXPECT_EQ(proto.epoch(), 7);
  EXPECT_EQ(proto.block(), 2);
  EXPECT_EQ(proto.step(), 41);
  EXPECT_EQ(proto.rows(), 3);
  EXPECT_EQ(proto.cols(), 8);
  EXPECT_EQ(proto.plan().micro_batches_size(), 2);
  ASSERT_EQ(proto.activations().size(), frame.hidden->bytes());
  EXPECT_EQ(std::memcmp(proto.activations().data(), frame.hidden->data(),
                        frame.hidden->bytes()),
            0);
  // A frame written by another implementation is read.
  const auto back = Decode(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->plan->release, frame.plan->release);
}

TEST(FrameTest, SendsThePayloadWithoutCopying) {
  const ActivationFrame frame = Frame(1, 5, {});
  const auto bytes = EncodeFrame(frame);
  ASSERT_TRUE(bytes.ok());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes->Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(static_cast<const void*>(slices[1].begin()),
            static_cast<const void*>(frame.hidden->data()));
}

TEST(FrameTest, KeepsTheBufferUntilItIsSent) {
  ActivationFrame frame = Frame(1, 5, {});
  const std::weak_ptr<ActivationBuffer> hidden = frame.hidden;
  {
    const auto bytes = EncodeFrame(frame);
    frame.hidden.reset();
    EXPECT_FALSE(hidden.expired());
  }
  EXPECT_TRUE(hidden.expired());
}

TEST(FrameTest, RoundTripsHoweverItIsSliced) {
  const ActivationFrame frame = Frame(0, 4, {4, 2});
  const std::string text = Flatten(*EncodeFrame(frame));
  for (size_t part = 1; part <= text.size(); ++part) {
    const auto back = Decode(text, part);
    ASSERT_TRUE(back.ok()) << back.status() << " in slices of " << part;
    EXPECT_EQ(back->epoch, frame.epoch);
    EXPECT_EQ(back->block, frame.block);
    EXPECT_EQ(back->step, frame.step);
    ASSERT_NE(back->plan, nullptr);
    EXPECT_EQ(back->plan->micro_batches[0].tokens,
              frame.plan->micro_batches[0].tokens);
    ASSERT_EQ(back->hidden->rows(), 4);
    ASSERT_EQ(back->hidden->cols(), 8);
    EXPECT_EQ(std::memcmp(back->hidden->data(), frame.hidden->data(),
                          frame.hidden->bytes()),
              0);
  }
}

TEST(FrameTest, LaterMicroBatchesTravelWithoutThePlan) {
  const auto back = Decode(Flatten(*EncodeFrame(Frame(3, 2, {}))));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->micro_batch, 3);
  EXPECT_EQ(back->plan, nullptr);
  EXPECT_EQ(back->hidden->rows(), 2);
}

TEST(FrameTest, MicroBatchWithoutRows) {
  const auto back = Decode(Flatten(*EncodeFrame(Frame(0, 0, {0, 1}))));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_NE(back->hidden, nullptr);
  EXPECT_EQ(back->hidden->rows(), 0);
  EXPECT_EQ(back->hidden->cols(), 8);
  // Protobuf leaves empty fields out.
  EXPECT_TRUE(Decode(Proto(0)).ok());
}

TEST(FrameTest, PlanWithoutMicroBatchesTravelsAlone) {
  ActivationFrame frame = Frame(0, 0, {});
  frame.hidden = nullptr;
  const auto back = Decode(Flatten(*EncodeFrame(frame)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->hidden, nullptr);
  EXPECT_EQ(back->plan->release, frame.plan->release);
}

TEST(FrameTest, SkipsUnknownFields) {
  std::string text("\x58\x05", 2);                 // field 11, varint
  text += std::string("\x62\x02hi", 4);            // field 12, bytes
  text += std::string("\x6d\x01\x02\x03\x04", 5);  // field 13, fixed32
  text += std::string("\x71\x01\x02\x03\x04\x05\x06\x07\x08", 9);  // 14
  text += Flatten(*EncodeFrame(Frame(0, 3, {3})));
  EXPECT_TRUE(Decode(text).ok());
}

void ExpectRefused(const absl::StatusOr<ActivationFrame>& frame,
                   const std::string& why) {
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr(why));
}

TEST(FrameTest, RefusesSizesThatDoNotFitBeforeAllocating) {
  v1::Frame frame = Proto();
  frame.set_rows(65);
  ExpectRefused(Decode(frame), "65 rows, the policy allows 64");
  frame.set_rows(4'000'000'000u);
  ExpectRefused(Decode(frame), "4000000000 rows");
  frame = Proto();
  frame.set_cols(9);
  ExpectRefused(Decode(frame), "hidden size 9, the model's is 8");
  frame = Proto();
  frame.set_rows(4);
  ExpectRefused(Decode(frame), "activations of 96 bytes for 4 rows");
  frame = Proto();
  frame.mutable_activations()->push_back('x');
  ExpectRefused(Decode(frame), "activations of 97 bytes");
}

TEST(FrameTest, RefusesALengthThatIsNotThere) {
  const std::string text = Flatten(*EncodeFrame(Frame(1, 2, {})));
  // The payload is 64 bytes, so its length is the byte before.
  std::string longer = text;
  longer[text.size() - 65] = 0x7f;
  ExpectRefused(Decode(longer), "activations of 127 bytes, but 64 bytes");
  std::string huge = text.substr(0, text.size() - 65) +
                     std::string("\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 9);
  ExpectRefused(Decode(huge), "bytes follow");
  // A plan that claims four gigabytes.
  ExpectRefused(Decode(std::string("\x2a\xff\xff\xff\xff\x0f", 6)),
                "plan is malformed");
}

TEST(FrameTest, RefusesPlansThatDoNotFit) {
  v1::Frame frame = Proto();
  frame.clear_plan();
  ExpectRefused(Decode(frame), "the plan rides on micro-batch 0");
  frame = Proto();
  frame.set_micro_batch(1);
  ExpectRefused(Decode(frame), "the plan rides on micro-batch 0");
  frame = Proto();
  frame.mutable_plan()->set_step(40);
  ExpectRefused(Decode(frame), "another epoch, block or step");
  frame = Proto();
  for (int i = 0; i < 3; ++i) frame.mutable_plan()->add_micro_batches();
  ExpectRefused(Decode(frame), "5 micro-batches, the policy allows 4");
  frame = Proto();
  frame.mutable_plan()->clear_micro_batches();
  ExpectRefused(Decode(frame), "plan without micro-batches");
  frame = Proto();
  frame.mutable_plan()->mutable_micro_batches(0)->add_tokens(1);
  ExpectRefused(Decode(frame), "tokens");
}

TEST(FrameTest, RefusesNegativeAndOversizedNumbers) {
  v1::Frame frame = Proto();
  frame.set_epoch(-1);
  ExpectRefused(Decode(frame), "negative");
  frame = Proto();
  frame.set_block(-1);
  ExpectRefused(Decode(frame), "negative");
  frame = Proto();
  frame.clear_plan();
  frame.set_micro_batch(4);
  ExpectRefused(Decode(frame), "micro_batch 4, the policy allows 4");
  frame.set_micro_batch(-1);
  ExpectRefused(Decode(frame), "negative");
}

TEST(FrameTest, RefusesWrongWireTypesAndTruncation) {
  ExpectRefused(Decode(std::string("\x0d\x01\x02\x03\x04", 5)), "no varint");
  ExpectRefused(Decode(std::string("\x00", 1)), "bad tag");
  ExpectRefused(Decode(std::string("\x5b", 1)), "wire type 3");
  ExpectRefused(
      Decode(std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11)),
      "no varint");
  ExpectRefused(Decode(std::string()), "");
  ActivationPool pool;
  ExpectRefused(DecodeFrame(grpc::ByteBuffer(), kLimits, &pool), "unreadable");
  const std::string text = Flatten(*EncodeFrame(Frame(0, 3, {3, 1})));
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_FALSE(Decode(text.substr(0, n)).ok()) << n;
  }
}

// Any bytes give a result; with sanitizers this test finds overruns. Every
// frame that is accepted fits the limits.
TEST(FrameTest, SurvivesRandomBytes) {
  std::mt19937 random(20240607);
  const std::vector<std::string> seeds = {
      Flatten(*EncodeFrame(Frame(0, 3, {3, 1}))),
      Flatten(*EncodeFrame(Frame(2, 1, {}))),
      Flatten(*EncodeFrame(Frame(0, 0, {0})))};
  for (int round = 0; round < 20000; ++round) {
    std::string text = seeds[random() % seeds.size()];
    for (int flips = 1 + random() % 4; flips > 0; --flips) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 3);
          break;
        case 2:
          text.insert(at, 1 + random() % 3, static_cast<char>(random()));
          break;
        default:
          text.resize(at + 1);
      }
      if (text.empty()) text = "\xff";
    }
    const auto frame = Decode(text, 1 + random() % 16);
    if (!frame.ok()) {
      EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    } else if (frame->hidden != nullptr) {
      EXPECT_LE(frame->hidden->rows(), kLimits.max_rows);
      EXPECT_EQ(frame->hidden->cols(), kLimits.cols);
    }
  }
}

TEST(FrameTest, RefusesToEncodeMoreThanAFrameMayHold) {
  ActivationFrame frame = Frame(1, 1, {});
  // The activations are never touched, so they are never in memory.
  constexpr int64_t kCols = 256;
  constexpr int64_t kMax = kMaxActivationBytes / (kCols * sizeof(float));
  frame.hidden->Resize(kMax, kCols);
  EXPECT_TRUE(EncodeFrame(frame).ok());
  frame.hidden->Resize(kMax + 1, kCols);
  const auto bytes = EncodeFrame(frame);
  ASSERT_FALSE(bytes.ok());
  EXPECT_THAT(bytes.status().ToString(), HasSubstr("max_step_tokens"));
}

// Activations that are halved are those rounded to bfloat16, wherever a slice
// or a part of the conversion ends.
TEST(FrameTest, HalvesActivationsAsBf16) {
  constexpr FrameLimits kNarrow = {.max_rows = 64,
                                   .cols = 93,
                                   .max_micro_batches = 4,
                                   .dtype = DType::kBFloat16};
  for (const int64_t rows : {0, 1, 11, 33}) {
    ActivationFrame frame = Frame(1, 1, {});
    frame.hidden->Resize(rows, 93);
    std::vector<float> expected;
    for (int64_t i = 0; i < rows * 93; ++i) {
      const float value = std::sin(static_cast<float>(i)) * 1e3f;
      frame.hidden->data()[i] = value;
      uint16_t narrow = 0;
      FloatToBf16(&value, 1, &narrow);
      expected.push_back(std::bit_cast<float>(uint32_t{narrow} << 16));
    }
    const std::string text = Flatten(*EncodeFrame(frame, DType::kBFloat16));
    EXPECT_LE(text.size(), static_cast<size_t>(rows) * 93 * 2 + 40);
    for (const size_t part :
         {size_t{1}, size_t{7}, size_t{1000}, text.size()}) {
      ActivationPool pool;
      const auto back = DecodeFrame(Slices(text, part), kNarrow, &pool);
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_EQ(back->hidden->rows(), rows);
      EXPECT_EQ(std::memcmp(back->hidden->data(), expected.data(),
                            expected.size() * sizeof(float)),
                0);
    }
    if (rows == 0) continue;
    // The other end expects another format.
    FrameLimits wide = kNarrow;
    wide.dtype = DType::kFloat32;
    ActivationPool pool;
    const auto refused = DecodeFrame(Slices(text, text.size()), wide, &pool);
    EXPECT_THAT(refused.status().ToString(), HasSubstr("numbers of 4 bytes"));
  }
}

constexpr FrameLimits kDetached = {
    .max_rows = 64, .cols = 8, .max_micro_batches = 4, .detached = true};

TEST(DetachedFrameTest, AnnouncesItsPayload) {
  const auto bytes = EncodeFrame(Frame(1, 5, {}), DType::kFloat32,
                                 /*detached=*/true);
  ASSERT_TRUE(bytes.ok());
  v1::Frame proto;
  ASSERT_TRUE(proto.ParseFromString(Flatten(*bytes)));
  EXPECT_EQ(proto.rows(), 5u);
  EXPECT_EQ(proto.detached_bytes(), 5u * 8 * sizeof(float));
  EXPECT_TRUE(proto.activations().empty());
  ActivationPool pool;
  const auto frame = DecodeFrame(*bytes, kDetached, &pool);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->micro_batch, 1);
  ASSERT_NE(frame->hidden, nullptr);
  EXPECT_EQ(frame->hidden->rows(), 5);
  EXPECT_EQ(frame->hidden->cols(), 8);
}

TEST(DetachedFrameTest, IsRefusedWhereItIsNotExpected) {
  ActivationPool pool;
  const auto refused = [&](v1::Frame proto, const FrameLimits& limits,
                           const std::string& why) {
    const grpc::Slice slice(proto.SerializeAsString());
    const auto frame = DecodeFrame(grpc::ByteBuffer(&slice, 1), limits, &pool);
    EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(frame.status().ToString(), HasSubstr(why));
  };
  v1::Frame here;
  here.set_epoch(7);
  here.set_micro_batch(1);
  here.set_rows(2);
  here.set_cols(8);
  v1::Frame detached = here;
  here.set_activations(std::string(64, 'x'));
  refused(here, kDetached, "detached activations of 0 bytes for 2 rows");
  detached.set_detached_bytes(64);
  refused(detached, kLimits, "activations of 0 bytes for 2 rows");
  // The frame has both kinds of activations at once.
  here.set_detached_bytes(64);
  refused(here, kDetached, "activations on a stream of detached ones");
  refused(here, kLimits, "detached activations on a stream with its own");
  detached.set_detached_bytes(60);
  refused(detached, kDetached, "detached activations of 60 bytes for 2 rows");
  detached.set_detached_bytes(uint64_t{1} << 60);
  detached.set_rows(4'000'000'000u);
  refused(detached, kDetached, "4000000000 rows");
}

}  // namespace
}  // namespace sluice
