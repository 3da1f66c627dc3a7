#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/host/logging.h"
#include "runtime/model/checkpoint/content_check.h"
#include "sluice/v1/pipeline.pb.h"
#include "worker/channel_factory.h"

namespace sluice {

class LinkSurvey;
class StageRunner;

// A worker's side of WorkerService.Attach: keeps a stream open, reconnecting
// when it breaks, until Shutdown or until it has left. Thread-safe.
class CoordinatorClient {
 public:
  // Pointers must outlive the client.
  struct Options {
    std::string address;
    ChannelFactory channels;
    // All but the model's content. With `measuring`, SetProfile is to follow.
    v1::Register identity;
    // Contents of the worker's copy of the model; null: they are not told.
    ContentCheck* content = nullptr;
    // Layers of the model; 0: it comes with each assignment, which says so in
    // `identity`.
    int32_t num_layers = 0;
    // These carry out the coordinator's instructions, on the client's thread:
    // they must not wait. When the stream ends, both stop.
    StageRunner* runner = nullptr;
    LinkSurvey* survey = nullptr;
    // The first delay; it doubles with each failure, up to 16 times as much.
    absl::Duration reconnect_delay = absl::Milliseconds(500);
    LogLevel lost_level = LogLevel::kWarning;  // of a coordinator that is lost
  };

  static std::unique_ptr<CoordinatorClient> Start(Options options);
  virtual ~CoordinatorClient() = default;

  // Whether the coordinator has taken this worker, and the stream is open.
  virtual bool attached() const = 0;

  // Says how far measuring is, and whether another process does it.
  virtual void SetMeasured(double share, bool awaits) = 0;
  // Ends measuring; "": there is no profile.
  virtual void SetProfile(const std::string& profile_json) = 0;

  // Asks the coordinator to do without this worker, which goes on working until
  // then, and attaches no more.
  virtual void BeginLeaving() = 0;
  // Whether the coordinator does without it, or is not there.
  virtual bool left() const = 0;

  // Takes leave of the coordinator and ends the threads. Called by the
  // destructor too.
  virtual void Shutdown() = 0;
};

}  // namespace sluice
