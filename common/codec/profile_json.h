#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_profile.h"

// A machine's profile as JSON, to be read, edited and written by people: to
// plan for a machine that is yet to be had, take one's own profile and change
// what differs.
//
// Keys are the names of MachineProfile's members, in their order, after
// "version". Curves are lists of points [x, rate]; a number stands for one that
// is level. Number formats have the names of DTypeName, WeightFormatName and
// KvFormatName. What is absent is 0, empty or the member's default. Comments
// (// and /* */) are allowed.

namespace sluice {

// More text than any profile has.
inline constexpr size_t kMostProfileBytes = size_t{4} << 20;

// One line for what is small, two blanks for each level; ends in a line end.
// Numbers are written so that they read back the same.
std::string ProfileToJson(const MachineProfile& profile);

// kInvalidArgument names what is wrong by its path ("disk.rates[1].depth:
// ..."): no JSON, another version, a key that is unknown or there twice, a
// value of the wrong type, or one that MachineProfile::Check refuses.
absl::StatusOr<MachineProfile> ProfileFromJson(absl::string_view text);

// The same of a file, which the message names. kNotFound; kFailedPrecondition
// for what cannot be read or is no file.
absl::StatusOr<MachineProfile> ReadProfileFile(const std::string& path);

// Writes a file beside `path` and puts it in its place, so that no reader sees
// half of it. Errors name the path.
absl::Status WriteProfileFile(const MachineProfile& profile,
                              const std::string& path);

}  // namespace sluice
