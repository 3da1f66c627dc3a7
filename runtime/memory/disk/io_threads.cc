#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/threads/thread.h"
#include "runtime/memory/cpu_topology.h"
#include "runtime/memory/disk/io_queue.h"

namespace sluice {
namespace {

// Blocking reads and writes, one on each of a few threads.
class ThreadsDriver final : public IoDriver {
 public:
  ThreadsDriver(IoQueue* queue, const IoEngine::Options& options) {
    for (int i = 0; i < options.threads; ++i) {
      threads_.emplace_back(absl::StrCat("disk-", i),
                            [queue, cores = options.cores] {
                              BindThisThread(cores);
                              Loop(queue);
                            });
    }
  }
  // The queue wakes its waiters itself.
  void Wake() override {}
  void Stop() override { threads_.clear(); }

 private:
  static void Loop(IoQueue* queue) {
    IoRequest request;
    while (queue->WaitAndTake(&request)) {
      const absl::Status status = request.file->Transfer(
          request.offset, request.memory, request.bytes, request.write);
      queue->Finish(request, status).Tell();
    }
  }

  std::vector<Thread> threads_;
};

}  // namespace

std::unique_ptr<IoDriver> NewThreadsDriver(IoQueue* queue,
                                           const IoEngine::Options& options) {
  return std::make_unique<ThreadsDriver>(queue, options);
}

}  // namespace sluice
