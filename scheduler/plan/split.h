#pragma once

namespace sluice {

// How many layers each stage gets.
enum class Split {
  kEven,      // as many layers for each (SplitEvenly)
  kBalanced,  // so that the slowest machine is as fast as can be
};

}  // namespace sluice
