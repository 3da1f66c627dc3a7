#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/nccl/nccl_testing.h"
#include "worker/link/nccl_abi.h"

// Functions of the fake for the tests' own device memory.
extern "C" {
int cuCtxSetCurrent(sluice::cuda::Context* context);
int cuMemAlloc_v2(sluice::cuda::DeviceAddress* address, size_t bytes);
int cuMemFree_v2(sluice::cuda::DeviceAddress address);
}

namespace sluice {
namespace {

using ::testing::HasSubstr;
using End = PayloadTransport::End;

constexpr size_t kMax = 200'000;

class NcclChannelTest : public ::testing::Test {
 protected:
  NcclChannelTest() : a_(FakeTransport()), b_(FakeTransport()) {}

  ~NcclChannelTest() override {
    Join();
    EXPECT_EQ(fake_gpu_counts().roots, roots_before_);
  }

  // Lets all threads end and release their payloads, which must live so long.
  void Join() {
    sender_.reset();
    receiver_.reset();
    a_.reset();
    b_.reset();
  }

  std::shared_ptr<PayloadChannel> Open(PayloadTransport& transport, End end,
                                       const std::string& id, News* broken) {
    auto channel = transport.Open(
        {.end = end,
         .id = id,
         .max_bytes = kMax,
         .on_broken = [broken](const absl::Status& s) { broken->Tell(s); }});
    EXPECT_TRUE(channel.ok()) << channel.status();
    return *std::move(channel);
  }

  void OpenBoth(bool start = true) {
    id_ = *a_->NewId();
    sender_ = Open(*a_, End::kSender, id_, &sender_broken_);
    receiver_ = Open(*b_, End::kReceiver, id_, &receiver_broken_);
    if (!start) return;
    sender_->Start();
    receiver_->Start();
  }

  void Send(std::string& bytes) {
    sender_->Push({bytes.data(), bytes.size()}, [this] { sent_.Add(); });
  }
  void Receive(std::string& bytes) {
    receiver_->Push({bytes.data(), bytes.size()}, [this] { received_.Add(); });
  }

  static std::string Text(size_t bytes, int salt) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) {
      text[i] = static_cast<char>(i * 31 + i / 251 + salt);
    }
    return text;
  }

  const FakeGpuGuard guard_;
  const long roots_before_ = fake_gpu_counts().roots;
  News sender_broken_, receiver_broken_, sent_, received_;
  std::unique_ptr<PayloadTransport> a_, b_;
  std::string id_;
  std::shared_ptr<PayloadChannel> sender_, receiver_;
};

TEST_F(NcclChannelTest, PayloadsArriveInOrderAndUnharmed) {
  OpenBoth();
  const std::vector<size_t> sizes = {1, 0, 7, kMax, 16384, 0, 0, 65537, 3};
  constexpr int kRounds = 12;
  std::vector<std::string> from, to;
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t size : sizes) {
      from.push_back(Text(size, static_cast<int>(from.size())));
      to.emplace_back(size, 'x');
    }
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < from.size(); ++i) {
    Send(from[i]);
    receiver_->Push({to[i].data(), to[i].size()},
                    [this, &order, &to, &from, i] {
                      order.push_back(i);  // on one thread
                      EXPECT_EQ(to[i], from[i]) << i;
                      received_.Add();
                    });
  }
  sent_.AwaitCount(static_cast<int>(from.size()));
  received_.AwaitCount(static_cast<int>(from.size()));
  std::vector<size_t> expected(from.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_FALSE(sender_broken_.told());
  EXPECT_FALSE(receiver_broken_.told());
}

TEST_F(NcclChannelTest, PinnedMemoryAndOtherMayMix) {
  OpenBoth();
  std::vector<std::string> from, to;
  for (int i = 0; i < 40; ++i) {
    from.push_back(Text(1000 * static_cast<size_t>(1 + i % 7), i));
    to.emplace_back(from.back().size(), 'x');
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const bool pinned = i % 3 != 0;
    if (pinned) fake_gpu_pin(to[i].data(), to[i].size());
    Send(from[i]);
    receiver_->Push({to[i].data(), to[i].size()}, [this, &to, &from, i] {
      EXPECT_EQ(to[i], from[i]) << i;
      received_.Add();
    });
  }
  received_.AwaitCount(static_cast<int>(from.size()));
  for (const std::string& text : to) fake_gpu_unpin(text.data());
}

// Neither kind of memory blocks the thread in the driver: the destructor of the
// transport, which waits for it, returns.
TEST_F(NcclChannelTest, StopInTheMiddleOfAPayload) {
  for (const bool pinned : {true, false}) {
    OpenBoth();
    fake_gpu_stall_after(50'000);
    std::string from = Text(kMax, 1), to(kMax, 'x');
    if (pinned) fake_gpu_pin(to.data(), to.size());
    Send(from);
    Receive(to);
    AwaitStalled();
    receiver_->Stop();
    receiver_.reset();
    b_.reset();
    EXPECT_EQ(received_.count(), 0);
    fake_gpu_unpin(to.data());
    sender_->Stop();
    fake_gpu_stall_after(0);
    Join();
    a_ = FakeTransport();
    b_ = FakeTransport();
  }
}

TEST_F(NcclChannelTest, PayloadsThatCameBeforeTheStartWait) {
  OpenBoth(/*start=*/false);
  std::string from = Text(1000, 1), to(1000, 'x');
  Send(from);
  Receive(to);
  receiver_->Start();
  EXPECT_EQ(received_.count(), 0);
  sender_->Start();
  received_.AwaitCount(1);
  EXPECT_EQ(to, from);
}

TEST_F(NcclChannelTest, DeviceMemoryGoesWithoutStaging) {
  OpenBoth();
  cuda::Context* const any = reinterpret_cast<cuda::Context*>(this);
  ASSERT_EQ(cuCtxSetCurrent(any), 0);
  // Larger than staging memory is.
  constexpr size_t kBytes = 3 * kMax;
  cuda::DeviceAddress here = 0, there = 0;
  ASSERT_EQ(cuMemAlloc_v2(&here, kBytes), 0);
  ASSERT_EQ(cuMemAlloc_v2(&there, kBytes), 0);
  const auto data = [](cuda::DeviceAddress a) {
    return reinterpret_cast<char*>(static_cast<uintptr_t>(a));
  };
  const std::string from = Text(kBytes, 5);
  std::memcpy(data(here), from.data(), kBytes);
  sender_->Push({data(here), kBytes, true}, [this] { sent_.Add(); });
  receiver_->Push({data(there), kBytes, true}, [this] { received_.Add(); });
  // One end may stage what the other does not.
  std::string to(kMax, 'x');
  sender_->Push({data(here), kMax, true}, [this] { sent_.Add(); });
  Receive(to);
  sent_.AwaitCount(2);
  received_.AwaitCount(2);
  EXPECT_EQ(std::memcmp(data(there), from.data(), kBytes), 0);
  EXPECT_EQ(to, from.substr(0, kMax));
  EXPECT_EQ(cuMemFree_v2(here), 0);
  EXPECT_EQ(cuMemFree_v2(there), 0);
}

TEST_F(NcclChannelTest, StopWhileTheOtherEndDoesNotCome) {
  id_ = *a_->NewId();
  sender_ = Open(*a_, End::kSender, id_, &sender_broken_);
  std::string from = Text(1000, 1);
  auto kept = std::make_shared<int>(0);
  sender_->Push({from.data(), from.size()}, [kept] { ++*kept; });
  sender_->Start();
  while (fake_gpu_counts().comms == 0) absl::SleepFor(absl::Milliseconds(1));
  sender_->Stop();
  a_.reset();  // waits for the thread
  EXPECT_EQ(*kept, 0);
  EXPECT_EQ(kept.use_count(), 1);  // dropped
  EXPECT_FALSE(sender_broken_.told());
}

TEST_F(NcclChannelTest, StopBeforeTheStart) {
  OpenBoth(/*start=*/false);
  sender_.reset();
  receiver_.reset();
  a_.reset();
  b_.reset();
  // NewId's resources stay, as with the real library: no end has joined.
  a_ = FakeTransport();
  auto joins = Open(*a_, End::kSender, id_, &sender_broken_);
  joins->Start();
  while (fake_gpu_counts().roots > roots_before_) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_F(NcclChannelTest, StopWhileAPayloadDoesNotCome) {
  OpenBoth();
  std::string from = Text(10, 1), first(10, 'x'), second(10, 'x');
  Send(from);
  Receive(first);
  received_.AwaitCount(1);
  auto kept = std::make_shared<int>(0);
  receiver_->Push({second.data(), second.size()}, [kept] { ++*kept; });
  receiver_->Stop();
  b_.reset();
  EXPECT_EQ(*kept, 0);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_FALSE(receiver_broken_.told());
  // The other end learns it from NCCL.
  EXPECT_EQ(sender_broken_.AwaitStatus().code(),
            absl::StatusCode::kUnavailable);
  Join();
}

TEST_F(NcclChannelTest, PeerThatGoesInTheMiddleOfAPayload) {
  OpenBoth();
  fake_gpu_stall_after(50'000);
  std::string from = Text(kMax, 1), to(kMax, 'x');
  Send(from);
  Receive(to);
  AwaitStalled();
  sender_->Stop();
  const absl::Status status = receiver_broken_.AwaitStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("NCCL has lost the other end"));
  EXPECT_EQ(received_.count(), 0);
  EXPECT_EQ(sent_.count(), 0);
  Join();
}

TEST_F(NcclChannelTest, ReceiverThatGoesInTheMiddleOfAPayload) {
  OpenBoth();
  fake_gpu_stall_after(50'000);
  std::string from = Text(kMax, 1), to(kMax, 'x');
  Send(from);
  Receive(to);
  AwaitStalled();
  receiver_->Stop();
  EXPECT_EQ(sender_broken_.AwaitStatus().code(),
            absl::StatusCode::kUnavailable);
  Join();
}

// Others must then notice, and Stop suffices.
TEST_F(NcclChannelTest, PeerWhoseDeathNcclDoesNotTell) {
  OpenBoth();
  std::string from = Text(10, 1), to(10, 'x'), never(10, 'x');
  Send(from);
  Receive(to);
  received_.AwaitCount(1);
  fake_gpu_mute_errors(1);
  sender_.reset();
  a_.reset();
  Receive(never);
  receiver_->Stop();
  b_.reset();
  EXPECT_FALSE(receiver_broken_.told());
  EXPECT_EQ(received_.count(), 1);
  Join();
}

TEST_F(NcclChannelTest, EndsThatDoNotAgree) {
  OpenBoth();
  std::string from = Text(1000, 1), to(999, 'x');
  Send(from);
  Receive(to);
  const absl::Status status = receiver_broken_.AwaitStatus();
  EXPECT_THAT(status.ToString(), HasSubstr("invalid argument"));
  Join();
}

TEST_F(NcclChannelTest, ConnectionThatFails) {
  fake_gpu_fail_init(2);  // ncclSystemError
  OpenBoth();
  absl::Status status = sender_broken_.AwaitStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(),
              HasSubstr("NCCL can't connect to the next stage"));
  status = receiver_broken_.AwaitStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(), HasSubstr("unhandled system error"));
  // This uses up the id, which was not joined.
  fake_gpu_fail_init(0);
  auto joins = Open(*a_, End::kSender, id_, &sender_broken_);
  joins->Start();
  while (fake_gpu_counts().roots > roots_before_) {
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_F(NcclChannelTest, PeerThatDiesWhileConnecting) {
  id_ = *a_->NewId();
  {
    auto gone = Open(*a_, End::kSender, id_, &sender_broken_);
    gone->Start();
    while (fake_gpu_counts().roots > roots_before_) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  a_.reset();  // and its listener with it
  receiver_ = Open(*b_, End::kReceiver, id_, &receiver_broken_);
  receiver_->Start();
  EXPECT_FALSE(receiver_broken_.AwaitStatus().ok());
}

TEST_F(NcclChannelTest, TooLargeAPayload) {
  OpenBoth();
  std::string from = Text(kMax + 1, 1);
  Send(from);
  EXPECT_THAT(sender_broken_.AwaitStatus().ToString(),
              HasSubstr("the channel was made for 200000"));
  Join();
}

TEST_F(NcclChannelTest, PayloadsAfterTheEndAreDropped) {
  OpenBoth();
  std::string from = Text(10, 1), to(10, 'x');
  Send(from);
  Receive(to);
  sent_.AwaitCount(1);
  sender_->Stop();
  auto kept = std::make_shared<int>(0);
  sender_->Push({from.data(), from.size()}, [kept] { ++*kept; });
  EXPECT_EQ(kept.use_count(), 1);
}

TEST_F(NcclChannelTest, IdsThatAreNone) {
  for (const std::string id : {"", "short"}) {
    EXPECT_EQ(a_->Open({.end = End::kSender, .id = id}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  sender_ = Open(*a_, End::kSender, std::string(128, 'z'), &sender_broken_);
  sender_->Start();
  EXPECT_EQ(sender_broken_.AwaitStatus().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(NcclChannelTest, ManyOneAfterTheOther) {
  const long before = fake_gpu_counts().comms_made;
  std::string from = Text(100, 1);
  for (int i = 0; i < 30; ++i) {
    OpenBoth();
    std::string to(100, 'x');
    Send(from);
    Receive(to);
    received_.AwaitCount(i + 1);
    sent_.AwaitCount(i + 1);
    EXPECT_EQ(to, from);
  }
  EXPECT_EQ(fake_gpu_counts().comms_made - before, 60);
}

}  // namespace
}  // namespace sluice
