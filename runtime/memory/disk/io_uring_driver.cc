#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/threads/thread.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/disk/io_queue.h"

namespace sluice {
namespace {

absl::Status NoUring(const char* what, int error) {
  return Unimplemented("io_uring: ", what, ": ", strerror(error));
}

// One thread that keeps the ring full and reaps it.
//
// It sleeps in the ring. When there is room in the ring, an eventfd that the
// ring polls wakes it for new jobs.
class UringDriver final : public IoDriver {
 public:
  UringDriver(IoQueue* queue, const IoEngine::Options& options)
      : queue_(queue), cores_(options.cores), slots_(options.queue_depth) {
    free_.reserve(slots_.size());
    for (Slot& slot : slots_) free_.push_back(&slot);
    done_.reserve(slots_.size());
  }

  ~UringDriver() override {
    if (ring_made_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  absl::Status Start() {
    // The ring has one entry more for the eventfd.
    const int result = io_uring_queue_init(
        static_cast<unsigned>(slots_.size()) + 1, &ring_, 0);
    if (result < 0) return NoUring("cannot be set up", -result);
    ring_made_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool complete = probe != nullptr &&
                          io_uring_opcode_supported(probe, IORING_OP_READ) &&
                          io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
                          io_uring_opcode_supported(probe, IORING_OP_POLL_ADD);
    io_uring_free_probe(probe);
    if (!complete) return NoUring("the kernel's is too old", ENOSYS);
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return NoUring("no eventfd", errno);
    thread_ = Thread("disk", [this] {
      BindThisThread(cores_);
      Loop();
    });
    return absl::OkStatus();
  }

  void Wake() override {
    if (sleeping_.exchange(false)) {
      const uint64_t one = 1;
      // A write fails only if the counter is full: then the thread is awake.
      [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof one);
    }
  }

  void Stop() override {
    Wake();
    thread_.Join();
  }

 private:
  struct Slot {
    IoRequest request;
    size_t done = 0;
    int retries = 0;
  };

  // The limit for a request that is interrupted again and again.
  static constexpr int kMaxRetries = 100;

  void Loop() {
    bool closed = false;
    while (true) {
      if (!wake_armed_) ArmWake();
      while (!free_.empty()) {
        Slot* slot = free_.back();
        if (!queue_->Take(&slot->request)) break;
        free_.pop_back();
        slot->done = 0;
        slot->retries = 0;
        Prepare(slot);
      }
      Submit();
      // Callbacks, which may take long, run only once the disk has work again.
      if (!done_.empty()) {
        for (const IoDone& done : done_) done.Tell();
        done_.clear();
        Reap();
        continue;
      }
      if (closed && free_.size() == slots_.size()) return;
      // Without room only the ring is waited for. With room, a thread that adds
      // a job after this check of the queue sees that this thread sleeps.
      if (!free_.empty()) {
        sleeping_.store(true);
        closed = queue_->closed();
        if (queue_->has_requests() ||
            (closed && free_.size() == slots_.size())) {
          sleeping_.store(false);
          continue;
        }
      }
      io_uring_cqe* cqe;
      io_uring_wait_cqe(&ring_,
                        &cqe);  // after an interruption, the loop checks again
      sleeping_.store(false);
      Reap();
    }
  }

  io_uring_sqe* NextEntry() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    // The ring has an entry for each slot and one for the eventfd, and all
    // before are submitted or are for other slots.
    assert(sqe != nullptr);
    return sqe;
  }

  void Prepare(Slot* slot) {
    const IoRequest& request = slot->request;
    io_uring_sqe* sqe = NextEntry();
    const unsigned bytes = static_cast<unsigned>(request.bytes - slot->done);
    if (request.write) {
      io_uring_prep_write(sqe, request.file->fd(), request.memory + slot->done,
                          bytes, request.offset + slot->done);
    } else {
      io_uring_prep_read(sqe, request.file->fd(), request.memory + slot->done,
                         bytes, request.offset + slot->done);
    }
    io_uring_sqe_set_data(sqe, slot);
  }

  void ArmWake() {
    io_uring_sqe* sqe = NextEntry();
    io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
    io_uring_sqe_set_data(sqe, nullptr);
    wake_armed_ = true;
  }

  void Submit() {
    while (io_uring_sq_ready(&ring_) > 0 && io_uring_submit(&ring_) < 0) {
      // The kernel lacks resources that its requests in flight will free.
      const timespec pause = {0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
  }

  void Reap() {
    io_uring_cqe* cqe;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      Slot* slot = static_cast<Slot*>(io_uring_cqe_get_data(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (slot == nullptr) {
        uint64_t count;
        [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof count);
        wake_armed_ = false;
      } else {
        Reaped(slot, result);
      }
    }
  }

  void Reaped(Slot* slot, int result) {
    const IoRequest& request = slot->request;
    int error = result < 0 ? -result : 0;
    if ((error == EINTR || error == EAGAIN) && ++slot->retries < kMaxRetries) {
      return Prepare(slot);
    }
    bool ended = result <= 0;
    if (result > 0) {
      slot->done += static_cast<size_t>(result);
      const size_t left = request.bytes - slot->done;
      ended = request.file->AtEnd(request.offset + slot->done, left);
      if (left > 0 && !ended) return Prepare(slot);
    }
    absl::Status status;
    if (ended) {
      status = request.file->RequestError(request.offset, request.bytes,
                                          request.write, error);
    } else {
      request.file->DropFromCache(request.offset, request.bytes, request.write);
    }
    if (IoDone done = queue_->Finish(request, status);
        done.completion != nullptr) {
      done_.push_back(std::move(done));
    }
    free_.push_back(slot);
  }

  IoQueue* const queue_;
  const std::vector<int> cores_;
  io_uring ring_;
  bool ring_made_ = false;
  int wake_fd_ = -1;
  std::atomic<bool> sleeping_{false};

  // These are used by the driver's thread only.
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::vector<IoDone> done_;  // to be done after the next submission
  bool wake_armed_ = false;

  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoDriver>> NewUringDriver(
    IoQueue* queue, const IoEngine::Options& options) {
  auto driver = std::make_unique<UringDriver>(queue, options);
  SLUICE_RETURN_IF_ERROR(driver->Start());
  return driver;
}

}  // namespace sluice
