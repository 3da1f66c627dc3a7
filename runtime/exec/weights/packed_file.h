#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/memory/disk/disk_file.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/weights/packed_window.h"

namespace sluice {

// One layer's packed unit (or the embedding's, or the head's) on disk, in the
// form that the kernels use:
//
//   header   magic, version, key, packed bytes, granule, number of granules,
//            checksums of the granules, checksum of all that; in disk blocks
//   packed unit    from a block border on
//
// The file is written under a temporary name, synced, and then renamed, so that
// a name always stands for a whole packed unit, and packed units of one key can
// be made by several processes at once. Who writes holds a lock on its
// temporary file, which goes with the process: see RemoveOrphans.
class PackedFile {
 public:
  // `key` says what the bytes depend on. kNotFound: no such file.
  // kFailedPrecondition: another version, key or size. kDataLoss: a damaged
  // header.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(
      const std::filesystem::path& path, const std::string& key,
      size_t packed_bytes);

  // Fills a window of the packed unit.
  using Fill = absl::FunctionRef<absl::Status(const PackedWindow& window)>;
  // Writes the packed unit window by window, each in `memory`: of a size that
  // is a multiple of 64 KiB or at least the packed unit's, aligned for direct
  // I/O. kResourceExhausted if the budget or the disk has no room, or fill's
  // error; then no file is left. Charged while the file is written.
  static absl::Status Write(const std::filesystem::path& path,
                            const std::string& key, size_t packed_bytes,
                            std::span<std::byte> memory, Fill fill,
                            MemoryBudget* budget);

  // Removes the temporary files in `dir` that nobody is writing any more, and
  // says how many there were.
  static int RemoveOrphans(const std::filesystem::path& dir);

  const DiskFile& file() const { return *file_; }
  // The packed unit begins here in the file.
  uint64_t packed_offset() const { return packed_offset_; }
  size_t granule() const { return granule_; }

  // Checks that bytes [offset, offset + data.size()) of the packed unit are
  // what was written; both ends at borders of granules, or the packed unit's
  // end. kDataLoss names the file and the place.
  absl::Status Check(size_t offset, std::span<const std::byte> data) const;

  // Keeps what the file takes charged for as long as it is open.
  void Hold(MemoryCharge charge) { charge_ = std::move(charge); }

  // Takes the file's name away; what is open stays readable.
  void Remove() const;

 private:
  PackedFile() = default;
  std::unique_ptr<DiskFile> file_;
  MemoryCharge charge_;
  uint64_t packed_offset_ = 0;
  size_t granule_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace sluice
