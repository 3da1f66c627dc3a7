#include "runtime/model/checkpoint/safetensors_source.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/float16.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/content_hashes.h"
#include "runtime/model/json_file.h"

namespace sluice {
namespace {

// The format is little-endian, as are all supported machines.
static_assert(std::endian::native == std::endian::little);

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kTokenEmbedding[] = "embed_tokens.weight";
constexpr char kHeadName[] = "lm_head.weight";
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kMaxShards = 10000;
constexpr uint64_t kPointerBytes = 32;  // of a Git LFS pointer's beginning

// Reads exactly `bytes` at `offset`.
absl::Status ReadAt(int fd, const std::string& path, uint64_t offset,
                    size_t bytes, void* out) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return DataLoss(path, ": cannot read: ", std::strerror(errno));
    }
    if (n == 0) {
      return DataLoss(path, ": ends at ", offset,
                      ", where more data was expected");
    }
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
  }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  // The length comes first, so that neighbouring fields stay distinct.
  void AddField(absl::string_view field) {
    const uint64_t size = field.size();
    EVP_DigestUpdate(context_, &size, sizeof(size));
    EVP_DigestUpdate(context_, field.data(), field.size());
  }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_, digest, &size);
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest), size));
  }

 private:
  EVP_MD_CTX* context_;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Shard names come from the index: they must be plain names of files of the
// same directory.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

}  // namespace

SafetensorsSource::~SafetensorsSource() {
  for (const auto& file : files_) {
    if (file->fd >= 0) close(file->fd);
  }
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> SafetensorsSource::Open(
    const std::filesystem::path& model_dir) {
  std::unique_ptr<SafetensorsSource> source(new SafetensorsSource());
  source->dir_ = model_dir;
  std::error_code ignored;
  if (std::filesystem::exists(model_dir / kSingleFile, ignored)) {
    SLUICE_RETURN_IF_ERROR(source->OpenFile(model_dir / kSingleFile));
  } else if (std::filesystem::exists(model_dir / kIndexFile, ignored)) {
    SLUICE_RETURN_IF_ERROR(
        source->OpenShards(model_dir, model_dir / kIndexFile));
  } else {
    const bool pickled =
        std::filesystem::exists(model_dir / "pytorch_model.bin", ignored) ||
        std::filesystem::exists(model_dir / "pytorch_model.bin.index.json",
                                ignored);
    return NotFound(
        model_dir.string(), ": no weights: neither ", kSingleFile, " nor ",
        kIndexFile,
        pickled ? " (pytorch_model.bin is not read: save the model with "
                  "safe_serialization=True)"
                : "");
  }
  return source;
}

absl::Status SafetensorsSource::OpenFile(const std::filesystem::path& path) {
  auto file = std::make_unique<File>();
  file->name = path.filename().string();
  file->path = path.string();
  // With O_NONBLOCK, opening a FIFO does not wait for a writer.
  file->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0) {
    return InvalidArgument(file->path, ": cannot open: ", std::strerror(errno));
  }
  files_.push_back(std::move(file));
  File& f = *files_.back();
  struct stat info;
  if (fstat(f.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument(f.path, ": not a regular file");
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  uint64_t header_bytes = 0;
  f.bytes = file_bytes;
  if (file_bytes < sizeof(header_bytes)) {
    return InvalidArgument(f.path, ": ", file_bytes,
                           " bytes are too few for a safetensors file");
  }
  SLUICE_RETURN_IF_ERROR(
      ReadAt(f.fd, f.path, 0, sizeof(header_bytes), &header_bytes));
  if (header_bytes > file_bytes - sizeof(header_bytes) ||
      header_bytes > kMaxSafetensorsHeaderBytes) {
    // A Git LFS pointer's first letters, read as a length, exceed any file.
    std::string beginning(std::min<uint64_t>(file_bytes, kPointerBytes), '\0');
    SLUICE_RETURN_IF_ERROR(
        ReadAt(f.fd, f.path, 0, beginning.size(), beginning.data()));
    if (IsLfsPointer(beginning)) {
      return InvalidArgument(f.path, ": ", kLfsPointerAdvice);
    }
    return InvalidArgument(
        f.path, ": header length ", header_bytes, " is beyond the file (",
        file_bytes, " bytes) or the limit of ", kMaxSafetensorsHeaderBytes);
  }
  std::string text(header_bytes, '\0');
  SLUICE_RETURN_IF_ERROR(
      ReadAt(f.fd, f.path, sizeof(header_bytes), text.size(), text.data()));
  f.data_offset = sizeof(header_bytes) + header_bytes;
  SLUICE_ASSIGN_OR_RETURN(
      f.header,
      Annotate(ParseSafetensorsHeader(text, file_bytes - f.data_offset),
               f.path));
  Sha256 digest;
  digest.AddField(text);
  digest.AddField(absl::StrCat(file_bytes));
  f.header_digest = digest.Hex();

  for (const auto& [name, entry] : f.header) {
    const auto [it, inserted] = tensors_.emplace(name, Location{&f, &entry});
    if (!inserted) {
      return InvalidArgument(f.path, ": ", name, " is also in ",
                             it->second.file->path);
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsSource::OpenShards(
    const std::filesystem::path& model_dir,
    const std::filesystem::path& index_path) {
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json index,
                          ReadJsonObject(index_path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    return InvalidArgument(index_path.string(),
                           ": weight_map must be an object with tensors");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get<std::string>())) {
      return InvalidArgument(
          index_path.string(), ": weight_map.", tensor,
          " must be the name of a file in the same directory");
    }
    shards.insert(shard.get<std::string>());
  }
  if (shards.size() > kMaxShards) {
    return InvalidArgument(index_path.string(), ": ", shards.size(),
                           " shards, but at most ", kMaxShards,
                           " are accepted");
  }
  for (const std::string& shard : shards) {
    SLUICE_RETURN_IF_ERROR(OpenFile(model_dir / shard));
  }
  for (const auto& [tensor, shard] : map->items()) {
    const auto it = tensors_.find(tensor);
    if (it == tensors_.end() ||
        it->second.file->name != shard.get<std::string>()) {
      return InvalidArgument(index_path.string(), ": ", tensor, " is not in ",
                             shard.get<std::string>());
    }
  }
  return absl::OkStatus();
}

SafetensorsSource::Location SafetensorsSource::FindName(
    const std::string& name) const {
  auto it = tensors_.find(name);
  absl::string_view bare = name;
  if (it == tensors_.end() && absl::ConsumePrefix(&bare, "model.")) {
    it = tensors_.find(std::string(bare));
  }
  return it == tensors_.end() ? Location{} : it->second;
}

bool SafetensorsSource::Has(const std::string& name) const {
  return FindName(name).file != nullptr;
}

absl::StatusOr<SafetensorsSource::Location> SafetensorsSource::Find(
    const TensorRef& ref) const {
  Location location = FindName(ref.name);
  // Tied weights are one tensor, which a saver may have kept under the head's
  // name.
  if (location.file == nullptr &&
      (ref.role == TensorRole::kEmbedding || ref.role == TensorRole::kHead) &&
      absl::EndsWith(ref.name, kTokenEmbedding)) {
    location = FindName(kHeadName);
  }
  if (location.file == nullptr) {
    return NotFound(
        files_.size() == 1 ? files_[0]->path : (dir_ / kIndexFile).string(),
        ": no tensor ", ref.name);
  }
  const SafetensorsEntry& entry = *location.entry;
  if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16") {
    return InvalidArgument(location.file->path, ": ", ref.name, " has dtype ",
                           entry.dtype, "; F32, F16 and BF16 are supported");
  }
  if (entry.shape != ref.shape) {
    return InvalidArgument(location.file->path, ": ", ref.name, " has shape ",
                           ShapeText(entry.shape),
                           ", but config.json asks for ", ShapeText(ref.shape));
  }
  return location;
}

absl::Status SafetensorsSource::Check(const TensorRef& ref) const {
  return Find(ref).status();
}

absl::Status SafetensorsSource::ReadRows(const TensorRef& ref,
                                         int64_t row_begin, int64_t row_end,
                                         float* out) const {
  SLUICE_ASSIGN_OR_RETURN(const Location location, Find(ref));
  const File& file = *location.file;
  const SafetensorsEntry& entry = *location.entry;
  const int64_t rows = ref.shape.size() < 2 ? 1 : ref.shape[0];
  if (row_begin < 0 || row_begin > row_end || row_end > rows) {
    return InvalidArgument(file.path, ": ", ref.name, ": rows [", row_begin,
                           ", ", row_end, ") of ", rows);
  }
  if (row_begin == row_end) return absl::OkStatus();
  const uint64_t row_bytes =
      (entry.end - entry.begin) / static_cast<uint64_t>(rows);
  uint64_t offset = file.data_offset + entry.begin +
                    static_cast<uint64_t>(row_begin) * row_bytes;
  uint64_t left = static_cast<uint64_t>(row_end - row_begin) * row_bytes;
  const auto read = [&](uint64_t bytes, void* to) {
    return Annotate(ReadAt(file.fd, file.path, offset, bytes, to),
                    absl::StrCat("tensor ", ref.name));
  };
  if (entry.dtype == "F32") return read(left, out);

  std::vector<uint16_t> chunk(std::min<uint64_t>(left, kChunkBytes) / 2);
  const bool is_bf16 = entry.dtype == "BF16";
  while (left > 0) {
    const uint64_t bytes = std::min<uint64_t>(left, chunk.size() * 2);
    SLUICE_RETURN_IF_ERROR(read(bytes, chunk.data()));
    const size_t n = bytes / 2;
    if (is_bf16) {
      for (size_t i = 0; i < n; ++i) out[i] = BFloat16ToFloat(chunk[i]);
    } else {
      for (size_t i = 0; i < n; ++i) out[i] = Float16ToFloat(chunk[i]);
    }
    out += n;
    offset += bytes;
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsSource::ContentId(
    const std::string& cache_file, Progress progress) const {
  ContentHashes hashes(cache_file);
  std::vector<std::string> found;
  // Files are opened in order of name.
  for (const auto& file : files_) {
    SLUICE_ASSIGN_OR_RETURN(ContentHashes::File hashed,
                            hashes.Of(file->path, file->fd, progress));
    found.push_back(std::move(hashed.hash));
  }
  return IdOf(found);
}

std::string SafetensorsSource::IdOf(const std::vector<std::string>& hashes) {
  Sha256 digest;
  for (const std::string& hash : hashes) digest.AddField(hash);
  return digest.Hex();
}

absl::StatusOr<bool> SafetensorsSource::SameData(const std::string& a,
                                                 const std::string& b) const {
  const Location x = FindName(a);
  const Location y = FindName(b);
  if (x.file == nullptr || y.file == nullptr) {
    return NotFound(dir_.string(), ": no tensor ", x.file ? b : a);
  }
  if (x.entry->dtype != y.entry->dtype || x.entry->shape != y.entry->shape) {
    return false;
  }
  std::string left, right;
  const uint64_t total = x.entry->end - x.entry->begin;
  for (uint64_t done = 0; done < total; done += kChunkBytes) {
    const size_t bytes = std::min<uint64_t>(kChunkBytes, total - done);
    left.resize(bytes);
    right.resize(bytes);
    SLUICE_RETURN_IF_ERROR(ReadAt(x.file->fd, x.file->path,
                                  x.file->data_offset + x.entry->begin + done,
                                  bytes, left.data()));
    SLUICE_RETURN_IF_ERROR(ReadAt(y.file->fd, y.file->path,
                                  y.file->data_offset + y.entry->begin + done,
                                  bytes, right.data()));
    if (left != right) return false;
  }
  return true;
}

std::vector<SafetensorsSource::FileInfo> SafetensorsSource::Files() const {
  std::vector<FileInfo> files;
  for (const auto& file : files_) {
    files.push_back({file->name, file->path, file->fd, file->bytes});
  }
  return files;
}

absl::StatusOr<SafetensorsSource::Extent> SafetensorsSource::Locate(
    const TensorRef& ref) const {
  SLUICE_ASSIGN_OR_RETURN(const Location at, Find(ref));
  return Extent{at.file->name, at.file->data_offset + at.entry->begin,
                at.file->data_offset + at.entry->end};
}

std::vector<SafetensorsSource::Extent> SafetensorsSource::Headers() const {
  std::vector<Extent> headers;
  for (const auto& file : files_) {
    headers.push_back({file->name, 0, file->data_offset});
  }
  return headers;
}

std::string SafetensorsSource::Fingerprint(absl::string_view config) const {
  Sha256 digest;
  digest.AddField(config);
  // Files are opened in order of name.
  for (const auto& file : files_) {
    digest.AddField(file->name);
    digest.AddField(file->header_digest);
  }
  return digest.Hex();
}

}  // namespace sluice
