#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "worker/channel_factory.h"
#include "worker/link/link.h"

namespace sluice {

// Links over LinkService::Send streams, with or without their payloads.
// Thread-safe.
class GrpcLinkFactory : public LinkFactory {
 public:
  struct Options {
    ChannelFactory channels;
    // The peer's time to answer, which it does at once also while it loads.
    absl::Duration connect_timeout = absl::Seconds(5);
    Counter* bytes_sent = nullptr;  // optional; must outlive factory and links
  };
  explicit GrpcLinkFactory(Options options);

  // Opens a stream and waits until the peer has taken it. kUnavailable if
  // nobody answers (worth another try: it may be starting); else as the peer
  // refused, kFailedPrecondition for a stale epoch. Then opens this end of the
  // channel of detached payloads, if any, and hands out its id.
  absl::StatusOr<std::unique_ptr<LinkSender>> Connect(
      const std::string& address, PlanEpoch epoch,
      const LinkOptions& options) override;

 private:
  const Options options_;
};

}  // namespace sluice
