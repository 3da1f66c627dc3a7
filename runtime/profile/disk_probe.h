#pragma once

#include <atomic>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Measures the disk of `dir` through IoEngine, as the runtime uses it: large
// sequential requests of IoEngine's default size and depth, past the page
// cache; then other sizes and depths. The file has no name and is deleted with
// the call in any case. It is as large as fits into `disk` and into a part of
// the free space, up to 1 GiB, and no larger than can be written within the
// time. Takes about `seconds`, and up to 64 MiB of `memory`.
//
// kResourceExhausted if there is no room for a file worth measuring (16 MiB);
// the errors of DiskFile.
absl::StatusOr<DiskProfile> MeasureDisk(const std::string& dir,
                                        MemoryBudget* disk,
                                        MemoryBudget* memory, double seconds,
                                        const std::atomic<bool>* cancelled);

// Measures bytes per second of reads like the runtime's, while `body` is called
// repeatedly on this thread, for about `seconds`. Returns MeasureDisk's errors,
// and the body's.
absl::StatusOr<double> MeasureDiskBeside(absl::FunctionRef<absl::Status()> body,
                                         const std::string& dir,
                                         MemoryBudget* disk,
                                         MemoryBudget* memory, double seconds,
                                         const std::atomic<bool>* cancelled);

}  // namespace sluice
