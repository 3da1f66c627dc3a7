#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace sluice {

// How far a job was at a moment. Times are microseconds since the Unix epoch.
struct JobSample {
  int64_t time_us = 0;
  int64_t prompt_tokens = 0;      // computed
  int64_t generation_tokens = 0;  // made
  int64_t ended = 0;              // requests
  int64_t running = 0;            // requests being generated
};

// What happened to a job.
struct JobEvent {
  int64_t time_us = 0;
  std::string kind;  // a word: "accepted", "paused", "replay", ...
  std::string text;  // for people
};

// A job's course, in memory of a fixed size however long it runs: when there
// are kMaxSamples samples, every second one goes, and the next ones lie twice
// as far apart. Thread-compatible.
class JobHistory {
 public:
  static constexpr size_t kMaxSamples = 240;
  static constexpr size_t kMaxEvents = 64;

  // Adds a sample, unless the last one is too near and the sample is not
  // `due`, as at a change. A time before the last one's counts as that.
  void Add(JobSample sample, bool due = false);
  // Adds an event; beyond kMaxEvents the second oldest goes, as the oldest says
  // how the job began.
  void AddEvent(int64_t time_us, std::string kind, std::string text);
  // Counts requests that are computed again; those within some seconds are one
  // event.
  void AddReplays(int64_t time_us, int64_t count);

  const std::vector<JobSample>& samples() const { return samples_; }
  const std::deque<JobEvent>& events() const { return events_; }

  struct Pace {
    // Of about the last half minute; 0 if nothing was made.
    double generation_tokens_per_second = 0;
    // Prompts' tokens, too.
    double tokens_per_second = 0;
  };
  Pace PaceAt(int64_t now_us) const;

 private:
  int64_t interval_us_ = 250'000;
  std::vector<JobSample> samples_;
  std::deque<JobEvent> events_;
  int64_t replays_ = 0;  // of the last event
};

// What all jobs together did at a moment.
struct QueueSample {
  int64_t time_us = 0;
  int64_t prompt_tokens = 0;      // computed since the start
  int64_t generation_tokens = 0;  // made since the start
  int64_t running = 0;            // requests being generated
  int64_t waiting = 0;            // requests not begun
};

// The course of the last half hour, if a sample comes every two seconds.
// Thread-compatible.
class QueueHistory {
 public:
  static constexpr size_t kMaxSamples = 900;
  static constexpr size_t kMaxEvents = 100;

  void Add(const QueueSample& sample);
  // What keeps jobs from running from now on; "": nothing does. One that only
  // goes on from the last ("loading layers: 50 %") takes its place.
  void AddDetail(int64_t time_us, const std::string& detail);

  // Those after `after_us`.
  std::vector<QueueSample> samples(int64_t after_us) const;
  const std::deque<JobEvent>& events() const { return events_; }

 private:
  std::deque<QueueSample> samples_;
  std::deque<JobEvent> events_;
};

}  // namespace sluice
