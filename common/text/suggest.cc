#include "common/text/suggest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace sluice {
namespace {

// Longer texts are no mistyped names; the limit keeps the table small.
constexpr size_t kMaxBytes = 64;
constexpr size_t kMaxMistakes = 3;
constexpr size_t kMinPrefix = 3;

}  // namespace

size_t TypingDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before;  // the row before the last
  std::vector<size_t> last(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min(
          {last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(last, std::move(row));
  }
  return last[b.size()];
}

std::string ClosestTo(absl::string_view typed,
                      const std::vector<std::string>& known) {
  if (typed.empty() || typed.size() > kMaxBytes) return "";
  std::string closest;
  size_t min = kMaxMistakes + 1;
  for (const std::string& name : known) {
    if (name.size() > kMaxBytes) continue;
    size_t distance = TypingDistance(typed, name);
    if (distance > std::clamp<size_t>(name.size() / 3, 1, kMaxMistakes)) {
      const bool begins =
          typed.size() >= kMinPrefix && absl::StartsWith(name, typed);
      if (!begins) continue;
      distance = kMaxMistakes;
    }
    if (distance >= min) continue;
    min = distance;
    closest = name;
  }
  return closest;
}

}  // namespace sluice
