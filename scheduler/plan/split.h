#pragma once

namespace sluice {

// The rules by which stages get their layers.
enum class Split {
  kEven,      // as many layers for each (SplitEvenly)
  kBalanced,  // so that the slowest machine is as fast as can be
};

}  // namespace sluice
