#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "worker/channel_factory.h"
#include "worker/link/link.h"

namespace sluice {

// Links over LinkService::Send streams, with frames in them, with their
// payloads beside them, or with frames beside them. Thread-safe.
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
  // refused, kFailedPrecondition for a stale epoch. Then makes the TCP
  // connection, if frames go by one; kUnimplemented: there can't be one. Or
  // opens this end of the channel of detached payloads, and hands out its id.
  absl::StatusOr<std::unique_ptr<LinkSender>> Connect(
      const std::string& address, PlanEpoch epoch,
      const LinkOptions& options) override;

 private:
  const Options options_;
};

}  // namespace sluice
