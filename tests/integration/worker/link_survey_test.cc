#include "worker/probe/link_survey.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/host/host_port.h"
#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/worker/link_testing.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_protocol.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/tcp_links.h"
#include "worker/probe/worker_profile.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr double kShort = 0.005;

// A worker's receiving end.
struct Receiver {
  Receiver() : service(LinkService::Create(&sink, {.tcp = &tcp}, &bytes)) {
    auto started =
        LinkServer::Start("127.0.0.1", 0, service->service(), nullptr, &tcp);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    address = JoinHostPort("127.0.0.1", server->port());
  }
  ~Receiver() {
    server->Shutdown();
    tcp.Stop();
  }

  class Bytes : public Counter {
   public:
    void Add(double amount) override { got = true; }
    std::atomic<bool> got{false};
  };
  TestSink sink;
  TcpLinks tcp;
  Bytes bytes;
  std::unique_ptr<LinkService> service;
  std::unique_ptr<LinkServer> server;
  std::string address;
};

// Takes a survey's results, on another thread.
class Results {
 public:
  LinkSurvey::Done Done() {
    return [this](std::vector<LinkSurvey::Measured> measured) {
      MutexLock lock(&mu_);
      got_ = std::move(measured);
      done_ = true;
      changed_.NotifyAll();
    };
  }
  std::vector<LinkSurvey::Measured> Await() {
    MutexLock lock(&mu_);
    while (!done_) {
      if (!changed_.WaitFor(&mu_, absl::Seconds(60))) {
        ADD_FAILURE() << "no results";
        return {};
      }
    }
    return got_;
  }
  bool done() {
    MutexLock lock(&mu_);
    return done_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool done_ = false;
  std::vector<LinkSurvey::Measured> got_;
};

TEST(LinkSurveyTest, MeasuresOneAfterTheOther) {
  Receiver a, b;
  GrpcLinkFactory links({.channels = TcpChannels()});
  Results results;
  LinkSurvey survey(&links, kShort);
  survey.Start({{"a", a.address},
                {"gone", "127.0.0.1:1"},
                {"b", b.address, /*tcp=*/true}},
               results.Done());
  const auto measured = results.Await();
  ASSERT_EQ(measured.size(), 3u);
  for (const int i : {0, 2}) {
    ASSERT_TRUE(measured[i].link.ok()) << measured[i].link.status();
    EXPECT_EQ(measured[i].link->peer, measured[i].peer);
    EXPECT_GT(measured[i].link->bytes_per_second, 0);
    EXPECT_GT(measured[i].link->latency_seconds, 0);
  }
  EXPECT_EQ(measured[0].peer, "a");
  EXPECT_EQ(measured[1].peer, "gone");
  EXPECT_EQ(measured[1].link.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(measured[1].link.status().message()),
              HasSubstr("127.0.0.1:1"));
  // The probe's frames are no stage's activations.
  EXPECT_EQ(a.sink.count(), 0u);
  EXPECT_FALSE(a.sink.broken());
  EXPECT_FALSE(a.bytes.got);
  EXPECT_EQ(b.sink.count(), 0u);
  EXPECT_FALSE(b.sink.broken());
  EXPECT_FALSE(b.bytes.got);
}

// A stage's link and a survey's probes work beside each other.
TEST(LinkSurveyTest, StagesGoOnBeside) {
  Receiver receiver;
  constexpr PlanEpoch kEpoch(5);
  receiver.service->Accept(
      kEpoch,
      {.max_rows = 8, .cols = 16, .max_micro_batches = 2, .credits = 2});
  GrpcLinkFactory links({.channels = TcpChannels()});
  auto stage = links.Connect(receiver.address, kEpoch, {});
  ASSERT_TRUE(stage.ok()) << stage.status();
  Results first, second;
  LinkSurvey one(&links, kShort), other(&links, kShort);
  one.Start({{"r", receiver.address}}, first.Done());
  other.Start({{"r", receiver.address}}, second.Done());
  ActivationPool pool;
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE((*stage)->Send(TestFrame(pool, kEpoch, step, 2, 16)).ok());
    TestSink::Got got = receiver.sink.Take();
    EXPECT_EQ(got.frame.step, step);
    got.on_consumed();
  }
  EXPECT_TRUE(first.Await()[0].link.ok());
  EXPECT_TRUE(second.Await()[0].link.ok());
}

TEST(LinkSurveyTest, AProbeKeepsToItsLimits) {
  Receiver receiver;
  GrpcLinkFactory links({.channels = TcpChannels()});
  ActivationPool pool;
  const auto send = [&](int64_t rows, int64_t cols) {
    auto sender = links.Connect(receiver.address, kProbeEpoch, {});
    EXPECT_TRUE(sender.ok()) << sender.status();
    absl::Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) {
      ActivationFrame frame;
      frame.epoch = kProbeEpoch;
      frame.micro_batch = 1;
      frame.hidden = pool.Acquire(rows, cols);
      std::fill_n(frame.hidden->data(), rows * cols, 0.0f);
      status = (*sender)->Send(std::move(frame));
    }
    return status;
  };
  EXPECT_TRUE(send(kProbeRows, kProbeCols).ok());
  EXPECT_FALSE(send(kProbeRows + 1, kProbeCols).ok());
  EXPECT_FALSE(send(1, kProbeCols + 1).ok());
  // The number of probes at a time is limited.
  std::vector<std::unique_ptr<LinkSender>> senders;
  absl::Status status;
  while (senders.size() < 100) {
    auto sender = links.Connect(receiver.address, kProbeEpoch, {});
    status = sender.status();
    if (!status.ok()) break;
    senders.push_back(*std::move(sender));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_LE(senders.size(), 16u);
}

// A peer that takes frames and never acknowledges them.
class StoppedLink : public LinkFactory, public LinkSender {
 public:
  absl::StatusOr<std::unique_ptr<LinkSender>> Connect(
      const std::string&, PlanEpoch, const LinkOptions&) override {
    class Forward : public LinkSender {
     public:
      explicit Forward(StoppedLink* to) : to_(to) {}
      absl::Status Send(ActivationFrame frame) override {
        return to_->Send(std::move(frame));
      }
      void Close() override { to_->Close(); }
      uint64_t bytes_sent() const override { return 0; }
      bool blocked() const override { return true; }

     private:
      StoppedLink* const to_;
    };
    return std::make_unique<Forward>(this);
  }
  absl::Status Send(ActivationFrame) override {
    MutexLock lock(&mu_);
    sending_ = true;
    changed_.NotifyAll();
    while (!closed_) changed_.Wait(&mu_);
    return absl::UnavailableError("closed");
  }
  void Close() override {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.NotifyAll();
  }
  uint64_t bytes_sent() const override { return 0; }
  bool blocked() const override { return true; }
  void AwaitSending() {
    MutexLock lock(&mu_);
    while (!sending_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool sending_ = false;
  bool closed_ = false;
};

TEST(LinkSurveyTest, IsCancelledWhileAPeerHasStopped) {
  StoppedLink stopped;
  Results results, later;
  {
    LinkSurvey survey(&stopped, kShort);
    survey.Start({{"s", "somewhere"}, {"t", "elsewhere"}}, results.Done());
    stopped.AwaitSending();
    survey.Start({{"s", "somewhere"}}, later.Done());
    survey.Cancel();
  }
  EXPECT_FALSE(results.done());
  EXPECT_FALSE(later.done());
}

TEST(LinkSurveyTest, OneThatIsNotAskedHasNoThread) {
  StoppedLink stopped;
  LinkSurvey survey(&stopped, kShort);
  survey.Cancel();
}

}  // namespace
}  // namespace sluice
