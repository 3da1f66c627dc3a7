#pragma once

#include <string>

namespace sluice {

// The release, as "0.1.0".
const char* ReleaseVersion();
// The commit of this build, 12 digits, with "-dirty" behind if files differed
// from it; "unknown" without Git.
const char* BuildCommit();
// Release and commit, as "0.1.0+1a2b3c4d5e6f", which identify a build.
std::string BuildVersion();

}  // namespace sluice
