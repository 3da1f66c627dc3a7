#include "server/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text.h"

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

std::string FormatProgress(const v1::Job& job, absl::Duration eta,
                           int bar_width) {
  const auto& counts = job.counts();
  const int64_t ended = counts.completed() + counts.failed();
  const double share =
      counts.total() > 0 ? static_cast<double>(ended) / counts.total() : 0;
  const int filled = static_cast<int>(share * bar_width);
  std::string line =
      absl::StrCat(job.id(), " [", std::string(filled, '#'),
                   std::string(bar_width - filled, '-'), "] ",
                   absl::StrFormat("%3.0f %%  %d/%d requests", share * 100,
                                   ended, counts.total()));
  if (counts.failed() > 0) {
    absl::StrAppend(&line, ", ", counts.failed(), " failed");
  }
  if (job.generation_tokens_per_second() > 0) {
    absl::StrAppend(&line, absl::StrFormat("  %.0f tok/s",
                                           job.generation_tokens_per_second()));
  }
  if (ended < counts.total()) {
    absl::StrAppend(&line, "  ETA ",
                    eta < absl::ZeroDuration() ? "-:--" : FormatClock(eta));
  }
  if (!job.detail().empty()) absl::StrAppend(&line, "  (", job.detail(), ")");
  return line;
}

absl::Duration EtaEstimator::Update(const v1::Job& job, absl::Duration now) {
  const int64_t ended = job.counts().completed() + job.counts().failed();
  ended_.emplace_back(now, ended);
  while (ended_.size() > 2 && now - ended_.front().first > kEtaWindow) {
    ended_.pop_front();
  }
  const int64_t gained = ended - ended_.front().second;
  const double seconds = absl::ToDoubleSeconds(now - ended_.front().first);
  if (gained <= 0 || seconds <= 0) return absl::Seconds(-1);
  return absl::Seconds((job.counts().total() - ended) * seconds / gained);
}

ProgressDisplay::ProgressDisplay(const Clock* clock, bool quiet)
    : clock_(clock), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressDisplay::Update(const v1::Job& job) {
  const absl::Duration eta = eta_.Update(job, clock_->Monotonic());
  const bool ended =
      job.counts().completed() + job.counts().failed() == job.counts().total();
  // A change of what holds the job up is news even between two intervals.
  const bool news = job.detail() != last_detail_;
  last_detail_ = job.detail();
  Show(FormatProgress(job, eta, 24), ended || news);
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
