#include "runtime/kv/kv_groups.h"

#include <algorithm>

namespace sluice {

int32_t KvGroups::TurnOf(int32_t window) {
  constexpr int32_t kMaxTurn = 1024;
  return std::clamp(PagesOf(window / 4) * kPageTokens, kPageTokens, kMaxTurn);
}

}  // namespace sluice
