#pragma once

#include <string>

namespace sluice {

// The folder tests/ of the sources. It is not a macro, so that the objects of
// tests are the same in every checkout and a compiler's cache can share them.
std::string TestsDir();
// The folder of the built programs.
std::string BinDir();

}  // namespace sluice
