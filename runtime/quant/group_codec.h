#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

// Group-wise asymmetric quantization (FlexGen, Sheng et al. 2023, section 5,
// "Group-wise quantization"): up to 64 numbers share a scale and a minimum, and
// each is kept as a code of 4 or 8 bits:
//
//   value = (minimum + code * scale) * unit
//
// Scale and minimum are float16. `unit` is a power of two that many groups
// share; it keeps them inside float16's range whatever the size of the numbers.
// Evaluated in float32 this rounds once, in the addition, fused or not: a code
// has at most 8 bits and a scale 11, so that their product is exact.
//
// FlexGen takes the group's smallest and largest number as the ends of the
// range. Here the ends are searched for, such that the sum of squared errors is
// small: from a grid of starts, rounding to codes and fitting scale and minimum
// by least squares alternate. FlexGen's ends are a candidate as well, so that
// no group gets worse. A number within the range, [minimum, minimum + max code
// * scale], is off by at most half a scale. A group of equal numbers is exact
// if float16 holds the number, else off by 2^-20 of it at most. (This does not
// hold with subnormal numbers; from 2^-20 of the largest number that shares the
// unit and from 2^-85 upwards there are none.)

namespace sluice {

inline constexpr int kQuantGroup = 64;

// The bits of two float16 numbers.
struct GroupParams {
  uint16_t scale;
  uint16_t min;
};

// Returns the unit for these numbers. kInvalidArgument if one of them is NaN,
// infinite or beyond 1e30.
absl::StatusOr<float> ChooseQuantUnit(const float* x, size_t count);

// Quantizes `width` groups that lie side by side: group j consists of x[i *
// stride + j] for i in [0, size), 1 <= size <= kQuantGroup. bits: 4 or 8.
// Writes codes[i * width + j] and params[j]. `unit` is ChooseQuantUnit of
// numbers that include these.
void QuantizeGroups(const float* x, size_t stride, int size, int width,
                    int bits, float unit, uint8_t* codes, GroupParams* params);

}  // namespace sluice
