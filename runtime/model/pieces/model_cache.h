#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/piece_reader.h"
#include "common/threads/mutex.h"
#include "runtime/model/checkpoint/model_content.h"
#include "runtime/model/checkpoint/safetensors_source.h"
#include "runtime/model/pieces/piece_file.h"
#include "runtime/model/pieces/stage_pieces.h"

namespace sluice {

// kInvalidArgument unless each name can be that of a file of a model's
// directory, there are not too many, the sizes are possible, all hashes known,
// the copies are a CopiesText, and `config` is config.json's text.
absl::Status CheckFetchable(const ModelContent& content,
                            const std::string& config);

// A model of which pieces are here, in a directory. What is open stays readable
// when the directory is removed, but is of no use to others. Other processes
// neither remove it nor drop its pieces as long as this lives. Thread-safe.
class CachedModel {
 public:
  ~CachedModel();
  const ModelContent& content() const { return content_; }
  const std::filesystem::path& path() const { return path_; }

  // Returns null as long as the hashes of the file's pieces are not known.
  std::shared_ptr<PieceFile> Find(const std::string& name);
  // Opens a file whose pieces have these hashes. kDataLoss if they are not
  // those of content(); PieceFile::Open's errors.
  absl::StatusOr<std::shared_ptr<PieceFile>> Add(const std::string& name,
                                                 PieceListPtr list);
  // Opens the tensors of these weight files, of which the headers must be
  // present, and which must be open. Every byte is checked as it is read.
  absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenTensors(
      const std::vector<std::string>& names);
  // Whether all files are where they were opened, as far as can be told.
  bool InPlace() const;
  // To be called when a piece was not what it should be: see PieceFile.
  void Doubt();

 private:
  friend class ModelCache;
  CachedModel(std::filesystem::path path, const ModelContent& content)
      : path_(std::move(path)), content_(content) {}
  absl::Status Open(const std::string& config);
  // Opens a file whose hashes are here; null if they are not.
  std::shared_ptr<PieceFile> OpenKnown(const std::string& name, bool only_user);
  std::vector<std::shared_ptr<PieceFile>> files() const;
  // Locks the directory so that nobody else uses it, if nobody does.
  bool LockAlone();
  void LockShared();
  // Drops all pieces but these.
  absl::Status DropBut(const PiecesByFile& wanted);

  const std::filesystem::path path_;
  const ModelContent content_;
  QuantizationConfig quantization_;
  int lock_fd_ = -1;
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<PieceFile>> files_ ABSL_GUARDED_BY(mu_);
};

// A directory with models, or parts of them, which processes share: each model
// in a directory that is named by its content. Takes no more space than it may:
// models that nobody uses go first, those longest unused before others.
// Thread-safe.
class ModelCache {
 public:
  struct Options {
    std::filesystem::path dir;
    uint64_t max_bytes = 0;  // 0: 90 % of what is free there or taken by it
  };
  // Makes the directory. Errors name it.
  static absl::StatusOr<std::unique_ptr<ModelCache>> Create(Options options);

  // Opens the model, which is made if it is not there. CheckFetchable's errors.
  absl::StatusOr<std::shared_ptr<CachedModel>> Open(const ModelContent& content,
                                                    const std::string& config);

  // Makes room for these pieces, by removing others if necessary, and sets it
  // aside. kResourceExhausted says what is missing where; kCancelled.
  absl::Status Reserve(CachedModel* model, const PiecesByFile& wanted,
                       const std::atomic<bool>* cancelled);

  // The bytes on disk of all models here.
  uint64_t UsedBytes() const;

 private:
  explicit ModelCache(Options options) : options_(std::move(options)) {}
  // Removes the model that was not used for longest and that nobody uses;
  // returns whether there was one.
  bool RemoveOldest() const;

  const Options options_;
};

}  // namespace sluice
