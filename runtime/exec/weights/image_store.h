#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/weights/image_file.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

class PackedWeights;

// The images of one model's weights in the form of one backend, in a directory
// that is named by what they depend on: the tensors' content and
// PackedWeights::ImageKey(). An image is made when it is first wanted, and from
// then on shared by all stages and runs.
class ImageStore {
 public:
  struct Options {
    // All pointers must outlive the store.
    const PackedWeights* weights = nullptr;
    const TensorSource* source = nullptr;
    std::string disk_dir;
    MemoryBudget* memory = nullptr;  // an image that is being made
    MemoryBudget* disk = nullptr;    // images that are made, or open
  };
  // Hashes the tensors if that was not done before, and calls `progress` then
  // as TensorSource::ContentId does. Its errors, and those of making a
  // directory.
  static absl::StatusOr<std::unique_ptr<ImageStore>> Create(
      const Options& options, TensorSource::Progress progress);

  // Removes what processes that are gone left unfinished in `disk_dir`, of any
  // model. To be called when a process begins to use the directory.
  static void RemoveOrphans(const std::string& disk_dir);

  // Returns the bytes that whole images in `disk_dir`, of any model, take on
  // disk; 0 if there are none.
  static uint64_t DiskBytes(const std::string& disk_dir);

  // Fills a window of the image (ImageFile::Write says how large they are).
  using Pack = ImageFile::Fill;
  // Reads what the caller wants to have at once, and checks it.
  using Use = absl::FunctionRef<absl::Status(const ImageFile& image)>;
  // Opens image `name` and lets `use` have it. If there is none, or open or use
  // find it damaged or of another kind (kNotFound, kFailedPrecondition,
  // kDataLoss), it is made (again, with a warning) by `pack`, and used then.
  absl::StatusOr<std::unique_ptr<ImageFile>> Get(const std::string& name,
                                                 size_t bytes, Pack pack,
                                                 Use use) const;

 private:
  ImageStore(const Options& options, std::string key, std::filesystem::path dir)
      : options_(options), key_(std::move(key)), dir_(std::move(dir)) {}

  const Options options_;
  const std::string key_;
  const std::filesystem::path dir_;
};

}  // namespace sluice
