#pragma once

#include <cublasLt.h>

#include "tests/cuda/emulation/streams.h"

namespace sluice::emulation {

// As long as it lives, streams do their work when SLUICE_TEST_TIMING says, and
// only one algorithm is offered for products, so that nothing depends on how
// long they took.
class SteadyTest {
 public:
  SteadyTest() {
    OfferAlgorithms(1 << 2);
    SetTimingOfTheTest();
  }
  ~SteadyTest() {
    SetTiming(Timing::kAtOnce);
    OfferAlgorithms(7);
  }
  SteadyTest(const SteadyTest&) = delete;
  SteadyTest& operator=(const SteadyTest&) = delete;
};

}  // namespace sluice::emulation
