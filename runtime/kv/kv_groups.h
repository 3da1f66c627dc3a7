#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/tier.h"
#include "runtime/kv/kv_layout.h"

namespace sluice {

// The positions that a layer keeps K and V of: all, or those that a window of
// its attention still shows. The layers of a group have pages of their own.
enum class KvGroup : uint8_t { kAll, kWindow };
inline constexpr size_t kNumKvGroups = 2;
inline constexpr std::array<KvGroup, kNumKvGroups> kKvGroups = {
    KvGroup::kAll, KvGroup::kWindow};

// Something for each group.
template <typename T>
struct ByKvGroup : std::array<T, kNumKvGroups> {
  using std::array<T, kNumKvGroups>::operator[];
  T& operator[](KvGroup group) { return (*this)[static_cast<size_t>(group)]; }
  const T& operator[](KvGroup group) const {
    return (*this)[static_cast<size_t>(group)];
  }
};

// The number of pages in each tier, by group.
using TierPages = std::array<int64_t, kNumTiers>;
using GroupPages = ByKvGroup<TierPages>;

// The groups of a stage's layers.
struct KvGroups {
  struct Layer {
    KvGroup group = KvGroup::kAll;
    int32_t index = 0;  // among the group's layers of the stage
  };
  std::vector<Layer> layers;      // of the stage
  ByKvGroup<int32_t> sizes = {};  // in layers
  int32_t window = 0;             // the largest of group kWindow; 0: none

  // The pages of group kWindow that a sequence has, whatever its length. Its
  // positions take them in turns: page p of the sequence is the one that page
  // p - window_pages() was.
  int32_t window_pages() const {
    return window == 0 ? 0 : PagesOfWindow(window);
  }
  // The first page that holds a position which rows from `start` on attend.
  int32_t FirstPage(KvGroup group, int32_t start) const {
    return group == KvGroup::kAll || start < window
               ? 0
               : (start - window + 1) / kPageTokens;
  }
  // The new positions from `start` on, of `count`, that can be written to a
  // group's pages before any is attended: more would lie where rows of theirs
  // still look.
  int32_t Together(KvGroup group, int32_t start, int32_t count) const {
    if (group == KvGroup::kAll) return count;
    const int64_t end =
        (int64_t{FirstPage(group, start)} + window_pages()) * kPageTokens;
    return static_cast<int32_t>(std::min<int64_t>(count, end - start));
  }
  // Returns the pages of a window and of a quarter of it, within limits, for
  // new positions, wherever they begin.
  static int32_t PagesOfWindow(int32_t window);
};

// The pages of group kWindow that sequences may take in all, and the most that
// one takes, however long it is.
struct WindowRoom {
  int64_t pages = 0;
  int32_t pages_each = 0;  // 0: there is no such group

  // The pages of a sequence that takes so many of the other group.
  int64_t Claim(int64_t pages_of_all) const {
    return std::min<int64_t>(pages_of_all, pages_each);
  }
  // What claims must keep to, to stay within both rooms.
  void Narrow(const WindowRoom& other) {
    if (other.pages_each == 0) return;
    pages = pages_each == 0 ? other.pages : std::min(pages, other.pages);
    pages_each = std::max(pages_each, other.pages_each);
  }
  friend bool operator==(const WindowRoom&, const WindowRoom&) = default;
};

}  // namespace sluice
