#pragma once

#include <compare>
#include <cstdint>

namespace sluice {

// An integer that does not mix with other integers: StrongInt<JobIdTag> and
// StrongInt<StageIdTag> do not compare. Hashable by absl, printable by
// absl::StrCat through value().
template <typename Tag, typename Rep = int64_t>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongInt v) {
    return H::combine(std::move(h), v.value_);
  }

 private:
  Rep value_ = 0;
};

}  // namespace sluice
