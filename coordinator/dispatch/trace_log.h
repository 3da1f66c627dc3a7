#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "coordinator/cluster/worker_stream.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/pipeline.pb.h"
#include "sluice/v1/trace.pb.h"

namespace sluice {

// The newest spans of the coordinator and of all workers, on the coordinator's
// monotonic clock. Thread-safe.
//
// A worker's clock is known by its heartbeats: the coordinator's time at which
// one comes is the worker's time in it, plus the difference of the clocks, plus
// the time under way. The smallest of the last kOffsetSamples sums is taken for
// the difference, so that a worker's spans are late by the quickest way of
// these heartbeats, and two clocks' drift matters for as long only.
class TraceLog {
 public:
  // About 20 MB.
  static constexpr size_t kMaxSpans = size_t{1} << 17;
  static constexpr size_t kOffsetSamples = 16;
  static constexpr size_t kPageSpans = size_t{1} << 14;

  // Spans from `now` on are kept, the newest `max_spans`.
  explicit TraceLog(absl::Duration now, size_t max_spans = kMaxSpans);

  // Adds a step of the coordinator; `step` has all but its times.
  void AddStep(v1::Span step, absl::Duration sent_at, absl::Duration done_at)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the spans out of a heartbeat that came at `now`. Those that make no
  // sense are left out.
  void TakeHeartbeat(WorkerId id, const std::string& worker, absl::Duration now,
                     v1::Heartbeat* heartbeat) ABSL_LOCKS_EXCLUDED(mu_);
  // The worker is attached no longer; its spans stay.
  void Forget(WorkerId id) ABSL_LOCKS_EXCLUDED(mu_);

  // A page of the spans that overlap [begin, end], in the order in which they
  // came, after the one numbered `after`.
  v1::Trace Read(absl::Duration begin, absl::Duration end, int64_t after,
                 size_t max_spans = kPageSpans) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Name = std::shared_ptr<const std::string>;
  struct Kept {
    Name worker;
    int64_t offset_ns;
    v1::Span span;
  };
  // An attached worker that sent a heartbeat.
  struct Source {
    Name worker;
    std::deque<int64_t> offsets_ns;
    int64_t told_ns = 0;  // the spans up to then have come
    uint64_t dropped = 0;
  };

  void Keep(Kept kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t max_spans_;
  const Name coordinator_ = std::make_shared<const std::string>();
  mutable Mutex mu_;
  // The spans numbered first_, first_ + 1 and so on.
  std::deque<Kept> spans_ ABSL_GUARDED_BY(mu_);
  int64_t first_ ABSL_GUARDED_BY(mu_) = 1;
  // No span that began later has been left out.
  int64_t whole_since_ns_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<WorkerId, Source> sources_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
