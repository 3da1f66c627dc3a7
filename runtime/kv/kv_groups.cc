#include "runtime/kv/kv_groups.h"

namespace sluice {

int32_t KvGroups::PagesOfWindow(int32_t window) {
  constexpr int32_t kMaxNew = 1024;
  const int32_t for_new = std::clamp(window / 4, kPageTokens, kMaxNew);
  // Consecutive positions may begin and end within pages.
  return PagesOf(window - 1 + for_new) + 1;
}

}  // namespace sluice
