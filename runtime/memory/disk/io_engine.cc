#include "runtime/memory/disk/io_engine.h"

#include <utility>

#include "common/blocks.h"
#include "common/host/logging.h"
#include "common/status_macros.h"
#include "runtime/memory/disk/io_queue.h"

namespace sluice {
namespace {
constexpr int kMaxQueueDepth = 4096;
constexpr int kMaxThreads = 256;
constexpr size_t kMaxRequestBytes = size_t{1} << 30;
}  // namespace

absl::Status IoEngine::Options::Validate() const {
  if (queue_depth < 1 || queue_depth > kMaxQueueDepth) {
    return InvalidArgument("disk queue depth ", queue_depth, " is not in 1..",
                           kMaxQueueDepth);
  }
  if (request_bytes < kDiskBlockBytes || request_bytes > kMaxRequestBytes ||
      request_bytes % kDiskBlockBytes != 0) {
    return InvalidArgument("disk request size ", request_bytes,
                           " is no multiple of ", kDiskBlockBytes, " up to ",
                           kMaxRequestBytes);
  }
  if (threads < 1 || threads > kMaxThreads) {
    return InvalidArgument("disk threads ", threads, " is not in 1..",
                           kMaxThreads);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IoEngine>> IoEngine::Create(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<IoEngine> engine(new IoEngine());
  engine->queue_ = std::make_unique<IoQueue>(options.request_bytes,
                                             options.tracer, options.marks);
  if (options.backend != Backend::kThreads) {
    absl::StatusOr<std::unique_ptr<IoDriver>> driver =
        NewUringDriver(engine->queue_.get(), options);
    if (driver.ok()) {
      engine->backend_ = Backend::kUring;
      engine->driver_ = *std::move(driver);
      return engine;
    }
    if (options.backend == Backend::kUring) return driver.status();
    LogWarning(driver.status().message(), "; ", options.threads,
               " threads read and write instead");
  }
  engine->backend_ = Backend::kThreads;
  engine->driver_ = NewThreadsDriver(engine->queue_.get(), options);
  return engine;
}

IoEngine::~IoEngine() {
  queue_->Close();
  if (driver_ != nullptr) driver_->Stop();
}

void IoEngine::Read(const DiskFile& file, uint64_t offset,
                    std::span<std::byte> out, IoCompletion* done,
                    const IoLabel& label) {
  if (queue_->Add(/*write=*/false, file, offset, out.data(), out.size(), done,
                  label)) {
    driver_->Wake();
  }
}

void IoEngine::Write(DiskFile& file, uint64_t offset,
                     std::span<const std::byte> in, IoCompletion* done,
                     const IoLabel& label) {
  if (queue_->Add(/*write=*/true, file, offset,
                  const_cast<std::byte*>(in.data()), in.size(), done, label)) {
    driver_->Wake();
  }
}

IoEngine::Totals IoEngine::totals() const { return queue_->totals(); }

}  // namespace sluice
