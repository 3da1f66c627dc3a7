#include "worker/link_profile.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "runtime/exec/activation_buffer.h"
#include "runtime/profile/measure.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"

namespace sluice {
namespace {

constexpr PlanEpoch kEpoch(1);
constexpr int64_t kCols = 1024;
constexpr int64_t kManyRows = 1024;  // 4 MiB
constexpr int32_t kCredits = 4;

// Counts frames; waits for them.
class CountingSink : public FrameSink {
 public:
  absl::Status OnFrame(ActivationFrame frame,
                       std::function<void()> on_consumed) override {
    frame.hidden.reset();
    on_consumed();
    MutexLock lock(&mu_);
    ++frames_;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  void OnLinkBroken(PlanEpoch epoch, const absl::Status& status) override {
    MutexLock lock(&mu_);
    broken_ = status;
    changed_.NotifyAll();
  }
  absl::Status Await(int64_t frames) {
    MutexLock lock(&mu_);
    while (frames_ < frames && broken_.ok()) changed_.Wait(&mu_);
    return broken_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t frames_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled) {
  // In this order, so that what is used ends last.
  CountingSink sink;
  const std::unique_ptr<LinkService> service =
      LinkService::Create(&sink, nullptr, nullptr);
  service->Accept(kEpoch, {.max_rows = kManyRows,
                           .cols = kCols,
                           .max_micro_batches = 2,
                           .credits = kCredits});
  SLUICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LinkServer> server,
      LinkServer::Start("127.0.0.1", 0, service->service()));
  GrpcLinkFactory links({.channels = TcpChannels()});
  SLUICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LinkSender> sender,
      links.Connect(JoinHostPort("127.0.0.1", server->port()), kEpoch, {}));
  ActivationPool pool;
  int64_t sent = 0;
  const auto send = [&](int64_t rows) {
    ActivationFrame frame;
    frame.epoch = kEpoch;
    frame.micro_batch = 1;  // which carries no plan
    frame.hidden = pool.Acquire(rows, kCols);
    std::memset(frame.hidden->data(), 1, frame.hidden->bytes());
    ++sent;
    return sender->Send(std::move(frame));
  };
  LinkProfile profile;
  SLUICE_ASSIGN_OR_RETURN(profile.latency_seconds,
                          TimeCalls(seconds / 3, 10, cancelled, [&] {
                            SLUICE_RETURN_IF_ERROR(send(1));
                            return sink.Await(sent);
                          }));
  // Several at a time, as far as credits go.
  constexpr int kTogether = 8;
  SLUICE_ASSIGN_OR_RETURN(const double together,
                          TimeCalls(2 * seconds / 3, 3, cancelled, [&] {
                            for (int i = 0; i < kTogether; ++i) {
                              SLUICE_RETURN_IF_ERROR(send(kManyRows));
                            }
                            return sink.Await(sent);
                          }));
  profile.bytes_per_second =
      static_cast<double>(kTogether * kManyRows * kCols * sizeof(float)) /
      together;
  return profile;
}

}  // namespace sluice
