#include "runtime/exec/activation_buffer.h"

#include <cstdlib>
#include <new>

namespace sluice {
namespace {
constexpr size_t kAlignment = 64;
}  // namespace

ActivationBuffer::~ActivationBuffer() { std::free(data_); }

void ActivationBuffer::Resize(int64_t rows, int64_t cols) {
  rows_ = rows;
  cols_ = cols;
  const size_t floats = static_cast<size_t>(rows * cols);
  if (floats <= capacity_) return;
  const size_t bytes =
      (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  std::free(data_);
  data_ = static_cast<float*>(std::aligned_alloc(kAlignment, bytes));
  if (data_ == nullptr) {
    capacity_ = 0;
    throw std::bad_alloc();
  }
  capacity_ = bytes / sizeof(float);
}

struct ActivationPool::State {
  Mutex mu;
  std::vector<std::unique_ptr<ActivationBuffer>> free ABSL_GUARDED_BY(mu);
};

ActivationPool::ActivationPool() : state_(std::make_shared<State>()) {}

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
  buffer->Resize(rows, cols);
  // The deleter holds the state, so that the buffer outlives the pool safely.
  return {buffer.release(), [state = state_](ActivationBuffer* b) {
            std::unique_ptr<ActivationBuffer> owned(b);
            MutexLock lock(&state->mu);
            state->free.push_back(std::move(owned));
          }};
}

}  // namespace sluice
