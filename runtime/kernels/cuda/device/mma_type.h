#pragma once

namespace sluice {

// The types that tensor cores multiply.
enum class MmaType { kHalf, kBFloat16 };

}  // namespace sluice
