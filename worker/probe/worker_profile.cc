#include "worker/probe/worker_profile.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/profile_json.h"
#include "common/host/host_port.h"
#include "common/status_macros.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/profile/measure.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_choice.h"
#include "worker/link/link_protocol.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/tcp_links.h"

namespace sluice {
namespace {

// The share of the time for small frames.
constexpr double kLatencyShare = 1.0 / 3;
constexpr int kMinPings = 10;
constexpr int kMinLarge = 3;
// The rows of the first large frame, by which the others' are chosen.
constexpr int32_t kFirstRows = 32;  // 128 KiB

// A sink that is never called, as probes come to no sink.
class NoSink : public FrameSink {
 public:
  absl::Status OnFrame(ActivationFrame, std::function<void()>) override {
    return absl::FailedPreconditionError("there is no stage here");
  }
  void OnLinkBroken(PlanEpoch, const absl::Status&) override {}
};

// A receiving end of this process; its members end in order.
struct LoopbackReceiver {
  ~LoopbackReceiver() {
    if (server != nullptr) server->Shutdown();
    tcp.Stop();
  }
  NoSink sink;
  TcpLinks tcp;
  const std::unique_ptr<LinkService> service =
      LinkService::Create(&sink, {.tcp = &tcp}, nullptr);
  std::unique_ptr<LinkServer> server;
};

}  // namespace

absl::StatusOr<MachineProfile> MeasureWorkerMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled) {
  constexpr double kLinkShare = 0.02;
  const ProfileProgress before_link = [&](absl::string_view what,
                                          double share) {
    if (progress && share < 1) progress(what, share * (1 - kLinkShare));
  };
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile,
                          MeasureMachine(options, before_link, cancelled));
  if (progress) progress("link", 1 - kLinkShare);
  absl::StatusOr<LinkProfile> link =
      MeasureLoopbackLink(kLinkShare * options.seconds, cancelled);
  if (link.ok()) {
    profile.step_seconds = 2 * link->latency_seconds;
    profile.links.push_back(*std::move(link));
  } else if (absl::IsCancelled(link.status())) {
    return link.status();
  } else {
    profile.remarks.push_back(absl::StrCat(
        "no link could be measured: ", std::string(link.status().message())));
  }
  if (progress) progress("done", 1);
  return profile;
}

ProfileCacheOptions ProfileCacheOf(const MachineShare& machine) {
  ProfilerOptions options = {machine};
  if (machine.device.backend == BackendKind::kCuda) {
    options.exchange = [machine](int32_t ranks) {
      return ExchangeOf(LinkSetup(), {machine.ranks.begin(),
                                      machine.ranks.begin() + ranks})();
    };
  }
  return {.machine = std::move(options),
          .cache_dir = ProfileCacheDir(machine.disk_dir),
          .measure = MeasureWorkerMachine};
}

absl::StatusOr<MachineProfile> ReadWorkerProfile(const std::string& path,
                                                 const MachineShare& machine) {
  SLUICE_ASSIGN_OR_RETURN(MachineProfile profile, ReadProfileFile(path));
  SLUICE_RETURN_IF_ERROR(Annotate(SetCapacities(machine, &profile), path));
  return profile;
}

void SetPart(const std::string& part, int parts, MachineProfile* profile) {
  profile->machine = absl::StrCat(profile->machine, "/", part);
  DiskProfile& disk = profile->disk;
  disk.read_bytes_per_second /= parts;
  disk.write_bytes_per_second /= parts;
  for (DiskRate& rate : disk.rates) {
    rate.read_bytes_per_second /= parts;
    rate.write_bytes_per_second /= parts;
  }
}

absl::StatusOr<LinkProfile> MeasureLink(LinkSender& sender, double seconds,
                                        const std::atomic<bool>* cancelled) {
  ActivationPool pool;
  const auto send = [&](int64_t rows) {
    ActivationFrame frame;
    frame.epoch = kProbeEpoch;
    frame.micro_batch = 1;  // micro-batch 0 would carry a plan
    frame.hidden = pool.Acquire(rows, kProbeCols);
    std::memset(frame.hidden->data(), 1, frame.hidden->bytes());
    return sender.Send(std::move(frame));
  };
  LinkProfile profile;
  // Each frame waits for the credit of the one before.
  SLUICE_ASSIGN_OR_RETURN(const double round_trip,
                          TimeCalls(kLatencyShare * seconds, kMinPings,
                                    cancelled, [&] { return send(1); }));
  profile.latency_seconds = round_trip / 2;
  // kProbeFrames are timed together, since credits may come together.
  const auto time_large = [&](int64_t rows, double for_seconds, int min_calls) {
    return TimeCalls(for_seconds, min_calls, cancelled, [&]() -> absl::Status {
      for (int i = 0; i < kProbeFrames; ++i) {
        SLUICE_RETURN_IF_ERROR(send(rows));
      }
      return absl::OkStatus();
    });
  };
  const double large_seconds = (1 - kLatencyShare) * seconds;
  SLUICE_ASSIGN_OR_RETURN(const double first, time_large(kFirstRows, 0, 1));
  const auto rows = static_cast<int64_t>(
      std::clamp(kFirstRows * large_seconds / (kMinLarge + 1) / first,
                 double{kFirstRows}, double{kProbeRows}));
  SLUICE_ASSIGN_OR_RETURN(const double large,
                          time_large(rows, large_seconds, kMinLarge));
  profile.bytes_per_second =
      static_cast<double>(kProbeFrames * rows * kProbeCols *
                          static_cast<int64_t>(sizeof(float))) /
      large;
  return profile;
}

absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled) {
  LoopbackReceiver receiver;
  SLUICE_ASSIGN_OR_RETURN(
      receiver.server,
      LinkServer::Start("127.0.0.1", 0, receiver.service->service(), nullptr,
                        &receiver.tcp));
  GrpcLinkFactory links({.channels = TcpChannels()});
  SLUICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LinkSender> sender,
      links.Connect(JoinHostPort("127.0.0.1", receiver.server->port()),
                    kProbeEpoch, {.tcp = true}));
  return MeasureLink(*sender, seconds, cancelled);
}

}  // namespace sluice
