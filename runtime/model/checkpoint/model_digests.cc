#include "runtime/model/checkpoint/model_digests.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "common/content_hash.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr const char* kTextFiles[] = {"added_tokens.json",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "config.json",
                                      "generation_config.json",
                                      "merges.txt",
                                      "special_tokens_map.json",
                                      "tokenizer.json",
                                      "tokenizer.model",
                                      "tokenizer_config.json",
                                      "vocab.json"};
constexpr size_t kMaxTextBytes = size_t{256} << 20;
// Weights of up to this many bytes in total are read whole.
constexpr uint64_t kMaxWholeBytes = uint64_t{1} << 30;
constexpr int64_t kWholeReadBytes = 1 << 20;
// The samples of each file of larger weights.
constexpr int64_t kSamples = 256;
constexpr int64_t kSampleBytes = 4096;

// Adds the file's content or, if not `whole`, a sample of it and the time of
// its last change.
absl::Status AddFile(const std::string& path, bool whole, ContentHash* hash) {
  const auto lost = [&] { return DataLoss(path, " cannot be read"); };
  const auto add = [&](const void* bytes, size_t size) {
    hash->Add({static_cast<const char*>(bytes), size});
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    if (fd >= 0) close(fd);
    return lost();
  }
  const int64_t size = info.st_size;
  add(&size, sizeof(size));
  if (!whole) {
    const int64_t changed[] = {info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    add(changed, sizeof(changed));
  }
  std::vector<char> buffer(whole ? kWholeReadBytes : kSampleBytes);
  int64_t done = 0;  // samples of a small file do not overlap
  for (int64_t i = 0; done < size && (whole || i < kSamples); ++i) {
    const int64_t at = whole ? done : std::max(done, size / kSamples * i);
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), at);
    if (n <= 0) {
      close(fd);
      return lost();
    }
    add(buffer.data(), static_cast<size_t>(n));
    done = at + n;
  }
  close(fd);
  return absl::OkStatus();
}

absl::StatusOr<std::string> WeightsDigest(const ModelDir& model) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsSource> tensors,
                          model.OpenTensors());
  const std::vector<SafetensorsSource::FileInfo> files = tensors->Files();
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes;
  ContentHash hash;
  hash.Add(tensors->Fingerprint(model.config()));
  for (const auto& file : files) {
    SLUICE_RETURN_IF_ERROR(AddFile(file.path, bytes <= kMaxWholeBytes, &hash));
  }
  return hash.Hex();
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ModelDigests(
    const ModelDir& model, bool dummy) {
  std::map<std::string, std::string> digests;
  for (const char* name : kTextFiles) {
    const std::filesystem::path path = model.path() / name;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            ReadSmallFile(path, kMaxTextBytes));
    digests[name] = HexHash(text);
  }
  if (!dummy) {
    SLUICE_ASSIGN_OR_RETURN(digests["weights"], WeightsDigest(model));
  }
  return digests;
}

}  // namespace sluice
