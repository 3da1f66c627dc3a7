#include "coordinator/jobs/job_history.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {
namespace {

constexpr int64_t kPaceUs = 30'000'000;
constexpr int64_t kOneReplayUs = 5'000'000;
constexpr char kReplay[] = "replay";

bool SameState(const JobSample& a, const JobSample& b) {
  return a.prompt_tokens == b.prompt_tokens &&
         a.generation_tokens == b.generation_tokens && a.ended == b.ended &&
         a.running == b.running;
}

// What a detail is about: "loading layers" of "loading layers: 50 %".
absl::string_view Subject(absl::string_view detail) {
  return detail.substr(0, detail.find(':'));
}

std::string ReplayText(int64_t count) {
  return count == 1 ? "1 request is computed again"
                    : absl::StrCat(count, " requests are computed again");
}

}  // namespace

void JobHistory::Add(JobSample sample, bool due) {
  if (samples_.empty()) {
    samples_.push_back(sample);
    return;
  }
  JobSample& last = samples_.back();
  sample.time_us = std::max(sample.time_us, last.time_us);
  if (SameState(sample, last) && samples_.size() > 1 &&
      SameState(last, samples_[samples_.size() - 2])) {
    last.time_us = sample.time_us;  // a level stretch needs its ends only
    return;
  }
  if (!due && sample.time_us - last.time_us < interval_us_) return;
  samples_.push_back(sample);
  if (samples_.size() <= kMaxSamples) return;
  // The first one and the last one stay.
  size_t kept = 0;
  for (size_t i = 0; i < samples_.size(); i += 2) {
    samples_[kept++] = samples_[i];
  }
  if (samples_.size() % 2 == 0) samples_[kept++] = samples_.back();
  samples_.resize(kept);
  interval_us_ *= 2;
}

void JobHistory::AddEvent(int64_t time_us, std::string kind, std::string text) {
  if (!events_.empty()) time_us = std::max(time_us, events_.back().time_us);
  events_.push_back({time_us, std::move(kind), std::move(text)});
  if (events_.size() > kMaxEvents) events_.erase(std::next(events_.begin()));
}

void JobHistory::AddReplays(int64_t time_us, int64_t count) {
  if (!events_.empty() && events_.back().kind == kReplay &&
      time_us - events_.back().time_us < kOneReplayUs) {
    replays_ += count;
    events_.back().text = ReplayText(replays_);
    return;
  }
  replays_ = count;
  AddEvent(time_us, kReplay, ReplayText(count));
}

JobHistory::Pace JobHistory::PaceAt(int64_t now_us) const {
  if (samples_.size() < 2) return {};
  const JobSample& last = samples_.back();
  auto first = std::prev(samples_.end(), 2);
  while (first != samples_.begin() && now_us - first->time_us < kPaceUs) {
    --first;
  }
  const double seconds =
      static_cast<double>(std::max(now_us, last.time_us) - first->time_us) /
      1e6;
  if (seconds <= 0) return {};
  const auto generated =
      static_cast<double>(last.generation_tokens - first->generation_tokens);
  const auto prompts =
      static_cast<double>(last.prompt_tokens - first->prompt_tokens);
  return {.generation_tokens_per_second = std::max(0.0, generated) / seconds,
          .tokens_per_second = std::max(0.0, generated + prompts) / seconds};
}

void QueueHistory::Add(const QueueSample& sample) {
  samples_.push_back(sample);
  if (samples_.size() > kMaxSamples) samples_.pop_front();
}

void QueueHistory::AddDetail(int64_t time_us, const std::string& detail) {
  const std::string text = detail.empty() ? "jobs can run" : detail;
  if (!events_.empty() && Subject(events_.back().text) == Subject(text)) {
    events_.back().text = text;
    return;
  }
  events_.push_back({time_us, detail.empty() ? "ready" : "waiting", text});
  if (events_.size() > kMaxEvents) events_.pop_front();
}

std::vector<QueueSample> QueueHistory::samples(int64_t after_us) const {
  std::vector<QueueSample> found;
  for (const QueueSample& sample : samples_) {
    if (sample.time_us > after_us) found.push_back(sample);
  }
  return found;
}

}  // namespace sluice
