#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "runtime/model/checkpoint/safetensors_header.h"
#include "runtime/model/checkpoint/tensor_source.h"

namespace sluice {

// Tensors of model.safetensors, or else of the shards that
// model.safetensors.index.json names. F32, F16 and BF16 are read as float32.
//
// Names are looked up as given and then in the spelling of other savers:
// without the leading "model." (a bare backbone), and, for a tied pair, under
// the other's name.
class SafetensorsSource final : public TensorSource {
 public:
  // Opens all files and checks all headers. kNotFound if the directory has no
  // weights, kInvalidArgument for a header or index that breaks the format or
  // for a shard that is missing.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> Open(
      const std::filesystem::path& model_dir);
  ~SafetensorsSource() override;

  absl::Status ReadRows(const TensorRef& ref, int64_t row_begin,
                        int64_t row_end, float* out) const override;
  absl::Status Check(const TensorRef& ref) const override;
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override;

  // ContentId() of files with these hashes, in order of name.
  static std::string IdOf(const std::vector<std::string>& hashes);

  // Whether the checkpoint has a tensor of this name (or its other spelling).
  bool Has(const std::string& name) const;
  // Whether two tensors have the same dtype, shape and bytes.
  absl::StatusOr<bool> SameData(const std::string& a,
                                const std::string& b) const;
  struct FileInfo {
    std::string name;
    std::string path;
    int fd;  // open as long as the source lives
    uint64_t bytes;
  };
  // The files in order of name.
  std::vector<FileInfo> Files() const;
  // Bytes [begin, end) of a file.
  struct Extent {
    std::string file;  // name
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Returns where a tensor is; the errors of Check.
  absl::StatusOr<Extent> Locate(const TensorRef& ref) const;
  // Where the headers are, with their lengths, in order of name.
  std::vector<Extent> Headers() const;
  // The hex SHA-256 over `config` and, per file in order of name, its name,
  // header and size.
  std::string Fingerprint(absl::string_view config) const;

 private:
  struct File {
    std::string name;
    std::string path;
    int fd = -1;
    uint64_t bytes = 0;
    uint64_t data_offset = 0;
    std::string header_digest;
    SafetensorsHeader header;
  };
  struct Location {
    const File* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  SafetensorsSource() = default;
  absl::Status OpenFile(const std::filesystem::path& path);
  absl::Status OpenShards(const std::filesystem::path& model_dir,
                          const std::filesystem::path& index_path);
  Location FindName(const std::string& name) const;
  absl::StatusOr<Location> Find(const TensorRef& ref) const;

  std::filesystem::path dir_;
  std::vector<std::unique_ptr<File>> files_;
  absl::flat_hash_map<std::string, Location> tensors_;
};

}  // namespace sluice
