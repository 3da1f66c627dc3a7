#include "worker/stage/span_log.h"

#include <utility>

#include "proto/wire_limits.h"

namespace sluice {

v1::Span SpanLog::Begin(v1::Span::Kind kind, StageId stage,
                        const Step& step) const {
  v1::Span span;
  span.set_kind(kind);
  span.set_stage(static_cast<int32_t>(stage.value()));
  span.set_epoch(step.epoch.value());
  span.set_block(static_cast<int32_t>(step.block.value()));
  span.set_step(step.step);
  span.set_micro_batch(step.micro_batch);
  span.set_start_ns(Now());
  return span;
}

void SpanLog::End(v1::Span span) {
  MutexLock lock(&mu_);
  // The time is read under the lock: no span that a heartbeat has ends after
  // it.
  span.set_duration_ns(Now() - span.start_ns());
  if (spans_.size() < static_cast<size_t>(kMaxHeartbeatSpans)) {
    spans_.push_back(std::move(span));
  } else {
    ++dropped_;
  }
}

void SpanLog::Take(v1::Heartbeat* heartbeat) {
  std::vector<v1::Span> spans;
  {
    MutexLock lock(&mu_);
    spans.swap(spans_);
    heartbeat->set_spans_dropped(dropped_);
    heartbeat->set_now_ns(Now());
  }
  for (v1::Span& span : spans) *heartbeat->add_spans() = std::move(span);
}

}  // namespace sluice
