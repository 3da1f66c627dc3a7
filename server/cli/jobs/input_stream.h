#pragma once

#include <cstddef>
#include <istream>
#include <streambuf>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/compression/compression.h"
#include "common/host/file_descriptor.h"
#include "common/host/stop_signals.h"

namespace sluice {

// Opens a command's input for reading, "-" being stdin. A named pipe that
// nobody writes to yet is open at once: reading waits. kInvalidArgument names
// the file.
absl::StatusOr<FileDescriptor> OpenInput(const std::string& path);

// Reads up to `size` bytes; 0 at the end. Waits for what a pipe gives, but not
// once the command is asked to stop: kCancelled. kInvalidArgument names the
// input if it can't be read.
absl::StatusOr<size_t> ReadInput(int fd, const std::string& name, char* data,
                                 size_t size, const StopSignals& signals);

// An input as a stream, decompressed if it is gzip or zstd. It is bad() after
// an error, and once the command is asked to stop: what was read is not all
// then, and status() says why. Thread-compatible.
class InputStream : public std::istream {
 public:
  // `signals` must outlive the stream.
  InputStream(FileDescriptor fd, std::string name, const StopSignals* signals)
      : std::istream(nullptr),
        buffer_(std::move(fd), std::move(name), signals) {
    rdbuf(&buffer_);
  }
  const absl::Status& status() const { return buffer_.status(); }

 private:
  class Buffer : public std::streambuf {
   public:
    Buffer(FileDescriptor fd, std::string name, const StopSignals* signals);
    const absl::Status& status() const { return status_; }

   protected:
    // An exception makes the stream bad.
    int_type underflow() override;

   private:
    const FileDescriptor fd_;
    const std::string name_;
    DecompressingReader reader_;
    std::vector<char> data_;
    absl::Status status_;
  };

  Buffer buffer_;
};

}  // namespace sluice
