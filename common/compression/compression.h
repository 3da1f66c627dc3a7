#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

enum class Compression { kNone, kGzip, kZstd };

// What a file's name says of it: .gz is gzip, .zst is zstd, in any case.
Compression CompressionOfName(absl::string_view name);
// The name without such an ending.
absl::string_view WithoutCompression(absl::string_view name);

// One way to decompress. Thread-compatible.
class Decompressor {
 public:
  virtual ~Decompressor() = default;
  // Takes bytes from `*data`, which it moves past them, and makes up to `size`
  // bytes at `out`. Returns how many; 0 if it needs more data. kDataLoss if the
  // data is damaged.
  virtual absl::StatusOr<size_t> Read(absl::string_view* data, char* out,
                                      size_t size) = 0;
  // Whether the data may end here.
  virtual bool may_end() const = 0;
};

// Reads a source that may be compressed, by gzip (one member or several) or
// zstd (one frame or several, a window of at most 128 MiB). Its first bytes say
// what it is. Thread-compatible.
class DecompressingReader {
 public:
  // Reads up to `size` bytes of the source; returns 0 at its end.
  using Source = std::function<absl::StatusOr<size_t>(char* data, size_t size)>;
  explicit DecompressingReader(Source source);

  // Reads up to `size` bytes; returns 0 at the end. The source's errors;
  // kDataLoss if the compressed data is damaged or ends too early. An error
  // stays.
  absl::StatusOr<size_t> Read(char* out, size_t size);

 private:
  absl::Status Detect();
  absl::Status Fill();
  absl::StatusOr<size_t> TryRead(char* out, size_t size);

  const Source source_;
  std::vector<char> buffer_;
  absl::string_view data_;  // in buffer_, not used yet
  bool detected_ = false;
  bool ended_ = false;                          // the source
  std::unique_ptr<Decompressor> decompressor_;  // null: nothing to do
  absl::Status status_;
};

// Compresses a stream. All calls append to `*out`; kInternal if the library
// fails. Thread-compatible.
class Compressor {
 public:
  // REQUIRES: not kNone.
  static std::unique_ptr<Compressor> Make(Compression compression);
  virtual ~Compressor() = default;

  absl::Status Add(absl::string_view data, std::string* out) {
    return Run(data, Mode::kGoOn, out);
  }
  // Makes all that was added readable, at the price of some bytes.
  absl::Status Flush(std::string* out) { return Run("", Mode::kFlush, out); }
  // Ends the member or frame. REQUIRES: no call behind it.
  absl::Status Finish(std::string* out) { return Run("", Mode::kFinish, out); }

 protected:
  enum class Mode { kGoOn, kFlush, kFinish };
  virtual absl::Status Run(absl::string_view data, Mode mode,
                           std::string* out) = 0;
};

}  // namespace sluice
