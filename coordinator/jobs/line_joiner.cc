#include "coordinator/jobs/line_joiner.h"

#include <cstdint>
#include <utility>

namespace sluice {
namespace {

constexpr int64_t kMaxBytes = 64 << 20;  // that wait for others

}  // namespace

std::optional<FinishedLine> LineJoiner::Add(FinishedRequest finished) {
  const Request& request = finished.request;
  FinishedLine whole;
  if (request.num_parts == 1) {
    whole.push_back(std::move(finished));
    return whole;
  }
  MutexLock lock(&mu_);
  const auto it = lines_.try_emplace({request.job, request.index}).first;
  Begun& line = it->second;
  if (line.parts.empty()) {
    line.left = request.num_parts;
    line.parts.resize(line.left);
    line.ended.resize(line.left);
  }
  const int32_t part = request.part;
  if (line.ended[part]) return std::nullopt;
  const int64_t bytes = MemoryBytes(finished);
  line.ended[part] = true;
  line.parts[part] = std::move(finished);
  line.bytes += bytes;
  bytes_ += bytes;
  if (--line.left > 0) return std::nullopt;
  whole = std::move(line.parts);
  bytes_ -= line.bytes;
  lines_.erase(it);
  return whole;
}

void LineJoiner::Forget(JobId job) {
  MutexLock lock(&mu_);
  auto it = lines_.lower_bound({job, INT64_MIN});
  while (it != lines_.end() && it->first.first == job) {
    bytes_ -= it->second.bytes;
    it = lines_.erase(it);
  }
}

int64_t LineJoiner::bytes() const {
  MutexLock lock(&mu_);
  return bytes_;
}

bool LineJoiner::HoldsBack() {
  MutexLock lock(&mu_);
  held_back_ = bytes_ > kMaxBytes;
  return held_back_;
}

bool LineJoiner::LetsGo() {
  MutexLock lock(&mu_);
  return bytes_ <= kMaxBytes && std::exchange(held_back_, false);
}

}  // namespace sluice
