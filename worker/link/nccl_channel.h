#pragma once

#include <deque>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "worker/link/nccl_library.h"
#include "worker/link/payload_channel.h"

namespace sluice {

// One end of a communicator of two, in which rank 0 sends and rank 1 receives.
//
// One thread, in Run, makes every call of NCCL and CUDA. It never blocks in
// one: the communicator is of the non-blocking kind, transfers end in events,
// and the thread polls these, the communicator's own error (NCCL's watchdog)
// and Stop. So a peer's death ends waiting for it, by whichever notices first
// and without a time limit; then ncclCommAbort ends the work on the GPU.
//
// Host payloads pass through one of two pieces of device memory, each with a
// copy stream beside the stream of transfers, so that copying one payload
// overlaps sending another. None of these streams computes.
//
// A copy to host memory that is not pinned makes its caller wait for all
// earlier work of its stream: it is begun only once the payload is here.
class NcclChannel : public PayloadChannel {
 public:
  // `library` and `context`, the device's, must outlive the channel.
  NcclChannel(const NcclLibrary* library, cuda::Context* context,
              PayloadTransport::ChannelOptions options);

  void Start() override;
  void Push(PayloadView payload, std::function<void()> done) override;
  void Stop() override;

  // The thread's body: returns once stopped or broken and all is given back.
  void Run();
  bool finished() const;

  static constexpr int kLanes = 2;

 private:
  struct Item {
    PayloadView payload;
    std::function<void()> done;
  };
  // The resources of one payload in flight.
  struct Lane {
    cuda::DeviceAddress staging = 0;
    cuda::Stream* copies = nullptr;
    cuda::Event* first = nullptr;  // between copying and transfer
    cuda::Event* last = nullptr;
  };
  // A payload on the device, or an empty one that waits for those before it.
  struct Flight {
    Item item;
    int lane = -1;
    bool to_be_copied = false;  // from the lane, when it has come
  };

  // These run on the channel's thread.
  absl::Status Play();
  absl::Status Connect();
  absl::Status MakeLanes();
  absl::Status Launch(Item item);
  absl::Status Transfer(Flight& flight);
  // Whether the device copies to this memory without making its caller wait.
  bool IsPinned(const PayloadView& payload) const;
  absl::Status CopyOut(const PayloadView& payload, Lane& lane);
  // Whether the oldest flight has landed; an error if it never will.
  absl::StatusOr<bool> Land();
  // Waits while `result` says that NCCL is still working. kCancelled: stopped.
  absl::Status Settle(int result, absl::string_view call);
  absl::Status CheckComm();
  void GiveBack();

  // Waits for news from other threads, a little longer each time in a row.
  void Pause();
  bool stopped() const;

  const nccl::Api& nccl_;
  const cuda::Api& cuda_;
  const NcclLibrary* const library_;
  cuda::Context* const context_;
  PayloadTransport::ChannelOptions options_;

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;

  // These are used by the channel's thread only.
  nccl::Comm* comm_ = nullptr;
  cuda::Stream* transfers_ = nullptr;
  Lane lanes_[kLanes];
  int next_lane_ = 0;
  std::deque<Flight> flights_;
  absl::Duration pause_;
};

}  // namespace sluice
