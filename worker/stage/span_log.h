#pragma once

#include <cstdint>
#include <vector>

#include "common/threads/clock.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// The spans of a worker's stages until the next heartbeat takes them, at most
// kMaxHeartbeatSpans; those beyond are only counted. Thread-safe.
class SpanLog {
 public:
  // `clock` must outlive the log.
  explicit SpanLog(const Clock* clock) : clock_(clock) {}

  // The part of a step that a span is about; a load's is only an epoch.
  struct Step {
    PlanEpoch epoch;
    BlockId block;
    int64_t step = 0;
    int32_t micro_batch = 0;
  };

  // A span of the stage that begins now.
  v1::Span Begin(v1::Span::Kind kind, StageId stage, const Step& step) const;
  // Adds a span that ends now.
  void End(v1::Span span) ABSL_LOCKS_EXCLUDED(mu_);
  // Moves the spans into the heartbeat, and sets its clock.
  void Take(v1::Heartbeat* heartbeat) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  int64_t Now() const { return absl::ToInt64Nanoseconds(clock_->Monotonic()); }

  const Clock* const clock_;
  Mutex mu_;
  std::vector<v1::Span> spans_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice
