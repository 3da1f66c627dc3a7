#include "server/cli/jobs/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/text.h"

namespace sluice {
namespace {

constexpr absl::Duration kTerminalInterval = absl::Milliseconds(100);
constexpr absl::Duration kPlainInterval = absl::Seconds(5);
constexpr absl::Duration kEtaWindow = absl::Seconds(60);

int TerminalWidth() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) {
    return size.ws_col;
  }
  return 100;
}

}  // namespace

std::string FormatClock(absl::Duration duration) {
  const int64_t s = absl::ToInt64Seconds(duration + absl::Milliseconds(500));
  if (s >= 3600) {
    return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
  }
  return absl::StrFormat("%d:%02d", s / 60, s % 60);
}

double ProgressShare(const v1::Job& job) {
  const auto& counts = job.counts();
  const int64_t ended = counts.completed() + counts.failed();
  if (ended >= counts.total()) return counts.total() > 0 ? 1 : 0;
  double share = static_cast<double>(ended) / counts.total();
  if (job.expected_tokens() > 0) {
    share = static_cast<double>(job.processed_tokens()) / job.expected_tokens();
  }
  constexpr double kMaxBeforeTheEnd = 0.99;
  return std::clamp(share, 0.0, kMaxBeforeTheEnd);
}

std::string FormatProgress(const v1::Job& job, absl::Duration eta,
                           size_t width) {
  constexpr int kBar = 24;
  const auto& counts = job.counts();
  const int64_t ended = counts.completed() + counts.failed();
  const double share = ProgressShare(job);
  const int filled = static_cast<int>(share * kBar);
  const std::string bar = absl::StrCat(" [", std::string(filled, '#'),
                                       std::string(kBar - filled, '-'), "]");
  const std::string requests = absl::StrFormat(
      " %3.0f %%  %d/%d requests", share * 100, ended, counts.total());
  std::string failed;
  if (const int64_t n = counts.failed() - counts.cancelled(); n > 0) {
    failed = absl::StrCat(", ", n, " failed");
  }
  if (counts.cancelled() > 0) {
    absl::StrAppend(&failed, ", ", counts.cancelled(), " cancelled");
  }
  std::string rate;
  if (job.generation_tokens_per_second() > 0) {
    const double tokens = job.generation_tokens_per_second();
    rate = absl::StrFormat("  %.*f tok/s", tokens < 10 ? 2 : 0, tokens);
  }
  std::string left;
  if (ended < counts.total()) {
    left = absl::StrCat("  ETA ",
                        eta < absl::ZeroDuration() ? "-:--" : FormatClock(eta));
  }
  std::string reason;
  if (!job.detail().empty()) reason = absl::StrCat("  (", job.detail(), ")");
  const std::string lines[] = {
      absl::StrCat(job.id(), bar, requests, failed, rate, left, reason),
      absl::StrCat(job.id(), requests, failed, rate, left, reason),
      absl::StrCat(job.id(), requests, failed, left, reason),
      absl::StrCat(job.id(), requests, failed, reason),
      absl::StrCat(job.id(), absl::StrFormat(" %3.0f %%", share * 100),
                   reason)};
  for (const std::string& line : lines) {
    if (line.size() <= width) return line;
  }
  return lines[std::size(lines) - 1];
}

absl::Duration EtaEstimator::Update(const v1::Job& job, absl::Duration now) {
  const double share = ProgressShare(job);
  done_.emplace_back(now, share);
  while (done_.size() > 2 && now - done_.front().first > kEtaWindow) {
    done_.pop_front();
  }
  const double gained = share - done_.front().second;
  const double seconds = absl::ToDoubleSeconds(now - done_.front().first);
  if (gained <= 0 || seconds <= 0) return absl::Seconds(-1);
  return absl::Seconds((1 - share) * seconds / gained);
}

ProgressDisplay::ProgressDisplay(const Clock* clock, bool quiet)
    : clock_(clock), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressDisplay::Update(const v1::Job& job) {
  const absl::Duration eta = eta_.Update(job, clock_->Monotonic());
  const bool ended =
      job.counts().completed() + job.counts().failed() == job.counts().total();
  // A change of the reason why the job waits is shown even between intervals.
  const bool news = job.detail() != last_detail_;
  last_detail_ = job.detail();
  // Off a terminal, width does not matter.
  const size_t width =
      terminal_ ? static_cast<size_t>(TerminalWidth() - 1) : std::string::npos;
  Show(FormatProgress(job, eta, width), ended || news);
}

void ProgressDisplay::UpdateText(const std::string& text) {
  const bool news = text != last_detail_;
  last_detail_ = text;
  if (terminal_ || news) Show(text, false);
}

void ProgressDisplay::Show(const std::string& text, bool must_show) {
  if (quiet_) return;
  const std::string line = EscapeForTerminal(text);
  const absl::Duration now = clock_->Monotonic();
  const absl::Duration interval =
      terminal_ ? kTerminalInterval : kPlainInterval;
  if (!must_show && now - last_shown_ < interval) return;
  last_shown_ = now;
  if (terminal_) {
    const size_t width = static_cast<size_t>(TerminalWidth() - 1);
    std::fprintf(stderr, "\r\033[K%s",
                 std::string(ClipUtf8(line, width)).c_str());
    line_open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

void ProgressDisplay::Finish() {
  if (line_open_) std::fprintf(stderr, "\n");
  line_open_ = false;
  last_shown_ = -absl::InfiniteDuration();
}

}  // namespace sluice
