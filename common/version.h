#pragma once

#include <string>

namespace sluice {

// The release, as "0.1.0".
const char* ReleaseVersion();
// The commit that this was built from, 12 digits, with "-dirty" behind if files
// differed from it; "unknown" without Git.
const char* BuildCommit();
// Both, as "0.1.0+1a2b3c4d5e6f": what tells one build from another.
std::string BuildVersion();

}  // namespace sluice
