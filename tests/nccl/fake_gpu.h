#pragma once

// These control libsluice_fake_gpu.so, for tests: a stand-in for libcuda and
// libnccl in one. Device memory is the host's, a stream is a thread, and a
// communicator of two is a TCP connection over the loopback, within a process
// or between two. Ranks of one process, of any number, gather. It is stricter
// than the real ones where these are lenient: calls without a context, on a
// communicator that is not ready, or with memory that is not the device's are
// errors; and harsher where they may be: a transfer whose peer is gone stays on
// its stream until ncclCommAbort; a copy from or to host memory that is not
// pinned returns when it is done, and all before it on its stream.
//
// From the environment, for programs: SLUICE_FAKE_GPU_STATS, a directory in
// which each process leaves FakeGpuCounts as JSON in PID.json when it ends;
// SLUICE_FAKE_GPU_UUID, for several processes on one GPU;
// SLUICE_FAKE_GPU_COUNT, the number of devices, which is 1.

#include <cstddef>

extern "C" {

// Counts of what lives now, and of what was made in all.
struct FakeGpuCounts {
  long comms, comms_made;
  long roots;  // ids that were made and that nobody has joined
  long streams, events, allocations, contexts;
  long payloads_sent, bytes_sent;
  long gathers;  // each counted by each rank
};
FakeGpuCounts fake_gpu_counts();

// All below hold until changed again; 0 is what they begin with.

// ncclCommGetAsyncError no longer tells that a peer is gone.
void fake_gpu_mute_errors(int muted);
// Transfers stop after so many bytes of a payload, until 0 is set.
void fake_gpu_stall_after(long bytes);
// Returns how many payloads are stalled now.
long fake_gpu_stalled();
// ncclCommInitRankConfig fails, once it is under way, with this ncclResult_t.
void fake_gpu_fail_init(int result);
// Host memory becomes pinned, or is no more.
void fake_gpu_pin(const void* data, size_t bytes);
void fake_gpu_unpin(const void* data);
// There is no device, if this is not 0.
void fake_gpu_hide_device(int hidden);

}  // extern "C"
