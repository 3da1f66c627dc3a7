#pragma once

namespace sluice {

// What tensor cores multiply.
enum class MmaType { kHalf, kBFloat16 };

}  // namespace sluice
