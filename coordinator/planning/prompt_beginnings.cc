#include "coordinator/planning/prompt_beginnings.h"

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "scheduler/steps/step_scheduler.h"

namespace sluice {
namespace {

// What later prompts begin with is not known beyond these: 16 MiB or so.
constexpr size_t kMaxPages = 1 << 20;

}  // namespace

int32_t PromptBeginnings::Add(std::span<const int32_t> prompt) {
  const auto page_tokens =
      static_cast<size_t>(StepScheduler::Options().page_tokens);
  int32_t shared = 0;
  bool known = true;
  size_t hash = 0;
  for (size_t end = page_tokens; end < prompt.size(); end += page_tokens) {
    const auto page = prompt.subspan(end - page_tokens, page_tokens);
    hash = absl::HashOf(
        hash, absl::string_view(reinterpret_cast<const char*>(page.data()),
                                page.size_bytes()));
    known = known && pages_.contains(hash);
    if (known) {
      shared += static_cast<int32_t>(page_tokens);
    } else if (pages_.size() < kMaxPages) {
      pages_.insert(hash);
    } else {
      break;
    }
  }
  return shared;
}

}  // namespace sluice
