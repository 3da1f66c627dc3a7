#pragma once

#include <deque>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/threads/clock.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The share of a job's work that is done, 0 to 1: by tokens, or by requests if
// the remaining tokens are not known. 1 only if all requests have ended.
double ProgressShare(const v1::Job& job);

// One line about a job: "job_3 [#####-----]  52 %  520/1000 requests, 3 failed
// 812 tok/s  ETA 0:14 (waiting for workers: 1 of 2)". Pure; `eta` < 0 means
// unknown. Parts that do not fit in `width` are left out, first the bar; the
// reason why nothing runs is left out last.
std::string FormatProgress(const v1::Job& job, absl::Duration eta,
                           size_t width);

// Formats a duration as "0:07", "12:40" or "3:05:00".
std::string FormatClock(absl::Duration duration);

// Estimates when a job ends from its recent speed. Thread-compatible.
class EtaEstimator {
 public:
  // Returns the time left, negative if unknown. `now` is Clock::Monotonic().
  absl::Duration Update(const v1::Job& job, absl::Duration now);

 private:
  // Shares done over the last minute.
  std::deque<std::pair<absl::Duration, double>> done_;
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
