#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"

// A machine's profile as JSON, to be read, edited and written by people: to
// plan for a machine that does not exist yet, edit a copy of a measured
// profile.
//
// Keys are the names of MachineProfile's members, in their order, after
// "version". Curves are lists of points [x, rate]; a number stands for a
// constant curve. Number formats have the names of DTypeName, WeightFormatName
// and KvFormatName. An absent member is 0, empty or its default. Comments (//
// and /* */) are allowed.

namespace sluice {

// The largest profile that is read; real ones are far smaller.
inline constexpr size_t kMaxProfileFileBytes = size_t{4} << 20;

// Small values take one line; each level is indented by two blanks, and the
// text ends in a newline. Numbers are written so that they read back the same.
std::string ProfileToJson(const MachineProfile& profile);

// kInvalidArgument names what is wrong by its path ("disk.rates[1].depth:
// ..."): no JSON, another version, a key that is unknown or there twice, a
// value of the wrong type, or one that MachineProfile::Check refuses.
absl::StatusOr<MachineProfile> ProfileFromJson(absl::string_view text);

// Reads a profile from a file, which errors name. kNotFound if there is none,
// kFailedPrecondition if it is no regular file or cannot be read.
absl::StatusOr<MachineProfile> ReadProfileFile(const std::string& path);

// Writes a temporary file beside `path` and renames it, so that no reader sees
// half of it. Errors name the path.
absl::Status WriteProfileFile(const MachineProfile& profile,
                              const std::string& path);

}  // namespace sluice
