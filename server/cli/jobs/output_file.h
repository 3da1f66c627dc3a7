#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A file that a command writes. What is there already stays as it is until the
// new file is whole: it is written beside the target, as
// TARGET.sluice-partial, and takes its place with Commit(). What can't be
// replaced (stdout, pipes, devices) is written directly. Thread-compatible.
class OutputFile {
 public:
  // Looks whether `path` can be written, and touches nothing. "-" is stdout;
  // of a symbolic link, what it leads to is meant. `flag` (as "--output") names
  // it in messages. kInvalidArgument for a directory, a folder that is missing,
  // or what may not be written.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Plan(
      const std::string& path, const std::string& flag);
  // Removes what was not committed.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Begins to write: an empty file, or, to append, the target itself.
  // kFailedPrecondition if another process is writing the same.
  absl::Status Open(bool append = false);
  // Opens first if need be. kResourceExhausted when the disk is full.
  absl::Status Write(absl::string_view data);
  // What was written can be read by others.
  absl::Status Flush();
  // Makes it the target, safe on disk. Nothing can be written any more.
  absl::Status Commit();

  // As the user named it; "-" for stdout.
  const std::string& path() const { return path_; }
  const std::string& flag() const { return flag_; }
  // Where it comes to be in the end; "" for stdout.
  const std::string& target() const { return target_; }
  // Takes the place of a file, or makes one: no stdout, pipe or device.
  bool replaces() const { return replaces_; }
  // Somebody sees what is written as it comes. Known once it is open.
  bool is_terminal() const { return terminal_; }

 private:
  OutputFile(std::string path, std::string flag)
      : path_(std::move(path)), flag_(std::move(flag)) {}
  absl::Status OpenPartial();
  absl::Status Error(absl::string_view what, int error) const;

  const std::string path_;
  const std::string flag_;
  std::string target_;
  std::string partial_;
  bool replaces_ = false;
  bool open_ = false;
  bool terminal_ = false;
  bool committed_ = false;
  int fd_ = -1;
  std::string buffer_;
};

// Writes all of a file at once.
absl::Status WriteOutputFile(const std::string& path, const std::string& flag,
                             absl::string_view data);

// An input file as the user named it, "-" being stdin, and by which flag.
struct NamedInput {
  std::string path;
  std::string flag;
};

// kInvalidArgument if an output is one file with an input or with another
// output, by whatever names and links. Null outputs are left out.
absl::Status CheckDistinct(const std::vector<NamedInput>& inputs,
                           const std::vector<const OutputFile*>& outputs);

}  // namespace sluice
