#include "runtime/memory/activation_buffer.h"

#include <cstdlib>
#include <new>

namespace sluice {
namespace {
constexpr size_t kAlignment = 64;
// The page size of pinned memory.
constexpr size_t kPage = 4096;
}  // namespace

ActivationBuffer::~ActivationBuffer() { Free(); }

void ActivationBuffer::Free() {
  pin_.Release();
  std::free(data_);
}

void ActivationBuffer::Resize(int64_t rows, int64_t cols, Device* copies) {
  rows_ = rows;
  cols_ = cols;
  const size_t floats = static_cast<size_t>(rows * cols);
  if (floats <= capacity_) return;
  const size_t alignment = copies != nullptr ? kPage : kAlignment;
  const size_t bytes =
      (floats * sizeof(float) + alignment - 1) / alignment * alignment;
  Free();
  data_ = static_cast<float*>(std::aligned_alloc(alignment, bytes));
  if (data_ == nullptr) {
    capacity_ = 0;
    throw std::bad_alloc();
  }
  capacity_ = bytes / sizeof(float);
  if (copies != nullptr) {
    pin_ = copies->Pin({reinterpret_cast<std::byte*>(data_), bytes});
  }
}

struct ActivationPool::State {
  Mutex mu;
  std::vector<std::unique_ptr<ActivationBuffer>> free ABSL_GUARDED_BY(mu);
  bool retired ABSL_GUARDED_BY(mu) = false;
  // Held while memory is pinned, which takes long; locked before `mu`.
  Mutex device_mu;
  Device* copies ABSL_GUARDED_BY(device_mu) = nullptr;
};

ActivationPool::ActivationPool(Device* copies)
    : state_(std::make_shared<State>()) {
  MutexLock lock(&state_->device_mu);
  state_->copies = copies;
}

void ActivationPool::Retire() {
  {
    MutexLock lock(&state_->device_mu);
    state_->copies = nullptr;
  }
  std::vector<std::unique_ptr<ActivationBuffer>> unused;
  MutexLock lock(&state_->mu);
  state_->retired = true;
  unused.swap(state_->free);
}

std::shared_ptr<ActivationBuffer> ActivationPool::Acquire(int64_t rows,
                                                          int64_t cols) {
  std::unique_ptr<ActivationBuffer> buffer;
  {
    MutexLock lock(&state_->mu);
    if (!state_->free.empty()) {
      buffer = std::move(state_->free.back());
      state_->free.pop_back();
    }
  }
  if (buffer == nullptr) buffer = std::make_unique<ActivationBuffer>();
  {
    MutexLock lock(&state_->device_mu);
    buffer->Resize(rows, cols, state_->copies);
  }
  // The deleter holds the state, so that the buffer outlives the pool safely.
  return {buffer.release(), [state = state_](ActivationBuffer* b) {
            std::unique_ptr<ActivationBuffer> owned(b);
            MutexLock lock(&state->mu);
            if (!state->retired) state->free.push_back(std::move(owned));
          }};
}

}  // namespace sluice
