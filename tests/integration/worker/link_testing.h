#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/threads/mutex.h"
#include "gtest/gtest.h"
#include "runtime/memory/activation_buffer.h"
#include "worker/link/link.h"

namespace sluice {

// Keeps frames until the test takes them, and their credits.
class TestSink : public FrameSink {
 public:
  struct Got {
    ActivationFrame frame;
    std::function<void()> on_consumed;
  };

  absl::Status OnFrame(ActivationFrame frame,
                       std::function<void()> on_consumed) override {
    MutexLock lock(&mu_);
    if (!refuse_.ok()) {
      return refuse_;
    }
    frames_.push_back({std::move(frame), std::move(on_consumed)});
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  void OnLinkBroken(PlanEpoch epoch, const absl::Status& status) override {
    MutexLock lock(&mu_);
    broken_epoch_ = epoch;
    broken_ = status;
    changed_.NotifyAll();
  }

  Got Take() {
    MutexLock lock(&mu_);
    while (frames_.empty()) {
      if (!changed_.WaitFor(&mu_, kNever)) ADD_FAILURE() << "no frame came";
    }
    Got got = std::move(frames_.front());
    frames_.pop_front();
    return got;
  }

  void AwaitCount(size_t n) {
    MutexLock lock(&mu_);
    while (frames_.size() < n) {
      if (!changed_.WaitFor(&mu_, kNever)) ADD_FAILURE() << "too few frames";
    }
  }

  size_t count() const {
    MutexLock lock(&mu_);
    return frames_.size();
  }

  absl::Status AwaitBroken(PlanEpoch epoch) {
    MutexLock lock(&mu_);
    while (broken_.ok()) {
      if (!changed_.WaitFor(&mu_, kNever)) ADD_FAILURE() << "nothing broke";
    }
    EXPECT_EQ(broken_epoch_, epoch);
    return broken_;
  }

  bool broken() const {
    MutexLock lock(&mu_);
    return !broken_.ok();
  }

  void Refuse(absl::Status status) {
    MutexLock lock(&mu_);
    refuse_ = std::move(status);
  }

 private:
  static constexpr absl::Duration kNever = absl::Seconds(60);

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Got> frames_ ABSL_GUARDED_BY(mu_);
  PlanEpoch broken_epoch_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  absl::Status refuse_ ABSL_GUARDED_BY(mu_);
};

// Makes micro-batch 0 of step `step`, with `rows` rows that contain both.
inline ActivationFrame TestFrame(ActivationPool& pool, PlanEpoch epoch,
                                 int64_t step, int rows, int cols) {
  auto plan = std::make_shared<StepPlan>();
  plan->epoch = epoch;
  plan->step = step;
  MicroBatch& batch = plan->micro_batches.emplace_back();
  if (rows > 0) {
    batch.segments.push_back({SequenceId(1), 0, rows, true});
    batch.tokens.assign(rows, 1);
  }
  ActivationFrame frame;
  frame.epoch = epoch;
  frame.step = step;
  frame.plan = std::move(plan);
  frame.hidden = pool.Acquire(rows, cols);
  for (int i = 0; i < rows * cols; ++i) {
    frame.hidden->data()[i] = static_cast<float>(step * 1000 + i);
  }
  return frame;
}

// Expects what TestFrame() makes of the same numbers.
inline void ExpectTestFrame(const ActivationFrame& frame, int64_t step,
                            int rows, int cols) {
  EXPECT_EQ(frame.step, step);
  ASSERT_NE(frame.hidden, nullptr);
  ASSERT_EQ(frame.hidden->rows(), rows);
  for (int64_t i = 0; i < int64_t{rows} * cols; ++i) {
    ASSERT_EQ(frame.hidden->data()[i], static_cast<float>(step * 1000 + i));
  }
}

}  // namespace sluice
