// A link between two workers, without anything that computes: frames of
// activations as one stage hands them to the next.
//
//   link_bench receive HOST [CERT KEY CA]
//   link_bench send ADDRESS EPOCH ROWS COLS SECONDS float32|bfloat16 grpc|tcp
//       [CERT KEY CA]
//
// With the files of a certificate, a key and an authority, both ends speak
// mutual TLS, and there are no links by TCP.
//
// The receiver prints its port, then reads "COLS DTYPE LINK" lines, each of
// which begins another epoch, the first one 1, whose number it prints; it ends
// with its input. The sender prints one JSON object: the rate of frames of ROWS
// x COLS numbers, and the latency of a hop. bench_link.py runs both.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/threads/clock.h"
#include "runtime/memory/activation_buffer.h"
#include "runtime/profile/measure.h"
#include "worker/link/grpc_link_factory.h"
#include "worker/link/link_server.h"
#include "worker/link/link_service.h"
#include "worker/link/tcp/tcp_links.h"
#include "worker/probe/worker_profile.h"

namespace sluice {
namespace {

constexpr int32_t kFrames = 8;  // that wait at most, as of a small stage

// Takes frames and forgets them.
class Sink : public FrameSink {
 public:
  absl::Status OnFrame(ActivationFrame frame,
                       std::function<void()> on_consumed) override {
    frame.hidden.reset();
    on_consumed();
    return absl::OkStatus();
  }
  void OnLinkBroken(PlanEpoch, const absl::Status&) override {}
};

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "link_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

int Receive(const std::string& host, const TlsFiles& tls) {
  Sink sink;
  TcpLinks tcp;
  TcpLinks* const by_tcp = tls.empty() ? &tcp : nullptr;
  const std::unique_ptr<LinkService> service =
      LinkService::Create(&sink, {.tcp = by_tcp}, nullptr);
  auto server =
      LinkServer::Start(host, 0, service->service(), nullptr, by_tcp, tls);
  if (!server.ok()) Die(server.status());
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  LinkTerms terms = {.max_rows = 1 << 20,
                     .cols = 0,
                     .max_micro_batches = 1 << 30,
                     .credits = kFrames};
  // The width and format of each sender's frames, and what carries them.
  char dtype[16], link[16];
  long cols = 0;
  for (int64_t epoch = 1; std::scanf("%ld %15s %15s", &cols, dtype, link) == 3;
       ++epoch) {
    terms.cols = cols;
    terms.transport = std::strcmp(link, "tcp") == 0 ? LinkTransport::kTcp
                                                    : LinkTransport::kGrpc;
    terms.dtype = std::strcmp(dtype, "bfloat16") == 0 ? DType::kBFloat16
                                                      : DType::kFloat32;
    service->Accept(PlanEpoch(epoch), terms);
    std::printf("%ld\n", static_cast<long>(epoch));
    std::fflush(stdout);
  }
  (*server)->Shutdown();
  tcp.Stop();
  return 0;
}

int Send(const std::string& address, int64_t epoch, int64_t rows, int64_t cols,
         double seconds, DType dtype, bool by_tcp, const TlsFiles& tls) {
  GrpcLinkFactory links(
      {.channels = TcpChannels({.tls = !tls.empty(), .files = tls})});
  LinkOptions options = {.tcp = by_tcp};
  auto probe = links.Connect(address, PlanEpoch(0), options);
  if (!probe.ok()) Die(probe.status());
  const auto profile = MeasureLink(**probe, 1, nullptr);
  if (!profile.ok()) Die(profile.status());
  options.dtype = dtype;
  auto sender = links.Connect(address, PlanEpoch(epoch), options);
  if (!sender.ok()) Die(sender.status());
  ActivationPool pool;
  ActivationFrame frame;
  frame.epoch = PlanEpoch(epoch);
  const auto send = [&] {
    ++frame.micro_batch;
    frame.hidden = pool.Acquire(rows, cols);
    if (frame.micro_batch <= 2 * kFrames) {
      std::memset(frame.hidden->data(), 0, frame.hidden->bytes());
    }
    const absl::Status sent = (*sender)->Send(std::move(frame));
    if (!sent.ok()) Die(sent);
    const int32_t batch = frame.micro_batch;
    frame = ActivationFrame();
    frame.epoch = PlanEpoch(epoch);
    frame.micro_batch = batch;
  };
  for (int i = 0; i < 2 * kFrames; ++i) send();
  const uint64_t before = (*sender)->bytes_sent();
  int64_t frames = 0;
  const double start = MonotonicSeconds();
  while (MonotonicSeconds() - start < seconds) {
    send();
    ++frames;
  }
  const double taken = MonotonicSeconds() - start;
  std::printf(
      "{\"bytes_per_second\": %.0f, \"frames_per_second\": %.1f, "
      "\"bytes_per_row\": %.1f, \"hop_seconds\": %.3g}\n",
      static_cast<double>((*sender)->bytes_sent() - before) / taken,
      static_cast<double>(frames) / taken,
      static_cast<double>((*sender)->bytes_sent() - before) /
          static_cast<double>(frames * rows),
      profile->latency_seconds);
  return 0;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int plain = mode == "receive" ? 3 : 9;
  TlsFiles tls;
  if (argc == plain + 3) {
    tls = {argv[plain], argv[plain + 1], argv[plain + 2]};
    argc = plain;
  }
  if (mode == "receive" && argc == plain) return Receive(argv[2], tls);
  if (mode == "send" && argc == plain) {
    return Send(argv[2], std::atoll(argv[3]), std::atoll(argv[4]),
                std::atoll(argv[5]), std::atof(argv[6]),
                std::strcmp(argv[7], "bfloat16") == 0 ? DType::kBFloat16
                                                      : DType::kFloat32,
                std::strcmp(argv[8], "tcp") == 0, tls);
  }
  std::fprintf(stderr,
               "usage: link_bench receive HOST [CERT KEY CA] | link_bench send "
               "ADDRESS EPOCH ROWS COLS SECONDS float32|bfloat16 grpc|tcp "
               "[CERT KEY CA]\n");
  return 2;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
