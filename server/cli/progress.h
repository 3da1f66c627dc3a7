#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// One line about a job: "job_3 [#####-----]  52 %  520/1000 requests, 3 failed
// 812 tok/s  ETA 0:14". Pure; `eta` < 0 means unknown.
std::string FormatProgress(const v1::Job& job, absl::Duration eta,
                           int bar_width);

// "0:07", "12:40", "3:05:00".
std::string FormatClock(absl::Duration duration);

// Estimates when a job ends from how fast its requests ended lately.
// Thread-compatible.
class EtaEstimator {
 public:
  // `now` as of Clock::Monotonic(). Returns a negative duration if unknown.
  absl::Duration Update(const v1::Job& job, absl::Duration now);

 private:
  std::deque<std::pair<absl::Duration, int64_t>>
      ended_;  // over the last minute
};

// Shows a job's progress on stderr: a line that rewrites itself on a terminal,
// a new line every few seconds elsewhere. Confined to a thread.
class ProgressDisplay {
 public:
  // Shows nothing if `quiet`.
  ProgressDisplay(const Clock* clock, bool quiet);
  ~ProgressDisplay() { Finish(); }
  void Update(const v1::Job& job);
  void UpdateText(const std::string& text);
  // Ends the line. Update starts a new one.
  void Finish();

 private:
  void Show(const std::string& text, bool must_show);

  const Clock* const clock_;
  const bool quiet_;
  const bool terminal_;
  EtaEstimator eta_;
  absl::Duration last_shown_ = -absl::InfiniteDuration();
  std::string last_detail_;
  bool line_open_ = false;
};

}  // namespace sluice
