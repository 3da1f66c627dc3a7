#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compression/compression.h"

namespace sluice {

class StopSignals;

// A file that a command writes. An existing file stays as it is until the new
// one is complete: that is written beside the target, as TARGET.sluice-partial,
// and replaces it at Commit(). Targets that can't be replaced (stdout, pipes,
// devices, a file that is a mount point or whose folder takes no other) are
// written directly, from Open() on. Thread-compatible.
class OutputFile {
 public:
  // Checks that `path` can be written, and changes nothing. "-" is stdout; a
  // symbolic link stands for its target. `flag` (as "--output") names it in
  // messages. kInvalidArgument for a directory, a folder that is missing, a
  // file that may not be written, or a name that promises a compressed one:
  // with `may_compress`, .gz and .zst are kept, others not.
  // Once a command is asked to stop, a pipe whose reader does not read is not
  // waited for: kCancelled. `signals` may be null, and must outlive the file.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Plan(
      const std::string& path, const std::string& flag,
      const StopSignals* signals = nullptr, bool may_compress = false);
  // Removes the file if it was not committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Begins to write: an empty file, or, to append, the target itself.
  // kFailedPrecondition if another process is writing the same.
  absl::Status Open(bool append = false);
  // Opens first if need be. kResourceExhausted when the disk is full.
  absl::Status Write(absl::string_view data);
  // Flushes, so that others can read the written data.
  absl::Status Flush();
  // Replaces the target by the file, synced to disk, or, if it can't be
  // replaced after all, writes the target. REQUIRES: no later Write.
  absl::Status Commit();

  // The path that the user gave; "-" for stdout.
  const std::string& path() const { return path_; }
  const std::string& flag() const { return flag_; }
  // The final path; "" for stdout.
  const std::string& target() const { return target_; }
  // Whether it is a file or will be one: it is no stdout, pipe or device.
  bool is_file() const { return is_file_; }
  // Whether another file can be made beside it.
  bool folder_writable() const { return is_file_ && folder_writable_; }
  // Whether it writes to a terminal. Known once it is open.
  bool is_terminal() const { return terminal_; }
  // Whether it is appended to a file that was not empty. Known once it is open.
  bool continues() const { return continues_; }

 private:
  OutputFile(std::string path, std::string flag, const StopSignals* signals)
      : path_(std::move(path)), flag_(std::move(flag)), signals_(signals) {}
  absl::StatusOr<int> OpenTarget(bool append) const;
  absl::Status OpenPartial();
  absl::Status OpenInPlace();
  absl::Status CopyInPlace();
  // Writes what is buffered.
  absl::Status WriteBuffer();
  absl::Status Error(absl::string_view what, int error) const;
  absl::Status BeingWritten() const;

  const std::string path_;
  const std::string flag_;
  const StopSignals* const signals_;
  std::string target_;
  std::string partial_;
  bool is_file_ = false;
  bool in_place_ = false;  // a file that can't be replaced
  bool folder_writable_ = true;
  bool open_ = false;
  bool terminal_ = false;
  bool continues_ = false;
  bool committed_ = false;
  int fd_ = -1;
  std::string buffer_;
  std::unique_ptr<Compressor> compressor_;  // or null
};

// Writes a whole file at once.
absl::Status WriteOutputFile(const std::string& path, const std::string& flag,
                             absl::string_view data);

// An input file that the user gave, "-" being stdin, and its flag.
struct NamedInput {
  std::string path;
  std::string flag;
};

// kInvalidArgument if an output is the same file as an input or another output,
// also by different names and links. Null outputs are left out.
absl::Status CheckDistinct(const std::vector<NamedInput>& inputs,
                           const std::vector<const OutputFile*>& outputs);

}  // namespace sluice
