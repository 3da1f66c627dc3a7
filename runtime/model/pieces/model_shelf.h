#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/piece_reader.h"
#include "runtime/model/checkpoint/content_check.h"

namespace sluice {

// The weight files of a model, as far as they are hashed.
// Thread-safe.
class ModelShelf : public PieceShelf {
 public:
  // `content`, which must outlive the shelf, is that of `dir`: a
  // directory, or a GGUF file.
  ModelShelf(std::filesystem::path dir, const ContentCheck* content)
      : dir_(std::move(dir)), content_(content) {}
  absl::StatusOr<std::shared_ptr<PieceReader>> Find(
      const PiecedFile& file) override;

 private:
  const std::filesystem::path dir_;
  const ContentCheck* const content_;
};

}  // namespace sluice
