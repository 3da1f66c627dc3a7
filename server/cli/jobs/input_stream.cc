#include "server/cli/jobs/input_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kStreamBytes = size_t{64} << 10;

}  // namespace

absl::StatusOr<FileDescriptor> OpenInput(const std::string& path) {
  FileDescriptor fd(
      path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                  : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.open()) return fd;
  return InvalidArgument("can't read the input ", path, ": ", strerror(errno));
}

absl::StatusOr<size_t> ReadInput(int fd, const std::string& name, char* data,
                                 size_t size, const StopSignals& signals) {
  while (true) {
    SLUICE_RETURN_IF_ERROR(signals.WaitToRead(fd));
    const ssize_t n = read(fd, data, size);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR || errno == EAGAIN) continue;
    return InvalidArgument("can't read the input ", name, ": ",
                           strerror(errno));
  }
}

InputStream::Buffer::Buffer(FileDescriptor fd, std::string name,
                            const StopSignals* signals)
    : fd_(std::move(fd)),
      name_(std::move(name)),
      reader_([this, signals](char* data, size_t size) {
        return ReadInput(fd_.get(), name_, data, size, *signals);
      }),
      data_(kStreamBytes) {}

InputStream::Buffer::int_type InputStream::Buffer::underflow() {
  const absl::StatusOr<size_t> read = reader_.Read(data_.data(), data_.size());
  status_ = absl::IsDataLoss(read.status())
                ? DataLoss("can't read the input ", name_, ": ",
                           read.status().message())
                : read.status();
  if (!read.ok()) throw std::runtime_error(std::string(status_.message()));
  if (*read == 0) return traits_type::eof();
  setg(data_.data(), data_.data(), data_.data() + *read);
  return traits_type::to_int_type(data_.front());
}

}  // namespace sluice
