#include "runtime/exec/activation_buffer.h"

#include <cstdlib>
#include <new>

namespace sluice {
namespace {
constexpr size_t kAlignment = 64;
// Of memory that is pinned.
constexpr size_t kPage = 4096;
}  // namespace

ActivationBuffer::~ActivationBuffer() { Free(); }

void ActivationBuffer::Free() {
  pin_.Release();
  std::free(data_);
}

void ActivationBuffer::Resize(int64_t rows, int64_t cols) {
  rows_ = rows;
  cols_ = cols;
  const size_t floats = static_cast<size_t>(rows * cols);
  if (floats <= capacity_) return;
  const size_t alignment = copies_ != nullptr ? kPage : kAlignment;
  const size_t bytes =
      (floats * sizeof(float) + alignment - 1) / alignment * alignment;
  Free();
  data_ = static_cast<float*>(std::aligned_alloc(alignment, bytes));
  if (data_ == nullptr) {
    capacity_ = 0;
    throw std::bad_alloc();
  }
  capacity_ = bytes / sizeof(float);
  if (copies_ != nullptr) {
    pin_ = copies_->Pin({reinterpret_cast<std::byte*>(data_), bytes});
  }
}

struct ActivationPool::State {
  Mutex mu;
  std::vector<std::unique_ptr<ActivationBuffer>> free ABSL_GUARDED_BY(mu);
};

ActivationPool::ActivationPool(Device* copies)
    : copies_(copies), state_(std::make_shared<State>()) {}

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
  if (buffer == nullptr) buffer = std::make_unique<ActivationBuffer>(copies_);
  buffer->Resize(rows, cols);
  // The deleter holds the state, so that the buffer outlives the pool safely.
  return {buffer.release(), [state = state_](ActivationBuffer* b) {
            std::unique_ptr<ActivationBuffer> owned(b);
            MutexLock lock(&state->mu);
            state->free.push_back(std::move(owned));
          }};
}

}  // namespace sluice
