#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/weights/packed_file.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

class PackedWeights;

// The packed units of one model's weights in the form of one backend, in a
// directory that is named by what they depend on: the tensors' content and
// PackedWeights::PackedKey(). A packed unit is made when it is first wanted,
// and from then on shared by all stages and runs.
class PackedStore {
 public:
  struct Options {
    // All pointers must outlive the store.
    const PackedWeights* weights = nullptr;
    const TensorSource* source = nullptr;
    std::string disk_dir;
    MemoryBudget* memory = nullptr;  // a packed unit that is being made
    MemoryBudget* disk = nullptr;    // packed units that are made, or open
  };
  // Hashes the tensors if that was not done before, and calls `progress` then
  // as TensorSource::ContentId does. Its errors, and those of making a
  // directory.
  static absl::StatusOr<std::unique_ptr<PackedStore>> Create(
      const Options& options, TensorSource::Progress progress);

  // Removes what processes that are gone left unfinished in `disk_dir`, of any
  // model. To be called when a process begins to use the directory.
  static void RemoveOrphans(const std::string& disk_dir);

  // Returns the bytes that whole packed units in `disk_dir`, of any model, take
  // on disk; 0 if there are none.
  static uint64_t DiskBytes(const std::string& disk_dir);

  // Fills a window of a packed unit (PackedFile::Write says how large it is).
  using Pack = PackedFile::Fill;
  // Reads what the caller wants to have at once, and checks it.
  using Use = absl::FunctionRef<absl::Status(const PackedFile& packed)>;
  // Opens packed unit `name` and lets `use` have it. If there is none, or open
  // or use find it damaged or of another kind (kNotFound, kFailedPrecondition,
  // kDataLoss), it is made (again, with a warning) by `pack`, and used then.
  absl::StatusOr<std::unique_ptr<PackedFile>> Get(const std::string& name,
                                                  size_t bytes, Pack pack,
                                                  Use use) const;

 private:
  PackedStore(const Options& options, std::string key,
              std::filesystem::path dir)
      : options_(options), key_(std::move(key)), dir_(std::move(dir)) {}

  const Options options_;
  const std::string key_;
  const std::filesystem::path dir_;
};

}  // namespace sluice
