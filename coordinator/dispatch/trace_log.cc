#include "coordinator/dispatch/trace_log.h"

#include <algorithm>
#include <utility>

#include "proto/wire_limits.h"

namespace sluice {
namespace {

// Sums of a worker's times and the difference of the clocks do not overflow.
constexpr int64_t kMaxTimeNs = int64_t{1} << 61;

// Whether it ended between the beginning of its clock and `now_ns`.
bool MakesSense(const v1::Span& span, int64_t now_ns) {
  return span.kind() >= v1::Span::KIND_LOAD &&
         span.kind() <= v1::Span::KIND_SEND && span.start_ns() >= 0 &&
         span.start_ns() <= now_ns && span.duration_ns() >= 0 &&
         span.duration_ns() <= now_ns - span.start_ns();
}

}  // namespace

TraceLog::TraceLog(absl::Duration now, size_t max_spans)
    : max_spans_(max_spans), whole_since_ns_(absl::ToInt64Nanoseconds(now)) {}

void TraceLog::Keep(Kept kept) {
  if (spans_.size() >= max_spans_) {
    const v1::Span& oldest = spans_.front().span;
    whole_since_ns_ =
        std::max(whole_since_ns_, oldest.start_ns() + oldest.duration_ns());
    spans_.pop_front();
    ++first_;
  }
  spans_.push_back(std::move(kept));
}

void TraceLog::AddStep(v1::Span step, absl::Duration sent_at,
                       absl::Duration done_at) {
  step.set_kind(v1::Span::KIND_STEP);
  step.set_start_ns(absl::ToInt64Nanoseconds(sent_at));
  step.set_duration_ns(absl::ToInt64Nanoseconds(done_at - sent_at));
  MutexLock lock(&mu_);
  Keep({coordinator_, 0, std::move(step)});
}

void TraceLog::TakeHeartbeat(WorkerId id, const std::string& worker,
                             absl::Duration now, v1::Heartbeat* heartbeat) {
  google::protobuf::RepeatedPtrField<v1::Span> spans;
  spans.Swap(heartbeat->mutable_spans());
  const int64_t now_ns = heartbeat->now_ns();
  // 0: a worker of another version, which tells no spans.
  if (now_ns <= 0 || now_ns > kMaxTimeNs) return;
  MutexLock lock(&mu_);
  Source& source = sources_[id];
  if (source.worker == nullptr) {
    source.worker = std::make_shared<const std::string>(worker);
  }
  source.offsets_ns.push_back(absl::ToInt64Nanoseconds(now) - now_ns);
  if (source.offsets_ns.size() > kOffsetSamples) source.offsets_ns.pop_front();
  const int64_t offset =
      *std::min_element(source.offsets_ns.begin(), source.offsets_ns.end());
  source.told_ns = now_ns + offset;
  source.dropped = heartbeat->spans_dropped();
  int64_t left = kMaxHeartbeatSpans;
  for (v1::Span& span : spans) {
    if (left-- == 0) break;
    if (!MakesSense(span, now_ns)) continue;
    span.set_start_ns(span.start_ns() + offset);
    Keep({source.worker, offset, std::move(span)});
  }
}

void TraceLog::Forget(WorkerId id) {
  MutexLock lock(&mu_);
  sources_.erase(id);
}

v1::Trace TraceLog::Read(absl::Duration begin, absl::Duration end,
                         int64_t after, size_t max_spans) const {
  after = std::clamp<int64_t>(after, 0, kMaxTimeNs);
  v1::Trace trace;
  trace.set_begin_ns(absl::ToInt64Nanoseconds(begin));
  trace.set_end_ns(absl::ToInt64Nanoseconds(end));
  absl::flat_hash_map<std::string, v1::Trace::Process*> processes;
  MutexLock lock(&mu_);
  trace.set_truncated(trace.begin_ns() < whole_since_ns_);
  trace.set_settled(true);
  for (const auto& [id, source] : sources_) {
    if (source.told_ns < trace.end_ns()) trace.set_settled(false);
    trace.set_dropped(trace.dropped() + source.dropped);
  }
  auto bytes = static_cast<int64_t>(max_spans) * kSpanBytes;
  const auto size = static_cast<int64_t>(spans_.size());
  for (int64_t i = std::max<int64_t>(0, after + 1 - first_); i < size; ++i) {
    const Kept& kept = spans_[static_cast<size_t>(i)];
    const v1::Span& span = kept.span;
    if (span.start_ns() > trace.end_ns() ||
        span.start_ns() + span.duration_ns() < trace.begin_ns()) {
      continue;
    }
    v1::Trace::Process*& process = processes[*kept.worker];
    bytes -= kSpanBytes + (process == nullptr ? kept.worker->size() : 0);
    if (bytes < 0 && trace.processes_size() > 0) {
      trace.set_next_after(first_ + i - 1);
      return trace;
    }
    if (process == nullptr) {
      process = trace.add_processes();
      process->set_worker(*kept.worker);
      process->set_clock_offset_ns(kept.offset_ns);
    }
    process->set_clock_offset_ns(
        std::max(process->clock_offset_ns(), kept.offset_ns));
    *process->add_spans() = span;
  }
  return trace;
}

}  // namespace sluice
