#include "tests/support/test_paths.h"

namespace sluice {

std::string TestsDir() { return SLUICE_TESTS_DIR; }
std::string BinDir() { return SLUICE_BIN_DIR; }

}  // namespace sluice
